//! Dead letters: records that a group gave up, kept with their reason until an operator decides.

use super::Reply;
use crate::failures::FailedAttempt;
use crate::id::RecordId;
use crate::name::{GroupName, Partition};
use crate::record::Content;
use std::time::Duration;

/// The dead letters of one group in one partition, by the id of the record they were.
pub trait DeadLetters {
    /// Dead letters after `after` in the order of their ids, at most `max` and about
    /// [`MAX_BATCH_BYTES`](crate::limits::MAX_BATCH_BYTES); at least one if there is any. Fewer
    /// than `max` do not mean that these are all: none does.
    fn dead<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<DeadLetter>>;

    /// The ids alone of dead letters after `after`, in order, at most `max`; none means that there
    /// are no more.
    fn dead_ids<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<RecordId>>;

    /// Takes dead letters back, each in one step with its removal: to the group that failed (due at
    /// once, attempt 1, content kept aside, invisible to other groups), or appended again for
    /// everyone with its (first) origin. Ids without a dead letter are skipped. Answers how many
    /// were taken. At most [`MAX_VERDICTS`](crate::limits::MAX_VERDICTS) ids.
    fn replay<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        ids: &'a [RecordId],
        to: Replay,
    ) -> Reply<'a, usize>;

    /// As [`replay`](Self::replay) of one dead letter, with other content in place of its own;
    /// false if there is none, and then nothing happens. Should its record come anyway (after a
    /// reset), it comes as it was.
    fn replay_edited<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        edit: Edit,
        to: Replay,
    ) -> Reply<'a, bool>;

    /// Deletes dead letters; answers how many there were. At most
    /// [`MAX_VERDICTS`](crate::limits::MAX_VERDICTS) ids.
    fn delete_dead<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        ids: &'a [RecordId],
    ) -> Reply<'a, usize>;

    /// Deletes dead letters that died longer ago than `age`; answers how many. Bounded per call:
    /// repeat until it answers zero.
    fn expire_dead<'a>(&'a self, at: &'a Partition, group: &'a GroupName, age: Duration) -> Reply<'a, usize>;
}

/// What stands in for a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The letter.
    pub id: RecordId,
    /// What to replay instead of its content.
    pub content: Content,
}

/// Who gets a dead letter again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Only the group that gave it up.
    Group,
    /// Everyone: it is appended to its partition again.
    Everyone,
}

/// A record given up, with everything needed to understand and repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The partition where it stood.
    pub at: Partition,
    /// The group that gave it up.
    pub group: GroupName,
    /// The id of the record.
    pub id: RecordId,
    /// Key, payload, headers, time.
    pub content: Content,
    /// How often it was tried.
    pub attempts: u32,
    /// How many owners vanished while they had it.
    pub crashes: u32,
    /// Why it was given up.
    pub reason: String,
    /// Its last attempts, the newest first, at most
    /// [`MAX_FAILURES`](crate::limits::MAX_FAILURES): also those before a replay to the group. Of a
    /// letter that an older build wrote there are none.
    pub history: Vec<FailedAttempt>,
    /// How long ago.
    pub age: Duration,
}
