//! Topics: their configuration, and the entry that makes one exist.
//!
//! A topic exists while its entry stands in the catalog. Partitions are made before the entry and
//! deleted before it goes, so that no client ever sees a topic with a partition missing. See
//! `store` for the order of steps.

mod auto;
mod build;
mod store;

pub use auto::AutoCreate;
pub use build::CreateTopic;
pub(crate) use store::{SPACE, Topics};

use crate::error::{Result, invalid};
use crate::partitioner::Mapping;
use firth_engine::facet::{Adopt, TrimTo};
use firth_engine::limits::{DEFAULT_PAYLOAD, MAX_PAYLOAD};
use firth_engine::{Partition, RecordId, TopicName};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most partitions of one topic.
pub const MAX_PARTITIONS: u32 = 4096;

/// How a topic is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopicConfig {
    /// How many partitions, 1 to [`MAX_PARTITIONS`]. They can only become more.
    pub partitions: u32,
    /// What to remove in time.
    pub retention: Retention,
    /// Let retention remove records that some group has not settled. Off: unsettled records always
    /// stay.
    pub lossy: bool,
    /// The largest payload in bytes, up to 16 MiB.
    pub max_payload: usize,
    /// How keys map to partitions.
    pub mapping: Mapping,
    /// How long dead letters are kept; `None`: until a program deletes them.
    pub dead_letters_for: Option<Duration>,
    /// The stream of others that the topic follows. Set by
    /// [`Broker::adopt_stream`](crate::Broker::adopt_stream), and fixed for its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Adopted>,
}

/// A stream of others that a topic follows, and what becomes of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adopted {
    /// The key of the stream.
    pub stream: String,
    /// The field that is the record's key.
    pub key_field: Option<String>,
    /// The field that is the payload; `None`: all fields as JSON.
    pub payload_field: Option<String>,
    /// Entries are removed from the stream once the topic has them.
    pub remove_entries: bool,
    /// The last entry that was left out, as `milliseconds-number`; empty: none.
    pub after: String,
}

impl Adopted {
    /// What the engine is told.
    fn request(&self) -> Result<Adopt> {
        let Self { stream, key_field, payload_field, remove_entries: removing, after } = self.clone();
        let after = if after.is_empty() { RecordId::ZERO } else { after.parse()? };
        Ok(Adopt { stream, after, key_field, payload_field, removing })
    }
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            partitions: 1,
            retention: Retention::Forever,
            lossy: false,
            max_payload: DEFAULT_PAYLOAD,
            mapping: Mapping::default(),
            dead_letters_for: None,
            adopted: None,
        }
    }
}

impl TopicConfig {
    /// Checks every value, or says what to change.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_PARTITIONS).contains(&self.partitions) {
            let error = invalid(format!("{} partitions; give 1 to {MAX_PARTITIONS}", self.partitions));
            return Err(error.with_field("partitions").with_limit(MAX_PARTITIONS.into()));
        }
        if self.max_payload > MAX_PAYLOAD {
            let size = self.max_payload;
            let error = invalid(format!("max_payload is {size} bytes; at most {MAX_PAYLOAD} are possible"));
            return Err(error.with_field("max_payload").with_limit(MAX_PAYLOAD as u64));
        }
        match &self.adopted {
            Some(_) if self.partitions != 1 => {
                Err(invalid("a topic that follows a stream has one partition"))
            }
            Some(adopted) if adopted.stream.is_empty() => Err(invalid("the key of the stream is empty")),
            _ => Ok(()),
        }
    }
}

/// What a topic forgets by itself. Records that some group has not settled stay anyway, unless the
/// topic is lossy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    /// Nothing.
    #[default]
    Forever,
    /// Records older than this.
    For(Duration),
    /// All but this many of the newest of each partition.
    Newest(u64),
    /// All but this many of the newest bytes of each partition, counted as they are stored: key,
    /// headers and (compressed) payload.
    Bytes(u64),
    /// Records that break any of several limits.
    Within(Limits),
}

/// Several limits at once; what is `None` is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// As [`Retention::For`].
    pub age: Option<Duration>,
    /// As [`Retention::Newest`].
    pub records: Option<u64>,
    /// As [`Retention::Bytes`].
    pub bytes: Option<u64>,
}

impl Retention {
    /// What to trim each partition to.
    pub(crate) fn marks(self) -> impl Iterator<Item = TrimTo> {
        let limits = match self {
            Self::Forever => Limits::default(),
            Self::For(age) => Limits { age: Some(age), ..Limits::default() },
            Self::Newest(count) => Limits { records: Some(count), ..Limits::default() },
            Self::Bytes(count) => Limits { bytes: Some(count), ..Limits::default() },
            Self::Within(limits) => limits,
        };
        let marks = [
            limits.age.map(TrimTo::OlderThan),
            limits.records.map(TrimTo::Keep),
            limits.bytes.map(TrimTo::KeepBytes),
        ];
        marks.into_iter().flatten()
    }
}

/// A topic as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// Its configuration.
    pub config: TopicConfig,
    /// When it was created, on the creator's clock.
    pub created: SystemTime,
    /// When its entry last changed, on the changer's clock.
    pub updated: SystemTime,
}

impl TopicInfo {
    /// All partitions.
    pub fn partitions(&self) -> impl ExactSizeIterator<Item = Partition> + use<> {
        let name = self.name.clone();
        (0..self.config.partitions).map(move |index| Partition::new(name.clone(), index))
    }
}

pub(crate) fn now_ms() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn time_of(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}
