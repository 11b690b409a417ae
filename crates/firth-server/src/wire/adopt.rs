//! Adopting a Redis stream, on the wire.

use super::Start;
use super::lenient::{maybe_whole, objects};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which stream a topic shall follow, and how; everything has a default.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Adoption {
    /// The key of the stream; the topic's name unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) stream: Option<String>,
    /// The field whose value is the key of the record; none unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) key_field: Option<String>,
    /// The field whose value is the payload; a JSON object of all fields unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) payload_field: Option<String>,
    /// From which entry on; from the oldest unless set.
    pub(crate) start: Start,
    /// Instead of `start`: with entries that are not older than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) age_ms: Option<u64>,
    /// Move the entries instead of copying them: other readers of the stream miss them.
    pub(crate) remove_entries: bool,
    /// Consumer groups of the stream that go on here; stop their old consumers first.
    #[serde(deserialize_with = "objects", skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub(crate) import_groups: Vec<ImportGroup>,
    /// As for a topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) retention_ms: Option<u64>,
    /// As for a topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) retention_records: Option<u64>,
    /// As for a topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) retention_bytes: Option<u64>,
}

/// A consumer group of the stream.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportGroup {
    /// Its name on the stream.
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) from: String,
    /// Its name here; the same unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_-]+$")]
    pub(crate) to: Option<String>,
}
