//! The one ordered stream of events of a worker.
//!
//! Bounded without loss: at most `buffer` grants and as many orphans wait (when full, no more is
//! granted to this worker), and for each claim that it has at most three notices more. A grant
//! whose claim ended before it was read is never shown, nor is its end.

use super::unit::Unit;
use firth_engine::{MemberName, OfferName};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use tokio::sync::Notify;

pub(crate) enum Notice {
    Granted(Arc<Unit>),
    Recalled(Arc<Unit>),
    Lost(Arc<Unit>),
    Released(Arc<Unit>),
    Orphaned { name: OfferName, last_owner: MemberName },
}

#[derive(Default)]
struct Inner {
    notices: VecDeque<Notice>,
    grants: usize,
    orphans: usize,
    is_closed: bool,
}

pub(crate) struct NoticeQueue {
    inner: Mutex<Inner>,
    filled: Notify,
    /// Fires when a full queue has room again.
    pub(crate) drained: Notify,
    buffer: usize,
}

impl NoticeQueue {
    pub(crate) fn new(buffer: usize) -> Self {
        Self { inner: Mutex::default(), filled: Notify::new(), drained: Notify::new(), buffer }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics under this lock")
    }

    /// How many more grants may wait.
    pub(crate) fn room(&self) -> usize {
        self.buffer.saturating_sub(self.lock().grants)
    }

    /// Adds a notice; false for an orphan that does not fit.
    pub(crate) fn push(&self, notice: Notice) -> bool {
        let mut inner = self.lock();
        match &notice {
            _ if inner.is_closed => return false,
            Notice::Granted(_) => inner.grants += 1,
            Notice::Orphaned { .. } if inner.orphans >= self.buffer => return false,
            Notice::Orphaned { .. } => inner.orphans += 1,
            _ => {}
        }
        inner.notices.push_back(notice);
        drop(inner);
        self.filled.notify_one();
        true
    }

    /// How many notices wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().notices.len()
    }

    /// The next notice that the user should see; `None` after the end, pending while nothing waits:
    /// [`news`](Self::news) tells of more.
    pub(crate) fn pop(&self) -> Poll<Option<Notice>> {
        let mut inner = self.lock();
        while let Some(notice) = inner.notices.pop_front() {
            let was_full = inner.grants >= self.buffer;
            match &notice {
                Notice::Granted(_) => inner.grants -= 1,
                Notice::Orphaned { .. } => inner.orphans -= 1,
                _ => {}
            }
            if was_full && inner.grants < self.buffer {
                self.drained.notify_waiters();
            }
            if is_worth_showing(&notice) {
                return Poll::Ready(Some(notice));
            }
        }
        if inner.is_closed { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Resolves when there may be a notice, or the end. Cancel-safe.
    pub(crate) async fn news(&self) {
        self.filled.notified().await;
    }

    /// Nothing more comes; what waits can still be read.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_waiters();
        self.filled.notify_one();
    }
}

/// Shows a grant that still stands, and the later news of what was shown.
fn is_worth_showing(notice: &Notice) -> bool {
    match notice {
        Notice::Granted(unit) => {
            let stands = unit.is_valid();
            if stands {
                unit.show();
            }
            stands
        }
        Notice::Recalled(unit) => unit.is_shown() && !unit.is_ended(),
        Notice::Lost(unit) | Notice::Released(unit) => unit.is_shown(),
        Notice::Orphaned { .. } => true,
    }
}
