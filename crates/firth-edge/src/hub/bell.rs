//! [`Bell`]: wakes the one task that waits for it; rung while nobody waits, it is heard by who comes next.

use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

#[derive(Debug, Default)]
pub(crate) struct Bell {
    is_rung: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Ready once for any number of rings. Only the newest of several tasks that wait is woken.
    pub(crate) fn poll_heard(&self, context: &Context<'_>) -> Poll<()> {
        if self.hear() {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // It may have been rung between the two.
        if self.hear() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn hear(&self) -> bool {
        self.is_rung.load(Ordering::Acquire) && self.is_rung.swap(false, Ordering::AcqRel)
    }
}
