//! The log: partitions of records in append order.

use super::{DelayedAction, DelayedOutcome, DelayedPage, NewMark, Reply, SourceMark};
use crate::commit::check_delay;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::id::RecordId;
use crate::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use crate::name::{Partition, ProducerName, SourceName};
use crate::record::{Content, Record};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Partitions: made, appended to, read, trimmed, deleted.
///
/// - A partition exists only after [`create_partition`](Log::create_partition): appending to a
///   missing one is `NotFound`, so that a late producer cannot bring a deleted topic back to life.
/// - Ids grow with each record; `seq` has no holes; `ms` never goes back, even if the clock does.
/// - A reader sees a record only once it is as durable as its acknowledgement says.
pub trait Log {
    /// Makes a partition; true if it was not there before.
    fn create_partition<'a>(&'a self, at: &'a Partition) -> Reply<'a, bool> {
        self.create_partition_as(at, 0)
    }

    /// Deletes a partition with its groups, due records, delayed messages and dead letters; true if
    /// it was there. A partition made again under this name is empty and starts at `seq` 1.
    fn delete_partition<'a>(&'a self, at: &'a Partition) -> Reply<'a, bool> {
        self.delete_partition_as(at, u64::MAX)
    }

    /// Makes a partition under a rank, which tells a late request from a newer one. A partition
    /// with the same or a higher rank stays as it is. One with a lower rank is a former life: the
    /// new one replaces it, and nothing of it remains. True if the partition is new.
    fn create_partition_as<'a>(&'a self, at: &'a Partition, rank: u64) -> Reply<'a, bool>;

    /// As [`delete_partition`](Log::delete_partition), for a partition of a lower rank than this:
    /// one that was made since stays as it is.
    fn delete_partition_as<'a>(&'a self, at: &'a Partition, rank: u64) -> Reply<'a, bool>;

    /// Appends a batch: all of it in order, or nothing. See [`Append`] for delays, idempotence and
    /// source marks.
    fn append<'a>(&'a self, at: &'a Partition, batch: Append) -> Reply<'a, Appended>;

    /// What the partition keeps of a source: retention and trims leave it alone, and it goes with
    /// the partition. `None` if the partition never heard of the source.
    fn mark<'a>(&'a self, at: &'a Partition, source: &'a SourceName) -> Reply<'a, Option<SourceMark>>;

    /// Forgets a source with its mark and its epoch, to make room for another; true if the
    /// partition knew it. A reader of this source that still runs is not fenced afterwards.
    fn forget_source<'a>(&'a self, at: &'a Partition, source: &'a SourceName) -> Reply<'a, bool>;

    /// Records after `after`, in order, at most `max`; at least one if there is any. Trimmed
    /// records are skipped silently: compare `seq` to see how many. `attempt` is 1 and `crashes` 0
    /// on all of them.
    ///
    /// A crash or a failover may take the newest records back, and their numbers are then given
    /// again. So `after` must not name a record that the log lost: if the log ends before it, or
    /// has its number behind it, the answer is [`ErrorKind::WentBack`](crate::ErrorKind::WentBack).
    fn read<'a>(&'a self, at: &'a Partition, after: RecordId, max: ReadLimit) -> Reply<'a, Vec<Record>>;

    /// Waits at the end of the log: records after `after` as [`read`](Log::read) gives them, as
    /// soon as there are any; none after about a second without. Answers one way through the server
    /// sooner than a hint and a read can. `None` means that the engine cannot wait here and now:
    /// use a [hint](crate::Hint).
    fn tail<'a>(
        &'a self,
        at: &'a Partition,
        after: RecordId,
        max: ReadLimit,
    ) -> Reply<'a, Option<Vec<Record>>> {
        let _ = (at, after, max);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// First and last record, and how many messages are delayed.
    fn bounds<'a>(&'a self, at: &'a Partition) -> Reply<'a, Bounds>;

    /// Messages that wait for their time, in the order of these times, behind `after`: `next` of an
    /// earlier page, or zero. At most `max`, at least one if there is any.
    fn delayed<'a>(&'a self, at: &'a Partition, after: RecordId, max: ReadLimit) -> Reply<'a, DelayedPage>;

    /// Cancels a delayed message, or puts it into the log now, in one step with the look at where
    /// it is: exactly one of this call, another one and [`promote_due`](Log::promote_due) decides.
    /// A cancelled message never enters the log. The same call again changes nothing, and says
    /// where the message is; the partition remembers its last 256 cancelled ones.
    fn change_delayed<'a>(
        &'a self,
        at: &'a Partition,
        id: RecordId,
        action: DelayedAction,
    ) -> Reply<'a, DelayedOutcome>;

    /// Moves delayed messages whose time has come into the log, ordered by that time, at most
    /// `max`, in one step: a message is delayed or in the log, never both, never neither. Anyone
    /// may call it at any time. A partition that follows a stream of others
    /// ([`Streams`](super::Streams)) takes in what is new there, too.
    fn promote_due<'a>(&'a self, at: &'a Partition, max: usize) -> Reply<'a, Promoted>;

    /// Removes the oldest records up to a mark, but never one that some group has not settled (its
    /// frontier, or a due record that is not kept aside, stands before it), unless the call says
    /// `lossy`.
    fn trim<'a>(&'a self, at: &'a Partition, trim: Trim) -> Reply<'a, Trimmed>;
}

/// A batch to append.
#[derive(Clone, Debug, Default)]
pub struct Append {
    /// 1 to [`MAX_BATCH`] records of together at most [`MAX_BATCH_BYTES`] (a single record may be
    /// larger); with a mark there may be none. Shared, so that a caller that may have to send them
    /// again need not copy them.
    pub records: Arc<Vec<Content>>,
    /// How long the batch stays invisible. Zero: it is in the log at once. Otherwise it gets its
    /// ids when it becomes due.
    pub after: Duration,
    /// Makes the append idempotent.
    pub producer: Option<ProducerSeq>,
    /// Moves the mark of a source in the same step. Not together with a delay or a producer.
    pub mark: Option<NewMark>,
    /// What the acknowledgement means, if something else than the engine's own choice.
    /// `Unsupported` where the engine cannot give it.
    pub durability: Option<Durability>,
}

/// Says which batch of which producer this is, so that sending it again changes nothing.
///
/// `first` numbers the first record of the batch; the next batch starts at `first + records`. What
/// was appended before is answered with the same ids (for the last
/// [`PRODUCER_WINDOW`](crate::limits::PRODUCER_WINDOW) batches; older ones without ids). A gap, or
/// a batch that overlaps an earlier one in part, is `Invalid`: something before it is missing
/// ([`SequenceGap`]). An unknown producer may start anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerSeq {
    /// The producer. Choose a fresh name per process.
    pub name: ProducerName,
    /// The number of the batch's first record.
    pub first: u64,
    /// How long the partition remembers the name after this batch, however many other names it
    /// sees. This holds while fewer than [`MAX_PRODUCERS`](crate::limits::MAX_PRODUCERS) names ask
    /// for as much. If zero, the partition remembers the name until it has seen that many other
    /// names.
    pub keep: Duration,
}

/// The source of the error that refuses a batch because an earlier one is missing. The engine has
/// nothing of this producer from `expected` on: it never got those batches, or it lost them in a
/// crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceGap {
    /// The number of the record that comes next.
    pub expected: u64,
}

impl SequenceGap {
    /// The gap that an append was refused for, if it was.
    pub fn of(error: &Error) -> Option<Self> {
        std::error::Error::source(error)?.downcast_ref().copied()
    }

    pub(crate) fn refusal(self) -> Error {
        let context = "a batch of the producer is missing: send it first, or start under another name";
        Error::invalid(context).with_source(self)
    }
}

impl fmt::Display for SequenceGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the record with number {} comes next", self.expected)
    }
}

impl std::error::Error for SequenceGap {}

impl Append {
    /// An append of `records`, visible at once.
    pub fn new(records: impl Into<Vec<Content>>) -> Self {
        Self { records: Arc::new(records.into()), ..Self::default() }
    }

    /// Checks everything that needs no stored state.
    pub fn check(&self) -> Result<()> {
        let count = self.records.len();
        if count == 0 && self.mark.is_none() || count > MAX_BATCH {
            return Err(Error::invalid(format!("a batch of {count} records; give 1 to {MAX_BATCH}")));
        }
        if let Some(mark) = &self.mark {
            if self.producer.is_some() || !self.after.is_zero() {
                return Err(Error::invalid("a batch with a source mark has no producer and no delay"));
            }
            mark.check(count)?;
        }
        let bytes: usize = self.records.iter().map(Content::packed_len).sum();
        if count > 1 && bytes > MAX_BATCH_BYTES {
            return Err(Error::invalid(format!(
                "a batch of {bytes} bytes; at most {MAX_BATCH_BYTES}: split it"
            )));
        }
        if self.producer.as_ref().is_some_and(|p| p.first.checked_add(count as u64).is_none()) {
            return Err(Error::invalid("the producer's sequence number is too large"));
        }
        check_delay(self.after)?;
        check_delay(self.producer.as_ref().map_or(Duration::ZERO, |producer| producer.keep))?;
        self.records.iter().try_for_each(Content::check)
    }
}

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The first record's id; the others follow without a hole. `None` when delayed, without
    /// records, or a duplicate that has a mark or is too old to remember.
    pub first: Option<RecordId>,
    /// How many records.
    pub count: u64,
    /// Whether the producer had sent this batch before, or the mark of the source covers it; then
    /// nothing was appended.
    pub duplicate: bool,
}

impl Appended {
    /// The ids of all records, if they have ids yet.
    pub fn ids(&self) -> impl Iterator<Item = RecordId> + use<> {
        let first = self.first;
        (0..self.count).filter_map(move |offset| Some(first?.plus(offset)))
    }
}

/// How much to read at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimit {
    /// Records, at most [`MAX_READ`](crate::limits::MAX_READ).
    pub records: usize,
    /// Bytes of packed content; the first record is returned even if it is larger.
    pub bytes: usize,
}

impl ReadLimit {
    /// At most `records`, and 8 MiB.
    pub const fn records(records: usize) -> Self {
        Self { records, bytes: MAX_BATCH_BYTES }
    }
}

/// The ends of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The newest record that was trimmed away; [`RecordId::ZERO`] if none was. Everything kept
    /// comes after it.
    pub trimmed: RecordId,
    /// The newest record; [`RecordId::ZERO`] before the first append. Stays when everything is
    /// trimmed.
    pub last: RecordId,
    /// How many messages are delayed.
    pub delayed: u64,
    /// When the first of them becomes due.
    pub next_ripe: Option<Duration>,
}

impl Bounds {
    /// How many records the log holds.
    pub fn len(&self) -> u64 {
        self.last.seq - self.trimmed.seq
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What promotion did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// How many messages entered the log.
    pub moved: usize,
    /// When the next one is ready; zero if more are ready now.
    pub next: Option<Duration>,
}

/// How far to trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimTo {
    /// Remove everything up to and including this id.
    Id(RecordId),
    /// Keep this many of the newest records.
    Keep(u64),
    /// Keep the newest records that are together at most this many bytes of packed content.
    KeepBytes(u64),
    /// Remove what is older than this.
    OlderThan(Duration),
}

/// A request to trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// How far.
    pub to: TrimTo,
    /// Remove also what some group has not settled. Its owner sees a gap in `seq`.
    pub lossy: bool,
}

/// What trimming did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// How many records were removed.
    pub removed: u64,
    /// Everything up to here is gone.
    pub trimmed: RecordId,
    /// Whether some group held it back.
    pub held_back: bool,
}
