//! Delayed messages: listed, cancelled and delivered before their time.

use super::Admin;
use crate::error::{Error, Result, invalid};
use crate::record::Record;
use firth_engine::facet::{DelayedAction, DelayedState, ReadLimit};
use firth_engine::limits::MAX_READ;
use firth_engine::{Partition, RecordId, TopicName};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Name of a delayed message: its partition, the time of its delivery and a number. Written as
/// `3/1700000000000-42`. It is no place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DelayedId {
    /// Its partition.
    pub partition: u32,
    /// Its name there.
    pub id: RecordId,
}

impl fmt::Display for DelayedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.id)
    }
}

impl FromStr for DelayedId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || invalid("a delayed message's id looks like 3/1700000000000-42").with_field("id");
        let (partition, id) = text.split_once('/').ok_or_else(wrong)?;
        let partition = partition.parse().map_err(|_| wrong())?;
        Ok(Self { partition, id: id.parse()? })
    }
}

/// A message that waits for its time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DelayedMessage {
    /// Its name.
    pub id: DelayedId,
    /// How long it still waits; zero if its time has come.
    pub due_in: Duration,
    /// What was sent. Its place is zero: it gets one when it enters the log.
    pub record: Record,
}

/// Messages that wait for their time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DelayedMessages {
    /// The messages, the next one first.
    pub messages: Vec<DelayedMessage>,
    /// Go on after this one; `None`: that was all.
    pub next: Option<RecordId>,
}

/// Outcome of a change to a delayed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedChange {
    /// Where it is now.
    pub state: DelayedState,
    /// Whether this call did that; false if it was there before.
    pub changed: bool,
    /// Its place in the log, if this call put it there.
    pub record: Option<RecordId>,
}

impl Admin {
    /// Messages of a partition that wait for their time, the next one first, behind `after`: `next`
    /// of an earlier answer, or zero. At most `max`.
    pub async fn delayed(
        &self,
        topic: &str,
        partition: u32,
        after: RecordId,
        max: usize,
    ) -> Result<DelayedMessages> {
        let at = Partition::new(TopicName::new(topic)?, partition);
        let page = self.engine().delayed(&at, after, ReadLimit::records(max.clamp(1, MAX_READ))).await?;
        let messages = page.messages.into_iter().map(|message| {
            let id = RecordId::ZERO;
            let content = message.content;
            let record = firth_engine::Record { id, attempt: 1, crashes: 0, content };
            let id = DelayedId { partition, id: message.id };
            DelayedMessage { id, due_in: message.ripe_in, record: Record::shown(at.clone(), record) }
        });
        Ok(DelayedMessages { messages: messages.collect(), next: page.next })
    }

    /// Cancels a delayed message: no group ever gets it. If its time has come already, the answer
    /// says [`Delivered`](DelayedState::Delivered). Cancelling twice changes nothing; a partition
    /// remembers its last 256 cancelled messages.
    pub async fn cancel_delayed(&self, topic: &str, id: DelayedId) -> Result<DelayedChange> {
        self.change_delayed(topic, id, DelayedAction::Cancel).await
    }

    /// Puts a delayed message into the log now, once. If it was cancelled or delivered before, the
    /// answer says so.
    pub async fn deliver_delayed(&self, topic: &str, id: DelayedId) -> Result<DelayedChange> {
        self.change_delayed(topic, id, DelayedAction::Deliver).await
    }

    async fn change_delayed(
        &self,
        topic: &str,
        id: DelayedId,
        action: DelayedAction,
    ) -> Result<DelayedChange> {
        let at = Partition::new(TopicName::new(topic)?, id.partition);
        let outcome = self.engine().change_delayed(&at, id.id, action).await?;
        let state = outcome.state;
        let changed = outcome.changed;
        let record = outcome.record;
        Ok(DelayedChange { state, changed, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let id = DelayedId { partition: 3, id: RecordId::new(17, 4) };
        assert_eq!(id.to_string().parse::<DelayedId>().unwrap(), id);
        for bad in ["", "3", "3/17", "x/1-2", "-1/1-2", "3/1-2/4"] {
            assert!(bad.parse::<DelayedId>().is_err(), "{bad:?}");
        }
    }
}
