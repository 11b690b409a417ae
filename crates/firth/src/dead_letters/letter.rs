//! A dead letter and its address.

use crate::error::{Error, Result, invalid};
use crate::record::Record;
use firth_engine::{FailedAttempt, GroupName, RecordId, facet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where a dead letter lies: the group that gave it up, and the place of its record. Written as
/// `billing/3/1700000000000-42`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadId {
    /// The group that gave it up.
    pub group: GroupName,
    /// The partition of the record.
    pub partition: u32,
    /// The record.
    pub id: RecordId,
}

impl DeadId {
    pub(super) fn of(letter: &facet::DeadLetter) -> Self {
        Self { group: letter.group.clone(), partition: letter.at.index, id: letter.id }
    }
}

impl fmt::Display for DeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group, self.partition, self.id)
    }
}

impl FromStr for DeadId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || invalid("a dead letter's id looks like billing/3/1700000000000-42").with_field("id");
        let mut parts = text.splitn(3, '/');
        let mut next = || parts.next().ok_or_else(wrong);
        let group = GroupName::new(next()?)?;
        let partition = next()?.parse().map_err(|_| wrong())?;
        Ok(Self { group, partition, id: next()?.parse()? })
    }
}

/// A record given up, with everything needed to understand and repeat it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its address.
    pub id: DeadId,
    /// The record, as the last attempt saw it.
    pub record: Record,
    /// How many consumers vanished while they had it.
    pub crashes: u32,
    /// Why it was given up, with the causes of its last failure.
    pub reason: String,
    /// Its last attempts, the newest first, at most
    /// [`MAX_FAILURES`](crate::limits::MAX_FAILURES): also those before a replay to the group. Of a
    /// letter that an older build wrote there are none.
    pub history: Vec<FailedAttempt>,
    /// How long ago.
    pub age: Duration,
}

impl DeadLetter {
    pub(crate) fn new(letter: facet::DeadLetter) -> Self {
        let facet::DeadLetter { at, group, id, content, attempts, crashes, reason, history, age } = letter;
        let partition = at.index;
        let record = Record::shown(at, firth_engine::Record { id, attempt: attempts, crashes, content });
        Self { id: DeadId { group, partition, id }, record, crashes, reason, history, age }
    }

    /// How often it was tried.
    pub fn attempts(&self) -> u32 {
        self.record.attempt()
    }
}

/// A page of dead letters, sorted by their addresses.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeadPage {
    /// The letters.
    pub letters: Vec<DeadLetter>,
    /// Continue after this one; `None`: that was all.
    pub next: Option<DeadId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let id = DeadId { group: GroupName::new("billing").unwrap(), partition: 3, id: RecordId::new(17, 4) };
        assert_eq!(id.to_string().parse::<DeadId>().unwrap(), id);
        for bad in ["", "billing", "billing/3", "billing/x/1-2", "b c/3/1-2", "billing/3/1"] {
            assert!(bad.parse::<DeadId>().is_err(), "{bad:?}");
        }
    }
}
