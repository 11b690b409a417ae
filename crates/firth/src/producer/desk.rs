//! The desk between callers and the sender: callers put messages straight into their batch, under one lock and without a channel; the
//! sender is told only of what it cannot know.
//!
//! Bounded in bytes: callers get room first, and it is given back when their batch is answered.

use super::batch::{Batch, BatchPolicy, Batcher, Outgoing, Pushed};
use super::fate::{Duty, Fate, Ticket};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::Instant;

pub(super) struct Desk {
    state: Mutex<State>,
    news: Notify,
    room: Semaphore,
}

struct State {
    batcher: Batcher<Arc<Fate>>,
    /// Every handle is gone: nothing lingers, and the sender ends when all is answered.
    is_left: bool,
    /// The sender is gone.
    has_ended: bool,
}

/// What the sender must do.
pub(super) struct Leaving {
    /// Send these now.
    pub(super) batches: Vec<Batch<Arc<Fate>>>,
    /// Look again then.
    pub(super) look_again: Option<Instant>,
}

impl Desk {
    pub(super) fn new(policy: BatchPolicy, max_buffered: usize) -> Self {
        let state = State { batcher: Batcher::new(policy), is_left: false, has_ended: false };
        Self { state: Mutex::new(state), news: Notify::new(), room: Semaphore::new(max_buffered) }
    }

    /// Waits for room. Messages of one caller get it in order.
    pub(super) async fn room(&self, cost: usize) -> Result<(), AcquireError> {
        self.room.acquire_many(permits(cost)).await.map(SemaphorePermit::forget)
    }

    pub(super) fn try_room(&self, cost: usize) -> Result<(), TryAcquireError> {
        self.room.try_acquire_many(permits(cost)).map(SemaphorePermit::forget)
    }

    /// Takes a message for which there is room; `None` if the sender is gone.
    pub(super) fn push(&self, out: Outgoing) -> Option<Ticket> {
        let mut state = self.lock();
        if state.has_ended {
            return None;
        }
        let Pushed { fate, index, is_news } = state.batcher.push(out, Instant::now);
        drop(state);
        if is_news {
            self.news.notify_one();
        }
        Some(Ticket::new(fate, index))
    }

    /// Ends the linger of everything taken so far; tickets that are answered when all of it is. `None` if the sender is gone.
    pub(super) fn flush(&self) -> Option<Vec<Ticket>> {
        let mut state = self.lock();
        if state.has_ended {
            return None;
        }
        let fates = state.batcher.seal();
        drop(state);
        self.news.notify_one();
        Some(fates.into_iter().map(|fate| Ticket::new(fate, 0)).collect())
    }

    /// Gives no more room.
    pub(super) fn refuse(&self) {
        self.room.close();
    }

    pub(super) fn is_refusing(&self) -> bool {
        self.room.is_closed()
    }

    /// The last handle is gone.
    pub(super) fn leave(&self) {
        self.lock().is_left = true;
        self.news.notify_one();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// What the sender must do now; `None` when nothing will ever come.
    pub(super) fn leaving(&self, now: Instant) -> Option<Leaving> {
        let mut state = self.lock();
        let hurry = state.is_left;
        if hurry && state.batcher.is_empty() {
            return None;
        }
        let batches = std::iter::from_fn(|| state.batcher.next(now, hurry)).collect();
        Some(Leaving { batches, look_again: state.batcher.next_deadline() })
    }

    /// Resolves when something came that [`leaving`](Self::leaving) has not seen.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// A batch is answered.
    pub(super) fn done(&self, partition: u32, cost: usize) {
        self.lock().batcher.done(partition);
        self.room.add_permits(cost);
    }

    /// The sender is gone: whoever waits is told.
    pub(super) fn end(&self) {
        self.room.close();
        let mut state = self.lock();
        state.has_ended = true;
        let fates = state.batcher.seal();
        drop(state);
        fates.into_iter().map(Duty::new).for_each(drop);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

fn permits(cost: usize) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}
