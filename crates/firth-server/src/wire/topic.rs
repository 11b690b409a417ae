//! Topics on the wire.

use super::lenient::{given_or_null, maybe_whole};
use super::{millis, unix_ms};
use firth::{Limits, Mapping, PartitionInfo, RecordId, Retention, TopicStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a topic shall be; everything has a default. A limit of the retention is absent, null or a
/// number: to be left as it is, to be ended, or to be set.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TopicSpec {
    /// How many; `topics.partitions` of the server unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4096)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) partitions: Option<u32>,
    /// Records are removed after this long, once every group has settled them; null: no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "given_or_null")]
    pub(crate) retention_ms: Option<Option<u64>>,
    /// All but this many of the newest records of each partition are removed, once every group has
    /// settled them; null: no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "given_or_null")]
    pub(crate) retention_records: Option<Option<u64>>,
    /// All but this many of the newest bytes of each partition are removed, once every group has
    /// settled them; null: no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "given_or_null")]
    pub(crate) retention_bytes: Option<Option<u64>>,
    /// The largest payload in bytes; 1 MiB unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16_777_216)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max_payload: Option<usize>,
    /// Let retention remove what some group has not settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lossy: Option<bool>,
    /// Dead letters are removed after this long; they stay for ever unless set, and with null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "given_or_null")]
    pub(crate) dead_letters_ms: Option<Option<u64>>,
    /// How keys find their partitions; `consistent` unless set, and fixed from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mapping: Option<KeyMapping>,
}

/// How keys find their partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyMapping {
    /// More partitions move as few keys as possible.
    Consistent,
    /// The hash modulo the number of partitions.
    Modulo,
}

impl From<KeyMapping> for Mapping {
    fn from(mapping: KeyMapping) -> Self {
        match mapping {
            KeyMapping::Consistent => Self::Consistent,
            KeyMapping::Modulo => Self::Modulo,
        }
    }
}

impl From<Mapping> for KeyMapping {
    fn from(mapping: Mapping) -> Self {
        match mapping {
            Mapping::Consistent => Self::Consistent,
            Mapping::Modulo => Self::Modulo,
        }
    }
}

/// What shall change of a topic; partitions can only become more.
pub(crate) type TopicChange = TopicSpec;

/// A topic in figures.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) partitions: u32,
    /// How many records it holds.
    pub(crate) records: u64,
    /// Records ever stored, removed ones included: it only grows, so differences are rates.
    #[serde(default)]
    pub(crate) appended: u64,
    /// How many messages wait for their time.
    pub(crate) delayed: u64,
    pub(crate) max_payload: usize,
    #[serde(default)]
    pub(crate) retention_ms: Option<u64>,
    #[serde(default)]
    pub(crate) retention_records: Option<u64>,
    #[serde(default)]
    pub(crate) retention_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) lossy: bool,
    #[serde(default)]
    pub(crate) dead_letters_ms: Option<u64>,
    #[serde(default)]
    pub(crate) mapping: Option<KeyMapping>,
    /// When it was made, as Unix time on the clock of the process that made it.
    #[serde(default)]
    pub(crate) created_ms: u64,
    /// When its settings last changed.
    #[serde(default)]
    pub(crate) updated_ms: u64,
    /// Each partition, where one topic is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<TopicPart>,
}

/// A partition in figures.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicPart {
    pub(crate) partition: u32,
    pub(crate) records: u64,
    /// The newest record that was removed: what is kept comes after it.
    pub(crate) trimmed: Option<String>,
    /// The newest record.
    pub(crate) last: Option<String>,
    pub(crate) delayed: u64,
}

impl From<&PartitionInfo> for TopicPart {
    fn from(part: &PartitionInfo) -> Self {
        let shown = |id: RecordId| (id != RecordId::ZERO).then(|| id.to_string());
        Self {
            partition: part.index,
            records: part.records,
            trimmed: shown(part.trimmed),
            last: shown(part.last),
            delayed: part.delayed,
        }
    }
}

impl Topic {
    /// With each of its partitions.
    pub(crate) fn in_detail(status: TopicStatus) -> Self {
        let parts = status.partitions.iter().map(TopicPart::from).collect();
        Self { parts, ..status.into() }
    }
}

impl From<TopicStatus> for Topic {
    fn from(status: TopicStatus) -> Self {
        let config = &status.info.config;
        let kept = limits(config.retention);
        Self {
            name: status.info.name.to_string(),
            partitions: config.partitions,
            records: status.records(),
            appended: status.partitions.iter().map(|partition| partition.last.seq).sum(),
            delayed: status.delayed(),
            max_payload: config.max_payload,
            retention_ms: kept.age.map(millis),
            retention_records: kept.records,
            retention_bytes: kept.bytes,
            lossy: config.lossy,
            dead_letters_ms: config.dead_letters_for.map(millis),
            mapping: Some(config.mapping.into()),
            created_ms: unix_ms(status.info.created),
            updated_ms: unix_ms(status.info.updated),
            parts: Vec::new(),
        }
    }
}

/// A retention as its limits.
pub(crate) fn limits(retention: Retention) -> Limits {
    match retention {
        Retention::Forever => Limits::default(),
        Retention::For(age) => Limits { age: Some(age), ..Limits::default() },
        Retention::Newest(records) => Limits { records: Some(records), ..Limits::default() },
        Retention::Bytes(bytes) => Limits { bytes: Some(bytes), ..Limits::default() },
        Retention::Within(limits) => limits,
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Topics {
    pub(crate) topics: Vec<Topic>,
    /// Pass it as `after` of the next call; null: that was all.
    #[serde(default)]
    pub(crate) next: Option<String>,
}

/// How far to trim: exactly one of the two.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrimRequest {
    /// Keep this many of the newest records of each partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) keep: Option<u64>,
    /// Remove what is older than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) older_than_ms: Option<u64>,
    /// Remove also what some group has not settled.
    pub(crate) lossy: bool,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TrimmedReport {
    pub(crate) removed: u64,
    /// On how many partitions some group's unsettled records stayed.
    pub(crate) held_back: u64,
}

/// Messages that wait for their time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Delayed {
    pub(crate) count: u64,
    /// When the first of them can be consumed.
    pub(crate) next_ms: Option<u64>,
    pub(crate) partitions: Vec<DelayedPart>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DelayedPart {
    pub(crate) partition: u32,
    pub(crate) count: u64,
    pub(crate) next_ms: Option<u64>,
}

impl From<TopicStatus> for Delayed {
    fn from(status: TopicStatus) -> Self {
        let parts: Vec<_> = status
            .partitions
            .iter()
            .map(|part| DelayedPart {
                partition: part.index,
                count: part.delayed,
                next_ms: part.next_ripe.map(millis),
            })
            .collect();
        let next_ms = parts.iter().filter_map(|part| part.next_ms).min();
        Self { count: status.delayed(), next_ms, partitions: parts }
    }
}
