//! Delayed messages: listed, cancelled and delivered before their time.

use crate::id::RecordId;
use crate::record::Content;
use std::time::Duration;

/// How many of its last cancelled messages a partition remembers.
pub(crate) const CANCELLED_WINDOW: usize = 256;

/// A message that waits for its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedContent {
    /// Its name among the delayed messages of the partition: the time of its delivery and a number.
    /// It is no place in the log.
    pub id: RecordId,
    /// How long it still waits; zero if its time has come.
    pub ripe_in: Duration,
    /// Its content.
    pub content: Content,
}

/// Messages that wait for their time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelayedPage {
    /// The messages, the next one first.
    pub messages: Vec<DelayedContent>,
    /// Behind which message to go on; `None`: that was all.
    pub next: Option<RecordId>,
}

/// What to do with a delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayedAction {
    /// Drop it: no group ever gets it.
    Cancel,
    /// Put it into the log now.
    Deliver,
}

/// Where a delayed message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayedState {
    /// It was cancelled.
    Cancelled,
    /// It has entered the log.
    Delivered,
    /// The partition does not know it: there never was one of this name, or it left long ago and
    /// the partition forgot how.
    Missing,
}

/// Outcome of a change to a delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedOutcome {
    /// Where it is now.
    pub state: DelayedState,
    /// Whether this call did that.
    pub changed: bool,
    /// Its place in the log, if this call put it there.
    pub record: Option<RecordId>,
}

impl DelayedOutcome {
    /// It was there before the call.
    pub(crate) fn found(state: DelayedState) -> Self {
        Self { state, changed: false, record: None }
    }
}
