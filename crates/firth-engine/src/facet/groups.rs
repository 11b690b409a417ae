//! Groups: each one's progress in a partition, kept by exactly one owner at a time.

use super::Reply;
use crate::commit::Commit;
use crate::hold::{Hold, LeaseInfo};
use crate::id::RecordId;
use crate::name::{GroupName, Partition};
use crate::progress::Progress;
use crate::record::{Content, Record};
use std::time::Duration;

/// Progress of groups. Per group a record is in exactly one place: waiting or in flight (after the
/// frontier and not ahead), due, dead, or done. No crash between two calls moves it out of all of
/// them.
///
/// - `open`, `commit` and `due` take the [`Hold`] of the lease
///   [`LeaseName::group`](crate::LeaseName::group). If the stored lease has another epoch or token,
///   the step changes nothing and answers `Fenced`. An expired lease still counts until another
///   member acquires it: safety rests on the epoch, not on time.
/// - Group state is per group: retries, dead letters and replays of one are invisible to another.
pub trait Groups {
    /// Makes a group that starts at `from`; true if it was not there before, otherwise nothing
    /// changes.
    ///
    /// With a hold, of this group's lease or of another group's on the same partition, only its
    /// newest holder does: for anyone else the answer is `Fenced`, and nothing changes.
    fn create_group<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        from: StartPosition,
        by: Option<&'a Hold>,
    ) -> Reply<'a, bool>;

    /// Hands the group's progress to the owner, and makes it if it is missing.
    ///
    /// Due records that an earlier owner (or an earlier open of this one) had taken are due again
    /// at once. If the earlier owner neither released its lease nor was revoked, it counts as
    /// crashed: `crashes` of the progress and of each taken record grow by one. Opening again with
    /// the same hold counts nothing.
    fn open<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        from: StartPosition,
        hold: &'a Hold,
    ) -> Reply<'a, Progress>;

    /// Stores a batch of verdicts in one step.
    ///
    /// - The frontier and the set ahead may only grow and must lie within the log, else `Invalid`.
    /// - A retried or dead record must have been open before: taken from due, or unsettled in the
    ///   log and passed by this commit. A `done` record must have been due. Else `Invalid`, and
    ///   nothing changes.
    /// - A retried record keeps its id and place; only an index entry is made. Its attempt count
    ///   grows by one.
    /// - A dead letter is written and the record settled in this same step.
    /// - More than [`MAX_DUE`](crate::limits::MAX_DUE) due records are `Overloaded`.
    fn commit<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        hold: &'a Hold,
        commit: Commit,
    ) -> Reply<'a, Committed>;

    /// Takes due records in the order of their due times: at least one if any is due, maybe fewer
    /// than asked for although more are (then `next` is zero). They are in flight until a commit
    /// settles them or the group is opened again. A due record whose content a lossy trim removed
    /// is dropped and counted in `lost`.
    fn due<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        hold: &'a Hold,
        take: TakeDue<'a>,
    ) -> Reply<'a, Due>;

    /// The group in figures; exact.
    fn status<'a>(&'a self, at: &'a Partition, group: &'a GroupName) -> Reply<'a, GroupStatus>;

    /// The names of all groups of a partition, sorted.
    fn groups<'a>(&'a self, at: &'a Partition) -> Reply<'a, Vec<GroupName>>;

    /// Due records (also those taken) in the order of their ids, after `after`.
    fn pending<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<Pending>>;

    /// Moves the group to another position and fences its owner in the same step. Dead letters
    /// stay. Nothing else that waited is touched unless `drop_due` says so. With a hold, only its
    /// newest holder does, as in [`create_group`](Self::create_group).
    ///
    /// If many due records lie behind the position, an engine may go back in several steps. A reset
    /// that is cut off between two of them leaves the group at a position on the way: records
    /// behind it wait again, all others are as they were.
    fn reset<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        reset: Reset,
        by: Option<&'a Hold>,
    ) -> Reply<'a, RecordId>;

    /// Deletes the group with its due records and dead letters, and fences its owner; true if it
    /// was there.
    ///
    /// With a hold, only its newest holder does, as in [`create_group`](Self::create_group).
    fn delete_group<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        by: Option<&'a Hold>,
    ) -> Reply<'a, bool>;
}

/// Where a group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartPosition {
    /// At the oldest record that is still there.
    #[default]
    Start,
    /// After the newest record.
    End,
    /// After this id (for a point in time see [`RecordId::before_ms`]).
    After(RecordId),
    /// At the first record that is not older than this.
    Age(Duration),
    /// Where the group is already. A missing group is `NotFound`, and none is made.
    Existing,
}

/// What the owner learns from a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// How many records are due now or later, taken ones included.
    pub due: u64,
    /// Time until the next record that the owner has not taken is due; zero if it is due already.
    pub next_due: Option<Duration>,
}

/// Which due records to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeDue<'a> {
    /// Largest number of records in the answer.
    pub max: usize,
    /// The owner still has the content of these: it is not read again.
    pub known: &'a [RecordId],
}

impl TakeDue<'_> {
    /// Up to `max` records, with their content.
    pub fn up_to(max: usize) -> Self {
        Self { max, known: &[] }
    }
}

/// Due records, taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The records.
    pub records: Vec<DueRecord>,
    /// How many were dropped because a lossy trim had removed them.
    pub lost: u64,
    /// Time until the next record that the owner has not taken is due; zero if it is due already.
    pub next: Option<Duration>,
}

/// A due record, taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRecord {
    /// Which record.
    pub id: RecordId,
    /// The attempt that begins.
    pub attempt: u32,
    /// Owners that vanished while they had it.
    pub crashes: u32,
    /// Its content; `None` if the owner said that it knows it.
    pub content: Option<Content>,
}

impl DueRecord {
    /// The whole record. If it came without content, `known` gives the content that the owner has;
    /// `None` if the owner has none either.
    pub fn with(self, known: impl FnOnce() -> Option<Content>) -> Option<Record> {
        let Self { id, attempt, crashes, content } = self;
        let content = content.or_else(known)?;
        Some(Record { id, attempt, crashes, content })
    }
}

/// A group in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Everything up to here is done, due or dead.
    pub frontier: RecordId,
    /// Records settled beyond the frontier.
    pub ahead: u64,
    /// Records of the log that are waiting or in flight.
    pub waiting: u64,
    /// Records due, now or later.
    pub due: u64,
    /// When the next one is due; zero if it is already.
    pub next_due: Option<Duration>,
    /// Dead letters.
    pub dead: u64,
    /// Owners in a row that vanished without moving the frontier.
    pub crashes: u32,
    /// How long ago the oldest waiting record was appended; `None` if none waits.
    pub oldest: Option<Duration>,
    /// The group's lease, if there ever was one.
    pub owner: Option<LeaseInfo>,
}

impl GroupStatus {
    /// Records that are not settled.
    pub fn lag(&self) -> u64 {
        self.waiting + self.due
    }
}

/// A record that waits for its next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Which record.
    pub id: RecordId,
    /// The attempt that comes next, or that is running.
    pub attempt: u32,
    /// Owners that vanished while they had it.
    pub crashes: u32,
    /// When it is due; `None` while the owner has it.
    pub due_in: Option<Duration>,
    /// How long ago it was appended.
    pub age: Duration,
    /// For how long its owner has had it; `None` while it waits.
    pub idle: Option<Duration>,
    /// Why it failed last.
    pub reason: String,
    /// Whether its content is kept aside.
    pub kept: bool,
}

/// Where to move a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The new position.
    pub to: StartPosition,
    /// Forget the records that wait for a retry. Otherwise they stay due, except those that the new
    /// position delivers anyway.
    pub drop_due: bool,
}
