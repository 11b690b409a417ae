//! Where everything goes that the server sends on a connection without requests (the mux's subscriptions): one bounded
//! queue, read by swapping it out whole. Breaks of the connection stand in it in order, between the frames around
//! them. When the queue is full the connection stops reading, so that TCP pushes back on the server.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use super::handshake::Greeting;
use crate::{error::LostCause, resp::pubsub::Said};

/// What the reader of a feed sees.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// A connection stands; whatever was subscribed before is gone.
    Opened { generation: u64, greeting: Greeting },
    /// A push or a reply.
    Said(Said),
    /// An idle PING was sent behind this operation of the feed's owner.
    Pinged { after: u64 },
    /// The connection broke, or a try failed.
    Lost(LostCause),
    /// The end.
    Closed,
}

/// A bounded queue between the connection's task and one reader.
#[derive(Debug)]
pub(crate) struct Feed {
    inner: Mutex<Inner>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Inner {
    items: VecDeque<FeedItem>,
    bytes: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Feed {
    /// A feed that holds at most about `limit` bytes of frames.
    pub(crate) fn new(limit: usize) -> Self {
        Self { inner: Mutex::default(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes everything out of `said`, which stood for so many bytes. It has been read already, so it is always taken;
    /// `poll_room` keeps more from being read.
    pub(crate) fn hear(&self, said: &mut Vec<Said>, bytes: usize) {
        if said.is_empty() {
            return;
        }
        let mut inner = self.lock();
        inner.bytes += bytes;
        inner.items.extend(said.drain(..).map(FeedItem::Said));
        Self::wake_reader(inner);
    }

    /// Adds a notice; never refused. Tries that failed while nobody read are one: a reader who is held up for long
    /// need not learn of each.
    pub(crate) fn notice(&self, item: FeedItem) {
        let mut inner = self.lock();
        if matches!(item, FeedItem::Lost(_)) {
            while let Some(FeedItem::Opened { .. } | FeedItem::Pinged { .. } | FeedItem::Lost(_)) =
                inner.items.back()
            {
                inner.items.pop_back();
            }
        }
        inner.items.push_back(item);
        Self::wake_reader(inner);
    }

    fn wake_reader(mut inner: MutexGuard<'_, Inner>) {
        let reader = inner.reader.take();
        drop(inner);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Whether the connection may read on.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if inner.bytes < self.limit {
            return Poll::Ready(());
        }
        inner.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Swaps everything that is there into `into`, which must be empty.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, into: &mut VecDeque<FeedItem>) -> Poll<()> {
        debug_assert!(into.is_empty(), "the reader has dealt with the last batch");
        let mut inner = self.lock();
        if inner.items.is_empty() {
            inner.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut inner.items, into);
        inner.bytes = 0;
        let writer = inner.writer.take();
        drop(inner);
        if let Some(writer) = writer {
            writer.wake();
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(feed: &Feed) -> String {
        let mut items = VecDeque::new();
        let _ = feed.poll_take(&Context::from_waker(Waker::noop()), &mut items);
        let letter = |item: &FeedItem| match item {
            FeedItem::Opened { generation, .. } => generation.to_string(),
            FeedItem::Said(_) => "s".into(),
            FeedItem::Pinged { .. } => "p".into(),
            FeedItem::Lost(_) => "L".into(),
            FeedItem::Closed => "C".into(),
        };
        items.iter().map(letter).collect()
    }

    fn opened(generation: u64) -> FeedItem {
        FeedItem::Opened { generation, greeting: Greeting::of_resp3() }
    }

    #[test]
    fn a_reader_who_is_held_up_for_long_does_not_find_a_heap_of_notices() {
        let feed = Feed::new(1);
        feed.notice(opened(1));
        assert_eq!(items(&feed), "1");
        for generation in 2..100 {
            feed.notice(FeedItem::Lost(LostCause::Eof));
            feed.notice(FeedItem::Lost(LostCause::Eof));
            feed.notice(opened(generation));
            feed.notice(FeedItem::Pinged { after: 0 });
        }
        assert_eq!(items(&feed), "L99p", "the break, and what stands now");
    }
}
