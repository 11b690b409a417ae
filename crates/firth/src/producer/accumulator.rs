//! The record accumulator between callers and the sender. Callers put messages straight into their
//! batch, under one lock and without a channel; the sender is woken only for what it cannot know.
//!
//! Bounded in bytes: callers get room first, and it is given back when their batch is answered.

use super::batch::{Batch, BatchPolicy, Batcher, Outgoing, Pushed};
use super::completion::{Completion, CompletionGuard, SendFuture};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::Instant;

pub(super) struct Accumulator {
    state: Mutex<State>,
    changed: Notify,
    room: Semaphore,
}

struct State {
    batcher: Batcher<Arc<Completion>>,
    /// Every handle is gone: nothing lingers, and the sender ends when all is answered.
    is_left: bool,
    /// The sender is gone.
    has_ended: bool,
}

/// What the sender must do.
pub(super) struct DueBatches {
    /// Send these now.
    pub(super) batches: Vec<Batch<Arc<Completion>>>,
    /// Look again then.
    pub(super) look_again: Option<Instant>,
}

impl Accumulator {
    pub(super) fn new(policy: BatchPolicy, max_buffered: usize) -> Self {
        let state = State { batcher: Batcher::new(policy), is_left: false, has_ended: false };
        Self { state: Mutex::new(state), changed: Notify::new(), room: Semaphore::new(max_buffered) }
    }

    /// Waits for room. Messages of one caller get it in order.
    pub(super) async fn room(&self, cost: usize) -> Result<(), AcquireError> {
        self.room.acquire_many(permits(cost)).await.map(SemaphorePermit::forget)
    }

    pub(super) fn try_room(&self, cost: usize) -> Result<(), TryAcquireError> {
        self.room.try_acquire_many(permits(cost)).map(SemaphorePermit::forget)
    }

    /// Takes a message for which there is room; `None` if the sender is gone.
    pub(super) fn push(&self, out: Outgoing) -> Option<SendFuture> {
        let mut state = self.lock();
        if state.has_ended {
            return None;
        }
        let Pushed { completion, index, wakes_sender } = state.batcher.push(out, Instant::now);
        drop(state);
        if wakes_sender {
            self.changed.notify_one();
        }
        Some(SendFuture::new(completion, index))
    }

    /// Ends the linger of everything taken so far; returns futures that resolve when all of it is
    /// stored. `None` if the sender is gone.
    pub(super) fn flush(&self) -> Option<Vec<SendFuture>> {
        let mut state = self.lock();
        if state.has_ended {
            return None;
        }
        let completions = state.batcher.seal();
        drop(state);
        self.changed.notify_one();
        Some(completions.into_iter().map(|completion| SendFuture::new(completion, 0)).collect())
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
        self.changed.notify_one();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// What the sender must do now; `None` when nothing will ever come.
    pub(super) fn take_due(&self, now: Instant) -> Option<DueBatches> {
        let mut state = self.lock();
        let hurry = state.is_left;
        if hurry && state.batcher.is_empty() {
            return None;
        }
        let batches = std::iter::from_fn(|| state.batcher.next(now, hurry)).collect();
        Some(DueBatches { batches, look_again: state.batcher.next_deadline() })
    }

    /// Resolves when something came that [`take_due`](Self::take_due) has not seen.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A batch is answered.
    pub(super) fn done(&self, partition: u32, cost: usize) {
        self.lock().batcher.done(partition);
        self.room.add_permits(cost);
    }

    /// The sender is gone: callers that wait for room or for a receipt get an error.
    pub(super) fn end(&self) {
        self.room.close();
        let mut state = self.lock();
        state.has_ended = true;
        let completions = state.batcher.seal();
        drop(state);
        completions.into_iter().map(CompletionGuard::new).for_each(drop);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

fn permits(cost: usize) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}
