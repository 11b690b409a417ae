//! Queue of all frames of a connection without requests (the mux's subscriptions). It is bounded,
//! and the reader swaps it out whole.
//!
//! Breaks of the connection stand in it in order, between the frames around them. When the queue is
//! full the connection stops reading, so that TCP pushes back on the server.

use super::handshake::ServerInfo;
use crate::error::LostCause;
use crate::resp::pubsub::PubSubFrame;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Item of the queue.
#[derive(Debug)]
pub(crate) enum PushItem {
    /// The connection opened; earlier subscriptions are gone.
    Opened { generation: u64, server_info: ServerInfo },
    /// A push or a reply.
    Frame(PubSubFrame),
    /// An idle PING was sent behind this operation of the mux.
    Pinged { after: u64 },
    /// The connection broke, or a try failed.
    Lost(LostCause),
    /// The end.
    Closed,
}

/// A bounded queue between the connection's task and one reader.
#[derive(Debug)]
pub(crate) struct PushQueue {
    state: Mutex<PushQueueState>,
    limit: usize,
}

#[derive(Debug, Default)]
struct PushQueueState {
    items: VecDeque<PushItem>,
    bytes: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PushQueue {
    /// Queue that holds at most about `limit` bytes of frames.
    pub(crate) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, PushQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all `frames`, which had `bytes` bytes on the wire. They were read already, so they are
    /// always taken; `poll_room` stops further reads.
    pub(crate) fn push_frames(&self, frames: &mut Vec<PubSubFrame>, bytes: usize) {
        if frames.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.bytes += bytes;
        state.items.extend(frames.drain(..).map(PushItem::Frame));
        Self::wake_reader(state);
    }

    /// Adds a notice; it is never refused. Failed attempts that were not read yet become one
    /// notice, so that a slow reader does not find one for each.
    pub(crate) fn push(&self, item: PushItem) {
        let mut state = self.lock();
        if matches!(item, PushItem::Lost(_)) {
            while let Some(PushItem::Opened { .. } | PushItem::Pinged { .. } | PushItem::Lost(_)) =
                state.items.back()
            {
                state.items.pop_back();
            }
        }
        state.items.push_back(item);
        Self::wake_reader(state);
    }

    fn wake_reader(mut state: MutexGuard<'_, PushQueueState>) {
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Whether the connection may read on.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.bytes < self.limit {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Swaps everything that is there into `into`, which must be empty.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, into: &mut VecDeque<PushItem>) -> Poll<()> {
        debug_assert!(into.is_empty(), "the reader has dealt with the last batch");
        let mut state = self.lock();
        if state.items.is_empty() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut state.items, into);
        state.bytes = 0;
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(queue: &PushQueue) -> String {
        let mut items = VecDeque::new();
        let _ = queue.poll_take(&Context::from_waker(Waker::noop()), &mut items);
        let letter = |item: &PushItem| match item {
            PushItem::Opened { generation, .. } => generation.to_string(),
            PushItem::Frame(_) => "s".into(),
            PushItem::Pinged { .. } => "p".into(),
            PushItem::Lost(_) => "L".into(),
            PushItem::Closed => "C".into(),
        };
        items.iter().map(letter).collect()
    }

    fn opened(generation: u64) -> PushItem {
        PushItem::Opened { generation, server_info: ServerInfo::of_resp3() }
    }

    #[test]
    fn a_reader_who_is_held_up_for_long_does_not_find_a_heap_of_notices() {
        let queue = PushQueue::new(1);
        queue.push(opened(1));
        assert_eq!(items(&queue), "1");
        for generation in 2..100 {
            queue.push(PushItem::Lost(LostCause::Eof));
            queue.push(PushItem::Lost(LostCause::Eof));
            queue.push(opened(generation));
            queue.push(PushItem::Pinged { after: 0 });
        }
        assert_eq!(items(&queue), "L99p", "the break, and what stands now");
    }
}
