//! Streams of others: a plain Redis stream that other programs write, followed by a partition.

use super::{Reply, StartPosition};
use crate::id::RecordId;
use crate::name::Partition;
use std::time::Duration;

/// The header of a followed record that tells the id of its entry in the stream.
pub const STREAM_ID: &str = "redis-id";
/// The header of a followed record whose payload is all fields of its entry as JSON, although a
/// single field was wanted: the entry lacks that field, or its other fields break the limits of
/// headers or keys.
pub const AS_JSON: &str = "redis-as-json";
/// The header of a followed record whose entry is too large for a record: it tells how many bytes,
/// and the payload is empty.
pub const TOO_LARGE: &str = "redis-too-large";

/// Partitions that follow a stream of others.
///
/// - Every entry becomes one record, in order, and never two:
///   [`Log::promote_due`](super::Log::promote_due) copies what is new in one step with the mark of
///   how far it came. Groups, retries, dead letters and retention work on the copy.
/// - The stream itself is only read. It is neither trimmed nor are its groups touched, unless
///   [`Adopt::removing`] says so.
/// - A stream that was deleted and made anew with smaller ids is followed from its start again.
///
/// Only Redis and Valkey have such streams; elsewhere everything else here is `Unsupported`.
pub trait Streams {
    /// The entry after which to follow a stream that is adopted now. The stream may be missing yet;
    /// a key that holds something else is `Invalid`.
    fn stream_mark<'a>(&'a self, stream: &'a str, from: StartPosition) -> Reply<'a, RecordId>;

    /// Makes a partition follow a stream, or nothing; the same again changes nothing. Of all who
    /// say so the one with the highest `rank` is obeyed, whenever it comes. False, and nothing
    /// changes, if one with a higher rank said otherwise, or if the partition holds records and was
    /// not following this stream. Where there are no streams, following nothing is always true.
    fn adopt<'a>(&'a self, at: &'a Partition, adopt: Option<Adopt>, rank: u64) -> Reply<'a, bool>;

    /// A consumer group of the stream that a partition follows, as the server tells it; `NotFound`
    /// if there is none.
    fn stream_group<'a>(&'a self, at: &'a Partition, group: &'a str) -> Reply<'a, StreamGroup>;
}

/// Which stream to follow, and what to make of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopt {
    /// The key of the stream.
    pub stream: String,
    /// The last entry that is left out; see [`Streams::stream_mark`].
    pub after: RecordId,
    /// The field whose value is the record's key, if the entry has it.
    pub key_field: Option<String>,
    /// The field whose value is the payload; other fields become headers. `None`: the payload is
    /// all fields as a JSON object, a field that occurs more than once as a list, a value that is
    /// no UTF-8 text as `{"$hex":"00ff"}`.
    pub payload_field: Option<String>,
    /// Remove entries from the stream once the partition has them: it is moved instead of copied.
    pub removing: bool,
}

/// A consumer group of a followed stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamGroup {
    /// The last entry that was handed to a consumer of it.
    pub delivered: RecordId,
    /// Entries that were handed out and not acknowledged, in order.
    pub pending: Vec<StreamPending>,
}

/// An entry that a consumer of a stream's group has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPending {
    /// Its id in the stream.
    pub id: RecordId,
    /// Who has it.
    pub consumer: String,
    /// For how long.
    pub idle: Duration,
    /// How often it was handed out.
    pub deliveries: u64,
}
