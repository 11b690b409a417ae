//! Delayed messages on the wire.

use super::{Shown, Values, millis};
use firth::{DelayedChange, DelayedId, DelayedMessage, DelayedState};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Messages of one partition that wait for their time, the next one first; `next` continues as
/// `after`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DelayedList {
    pub(crate) messages: Vec<DelayedShown>,
    pub(crate) next: Option<String>,
}

/// A message that waits for its time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DelayedShown {
    /// Partition, time and number: `3/1700000000000-42`. It is no place in the log.
    pub(crate) id: String,
    pub(crate) partition: u32,
    /// How long it still waits.
    pub(crate) due_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub(crate) json: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Values>,
}

impl DelayedShown {
    /// The payload as a person reads it.
    pub(crate) fn text(&self) -> &str {
        let json = self.json.as_deref().map(RawValue::get);
        json.or(self.payload.as_deref()).or(self.payload_base64.as_deref()).unwrap_or_default()
    }
}

impl From<DelayedMessage> for DelayedShown {
    fn from(message: DelayedMessage) -> Self {
        let Shown { partition, key, key_base64, payload, payload_base64, json, headers, .. } =
            Shown::from(&message.record);
        let id = message.id.to_string();
        let due_ms = millis(message.due_in);
        Self { id, partition, due_ms, key, key_base64, payload, payload_base64, json, headers }
    }
}

/// Delayed messages by their ids.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DelayedPick {
    #[schema(min_items = 1, max_items = 500)]
    pub(crate) ids: Vec<String>,
}

/// Outcome of delayed messages, in the order of the request.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DelayedChanges {
    pub(crate) messages: Vec<DelayedChanged>,
}

/// Outcome of a delayed message.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DelayedChanged {
    pub(crate) id: String,
    pub(crate) state: DelayedWhere,
    /// Whether this call did that; false if it was there before.
    pub(crate) changed: bool,
    /// Its id as a record, if this call delivered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
}

/// Where a delayed message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DelayedWhere {
    /// It was cancelled: no group gets it.
    Cancelled,
    /// It is in the log.
    Delivered,
    /// The partition does not know it: there was none, or it left long ago.
    Missing,
}

impl DelayedWhere {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Delivered => "delivered",
            Self::Missing => "missing",
        }
    }
}

impl DelayedChanged {
    pub(crate) fn new(id: DelayedId, change: DelayedChange) -> Self {
        let state = match change.state {
            DelayedState::Cancelled => DelayedWhere::Cancelled,
            DelayedState::Delivered => DelayedWhere::Delivered,
            DelayedState::Missing => DelayedWhere::Missing,
        };
        let record = change.record.map(|id| id.to_string());
        Self { id: id.to_string(), state, changed: change.changed, record }
    }
}
