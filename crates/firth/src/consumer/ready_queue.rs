//! The ready queue: lanes put deliveries here, and the consumer's side takes them.
//!
//! It holds at most what the lanes' windows allow. A lane that gives its partition up recalls the
//! deliveries that were not taken, so that a slow reader never delays a handover. A consumer with a
//! [`WorkerPool`] keeps nothing here: a lane starts the worker of a chunk itself.

use super::delivery::Delivery;
use super::worker_pool::WorkerPool;
use firth_engine::RecordId;
use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::task::Poll;
use tokio::sync::Notify;

/// Deliveries that one worker runs one after the other.
pub(crate) type Chunk = VecDeque<Delivery>;

#[derive(Default)]
pub(crate) struct ReadyQueue {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Default)]
struct State {
    chunks: VecDeque<(u32, Chunk)>,
    pool: Option<WorkerPool>,
    closed: bool,
}

impl ReadyQueue {
    pub(crate) fn put(&self, partition: u32, chunk: Chunk) {
        let mut state = self.lock();
        match &mut state.pool {
            Some(pool) => pool.start(chunk),
            None => {
                state.chunks.push_back((partition, chunk));
                drop(state);
                self.filled.notify_one();
            }
        }
    }

    /// Gives all chunks to a pool from now on, those that wait here included.
    pub(crate) fn attach(&self, mut pool: WorkerPool) {
        let mut state = self.lock();
        state.chunks.drain(..).for_each(|(_, chunk)| pool.start(chunk));
        state.pool = Some(pool);
    }

    /// Takes the pool away, with its running workers.
    pub(crate) fn detach(&self) -> Option<WorkerPool> {
        self.lock().pool.take()
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

    /// Takes back the deliveries of a partition that were not taken; the lane hears of each record
    /// as unstarted.
    pub(crate) fn recall(&self, partition: u32) {
        let mut state = self.lock();
        let (mine, others) = state.chunks.drain(..).partition(|(index, _)| *index == partition);
        state.chunks = others;
        drop(state);
        // Dropped outside of the lock: each delivery tells its lane.
        let mine: VecDeque<(u32, Chunk)> = mine;
        drop(mine);
    }

    /// The records of a partition that no caller has taken yet.
    pub(crate) fn waiting(&self, partition: u32) -> HashSet<RecordId> {
        let state = self.lock();
        let mine = state.chunks.iter().filter(|(index, _)| *index == partition);
        mine.flat_map(|(_, chunk)| chunk.iter().map(|delivery| delivery.id())).collect()
    }

    /// Ends the queue: takers get `None`.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let rest = std::mem::take(&mut state.chunks);
        drop(state);
        drop(rest);
        self.filled.notify_waiters();
        self.filled.notify_one();
    }

    /// Starts up to `max` deliveries of one partition that are ready; at least one. `None` after
    /// [`close`](Self::close), pending while nothing is ready: [`news`](Self::news) tells of more.
    ///
    /// They start under the lock: every delivery in the queue is unstarted, so a lane can recall
    /// all of them.
    pub(crate) fn take(&self, max: usize) -> Poll<Option<Vec<Delivery>>> {
        let mut state = self.lock();
        while let Some(started) = state.start(max) {
            if !started.is_empty() {
                if !state.chunks.is_empty() {
                    self.filled.notify_one();
                }
                return Poll::Ready(Some(started));
            }
        }
        if state.closed {
            self.filled.notify_one();
            return Poll::Ready(None);
        }
        Poll::Pending
    }

    /// Resolves when there may be something to take. Cancel-safe.
    pub(crate) async fn news(&self) {
        self.filled.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl State {
    /// Takes the first chunk, joined with the next ones of its partition that fit whole. Stops at
    /// the first delivery that may not start: a later one would overtake it.
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
