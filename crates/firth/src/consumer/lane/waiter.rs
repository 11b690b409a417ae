//! Waiters for the confirmation that a verdict is stored. A waiter outlives the session that heard
//! the verdict: after a lost reply the next session sees the outcome in the group's progress. A
//! waiter that is dropped answers that the outcome is unknown.

use crate::error::{Error, ErrorKind, Result, same};
use firth_engine::{Record, RecordId};
use std::collections::HashMap;
use tokio::sync::oneshot;

/// A delivery: record and attempt.
pub(super) type DeliveryKey = (RecordId, u32);
/// Waiters for verdicts that may or may not be stored.
pub(super) type Waiters = HashMap<DeliveryKey, Waiter>;

pub(super) struct Waiter {
    pub(super) key: DeliveryKey,
    reply: Option<oneshot::Sender<Result<()>>>,
}

impl Waiter {
    pub(super) fn new(record: &Record, reply: oneshot::Sender<Result<()>>) -> Self {
        Self { key: (record.id, record.attempt), reply: Some(reply) }
    }

    /// The verdict is stored.
    pub(super) fn stored(mut self) {
        self.answer(Ok(()));
    }

    /// The engine refused the verdict for good.
    pub(super) fn refused(mut self, error: &Error) {
        self.answer(Err(same(error)));
    }

    /// The verdict was never sent and never will be: a closed channel says so.
    pub(super) fn gone(mut self) {
        self.reply = None;
    }

    fn answer(&mut self, answer: Result<()>) {
        if let Some(reply) = self.reply.take() {
            // The receiver may be gone; the verdict counts all the same.
            let _ = reply.send(answer);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let context =
            "the lane ended before the verdict was stored: it is stored later, or the record comes again";
        self.answer(Err(Error::new(ErrorKind::Unavailable, context).with_unknown_outcome()));
    }
}
