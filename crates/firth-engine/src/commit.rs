//! Verdicts, and the [`Commit`] that carries a batch of them to the engine in one fenced step.
//!
//! A commit states the whole progress (frontier and what is settled ahead of it) and not a
//! difference: the owner is alone, so it knows. The engine still refuses a commit that would
//! un-settle a record or that judges a record which was not open (invariant 6).

use crate::ahead::Ahead;
use crate::error::{Error, Result};
use crate::id::RecordId;
use crate::limits::{MAX_AHEAD, MAX_DELAY, MAX_REASON, MAX_VERDICTS};
use crate::record::{Content, Record};
use bytes::Bytes;
use smol_str::SmolStr;
use std::time::Duration;

/// What a handler decided about one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Ack,
    /// Try again after a while.
    Retry {
        /// How long from now.
        after: Duration,
        /// Why, for people.
        reason: SmolStr,
        /// Keep a copy of the content, so that the log need not keep the record until then.
        keep: bool,
    },
    /// Give it up.
    Dead {
        /// Why, for people.
        reason: SmolStr,
        /// Why, for programs.
        note: Option<Box<DeadNote>>,
    },
}

impl Verdict {
    /// Gives a record up, with a reason for people.
    pub fn dead(reason: impl Into<SmolStr>) -> Self {
        Self::Dead { reason: reason.into(), note: None }
    }
}

/// A header that a dead letter gets, in place of those of its name that the record has. A letter
/// whose headers would break a limit keeps those of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadNote {
    /// Name of the header.
    pub name: SmolStr,
    /// Its value.
    pub value: Bytes,
}

/// A record to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Which record.
    pub id: RecordId,
    /// How long from now.
    pub after: Duration,
    /// Why, for people.
    pub reason: SmolStr,
    /// The content, if the log need not keep the record until it is due.
    pub kept: Option<Box<Content>>,
}

/// A record to give up. It carries its content, because a lossy topic may have trimmed it
/// since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// The record as it was delivered.
    pub record: Record,
    /// Why, for people.
    pub reason: SmolStr,
}

/// A batch of verdicts and the progress after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Everything up to here has left the log's side: done, due or dead.
    pub frontier: RecordId,
    /// What has left it beyond the frontier. It may begin right behind the frontier: a new owner
    /// knows from the stored progress that these are settled before it has read their ids.
    pub ahead: Ahead,
    /// Due records that are now done.
    pub done: Vec<RecordId>,
    /// Records (from the log or due) to try again.
    pub retries: Vec<Retry>,
    /// Records (from the log or due) to give up.
    pub dead: Vec<Dead>,
    /// The newest record that the owner has read, or zero. If the log lost it in a crash or a
    /// failover, numbers may have been given again, and the commit is refused as
    /// [`ErrorKind::WentBack`](crate::ErrorKind::WentBack): it would settle records that nothing
    /// has seen.
    pub seen: RecordId,
    /// The owner's word that it starts no record of the log with a larger number before its next
    /// commit. If it vanishes, its successor knows which records may have been in its hands. 0: it
    /// gives none.
    pub reach: u64,
}

impl Commit {
    /// A commit that only moves the frontier.
    pub fn up_to(frontier: RecordId) -> Self {
        Self { frontier, ..Self::default() }
    }

    /// How many records it judges one by one.
    pub fn verdicts(&self) -> usize {
        self.done.len() + self.retries.len() + self.dead.len()
    }

    /// Checks everything that needs no stored state.
    pub fn check(&self) -> Result<()> {
        if self.verdicts() > MAX_VERDICTS {
            let count = self.verdicts();
            return Err(Error::invalid(format!("{count} verdicts in one commit; at most {MAX_VERDICTS}")));
        }
        if self.ahead.runs().len() > MAX_AHEAD {
            return Err(Error::invalid(format!(
                "more than {MAX_AHEAD} runs ahead of the frontier: settle the oldest record first"
            )));
        }
        if self.ahead.bounds().is_some_and(|(first, _)| first <= self.frontier.seq) {
            return Err(Error::invalid("a record ahead of the frontier is not beyond it"));
        }
        self.retries.iter().try_for_each(|retry| check_delay(retry.after))?;
        let mut ids: Vec<_> = self.judged().collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::invalid(format!("two verdicts for record {}", pair[0]))),
            None => Ok(()),
        }
    }

    /// Every record with a verdict of its own.
    pub fn judged(&self) -> impl Iterator<Item = RecordId> + '_ {
        let retries = self.retries.iter().map(|retry| retry.id);
        let dead = self.dead.iter().map(|dead| dead.record.id);
        self.done.iter().copied().chain(retries).chain(dead)
    }
}

pub(crate) fn check_delay(after: Duration) -> Result<()> {
    if after > MAX_DELAY {
        return Err(Error::invalid("the delay is longer than 366 days"));
    }
    Ok(())
}

/// Cuts a reason at a character so that it fits [`MAX_REASON`].
pub fn cut_reason(reason: &str) -> &str {
    match reason.len() {
        0..=MAX_REASON => reason,
        _ => &reason[..reason.floor_char_boundary(MAX_REASON)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_judged_once_per_commit() {
        let id = RecordId::new(1, 1);
        let retry = Retry { id, after: Duration::ZERO, reason: SmolStr::default(), kept: None };
        let commit = Commit { frontier: id, done: vec![id], retries: vec![retry], ..Commit::default() };
        assert!(commit.check().is_err());
    }

    #[test]
    fn what_lies_up_to_the_frontier_is_not_ahead_of_it() {
        let mut commit = Commit::up_to(RecordId::new(1, 5));
        commit.ahead.insert(6);
        assert!(commit.check().is_ok(), "a new owner may not have read that far yet");
        commit.ahead.insert(5);
        assert!(commit.check().is_err());
    }

    #[test]
    fn a_reason_is_cut_at_a_character() {
        let reason = "ä".repeat(1000);
        assert_eq!(cut_reason(&reason).len(), 1024);
        assert!(cut_reason(&format!("x{reason}")).len() == 1023);
    }
}
