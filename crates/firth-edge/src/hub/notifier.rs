//! [`TaskNotifier`]: wakes the one task that waits for it. A notification without a task that waits
//! is kept for the next one.

use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

#[derive(Debug, Default)]
pub(crate) struct TaskNotifier {
    is_set: AtomicBool,
    waker: AtomicWaker,
}

impl TaskNotifier {
    pub(crate) fn notify(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Ready once for any number of notifications. Only the newest of several tasks that wait is
    /// woken.
    pub(crate) fn poll_notified(&self, context: &Context<'_>) -> Poll<()> {
        if self.take() {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // A notification may have come between the two.
        if self.take() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn take(&self) -> bool {
        self.is_set.load(Ordering::Acquire) && self.is_set.swap(false, Ordering::AcqRel)
    }
}
