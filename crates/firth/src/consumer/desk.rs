//! The desk: where lanes put deliveries and the consumer's side takes them.
//!
//! Holds at most what the lanes' windows allow. A lane that gives its partition up recalls what nobody has taken yet, so that a slow
//! reader never delays a handover. Where a [`Crew`] works, nothing lies here: a lane starts the worker of a chunk itself.

use super::crew::Crew;
use super::delivery::Delivery;
use std::collections::VecDeque;
use std::sync::Mutex;
use tokio::sync::Notify;

/// Deliveries that one worker runs one after the other.
pub(crate) type Chunk = VecDeque<Delivery>;

#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<(u32, Chunk)>,
    crew: Option<Crew>,
    closed: bool,
}

impl Desk {
    pub(crate) fn put(&self, partition: u32, chunk: Chunk) {
        let mut state = self.lock();
        match &mut state.crew {
            Some(crew) => crew.start(chunk),
            None => {
                state.chunks.push_back((partition, chunk));
                drop(state);
                self.filled.notify_one();
            }
        }
    }

    /// From now on a crew works on everything that comes, and on what lies here.
    pub(crate) fn engage(&self, mut crew: Crew) {
        let mut state = self.lock();
        state.chunks.drain(..).for_each(|(_, chunk)| crew.start(chunk));
        state.crew = Some(crew);
    }

    /// Takes the crew away, with whoever still works.
    pub(crate) fn dismiss(&self) -> Option<Crew> {
        self.lock().crew.take()
    }

    /// Resolves after [`close`](Self::close).
    pub(crate) async fn closed(&self) {
        loop {
            if self.lock().closed {
                self.filled.notify_one();
                return;
            }
            self.filled.notified().await;
        }
    }

    /// Takes back what nobody has taken of this partition; the lane hears of each record as unstarted.
    pub(crate) fn recall(&self, partition: u32) {
        let mut state = self.lock();
        let (mine, others) = state.chunks.drain(..).partition(|(index, _)| *index == partition);
        state.chunks = others;
        drop(state);
        // Dropped outside of the lock: each delivery tells its lane.
        let mine: VecDeque<(u32, Chunk)> = mine;
        drop(mine);
    }

    /// Nothing more will come: takers see the end.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let rest = std::mem::take(&mut state.chunks);
        drop(state);
        drop(rest);
        self.filled.notify_waiters();
        self.filled.notify_one();
    }

    /// The next chunk; `None` after [`close`](Self::close). Cancel-safe.
    pub(crate) async fn chunk(&self) -> Option<Chunk> {
        loop {
            {
                let mut state = self.lock();
                if let Some((_, chunk)) = state.chunks.pop_front() {
                    if !state.chunks.is_empty() {
                        self.filled.notify_one();
                    }
                    return Some(chunk);
                }
                if state.closed {
                    self.filled.notify_one();
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Adds what lies ready behind a chunk, as far as it is of the same partition and fits whole: what came in pieces goes on as one.
    pub(crate) fn join(&self, chunk: &mut Chunk, max: usize) {
        let Some(partition) = chunk.front().map(|first| first.record().partition()) else { return };
        let mut state = self.lock();
        while let Some((next, more)) = state.chunks.front()
            && *next == partition
            && chunk.len() + more.len() <= max
        {
            chunk.extend(state.chunks.pop_front().into_iter().flat_map(|(_, more)| more));
        }
    }

    /// The next delivery; `None` after [`close`](Self::close). Cancel-safe.
    pub(crate) async fn delivery(&self) -> Option<Delivery> {
        loop {
            let mut chunk = self.chunk().await?;
            let first = chunk.pop_front();
            if let Some(rest) = chunk.front().map(|next| next.record().partition()) {
                self.lock().chunks.push_front((rest, chunk));
                self.filled.notify_one();
            }
            if first.is_some() {
                return first;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}
