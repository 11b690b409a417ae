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

    /// Starts up to `max` deliveries of one partition, as they lie ready; at least one. `None` after [`close`](Self::close). Cancel-safe.
    ///
    /// They start before others can look at the desk: what lies here has not started, and a lane can be sure of all that it recalls.
    pub(crate) async fn take(&self, max: usize) -> Option<Vec<Delivery>> {
        loop {
            {
                let mut state = self.lock();
                while let Some(started) = state.start(max) {
                    if !started.is_empty() {
                        if !state.chunks.is_empty() {
                            self.filled.notify_one();
                        }
                        return Some(started);
                    }
                }
                if state.closed {
                    self.filled.notify_one();
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl State {
    /// Takes what lies first, with what lies behind it as far as it is of the same partition and fits whole: what came in pieces goes on as one. None
    /// behind one that may not start: it would overtake it.
    fn start(&mut self, max: usize) -> Option<Vec<Delivery>> {
        let (partition, mut chunk) = self.chunks.pop_front()?;
        while let Some((next, more)) = self.chunks.front()
            && *next == partition
            && chunk.len() + more.len() <= max
        {
            chunk.extend(self.chunks.pop_front().into_iter().flat_map(|(_, more)| more));
        }
        if chunk.len() > max {
            let rest = chunk.split_off(max);
            self.chunks.push_front((partition, rest));
        }
        if let Some(refused) = chunk.iter_mut().position(|delivery| !delivery.start()) {
            chunk.truncate(refused);
        }
        Some(chunk.into())
    }
}
