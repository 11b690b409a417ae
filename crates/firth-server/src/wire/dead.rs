//! Dead letters on the wire.

use super::lenient::{maybe_whole, object};
use super::{Outgoing, Shown, millis};
use firth::{DeadLetter, FailedAttempt};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Letter {
    /// Group, partition and record: `billing/3/1700000000000-42`.
    pub(crate) id: String,
    pub(crate) group: String,
    pub(crate) reason: String,
    pub(crate) attempts: u32,
    pub(crate) age_ms: u64,
    pub(crate) record: Shown,
    /// The last attempts, the newest first, at most 8; none of a letter that an older build wrote.
    #[serde(default)]
    pub(crate) history: Vec<PastAttempt>,
}

/// An attempt that failed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PastAttempt {
    /// Which one; 1 was the first delivery. A replay to the group starts again at 1.
    pub(crate) attempt: u32,
    /// Only the last attempt has its whole reason; those before are cut at 256 bytes.
    pub(crate) reason: String,
    /// To the second; null if an older build stored it.
    pub(crate) age_ms: Option<u64>,
    /// The owner of the partition; null if an older build stored it.
    pub(crate) member: Option<String>,
}

impl From<FailedAttempt> for PastAttempt {
    fn from(failed: FailedAttempt) -> Self {
        let FailedAttempt { attempt, reason, age, member, .. } = failed;
        Self { attempt, reason, age_ms: age.map(millis), member }
    }
}

impl From<DeadLetter> for Letter {
    fn from(letter: DeadLetter) -> Self {
        Self {
            id: letter.id.to_string(),
            group: letter.id.group.to_string(),
            attempts: letter.attempts(),
            age_ms: millis(letter.age),
            record: Shown::from(&letter.record),
            reason: letter.reason,
            history: letter.history.into_iter().map(PastAttempt::from).collect(),
        }
    }
}

/// A page of dead letters; `next` continues it as `after`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Letters {
    pub(crate) letters: Vec<Letter>,
    pub(crate) next: Option<String>,
}

/// Which dead letters: these, or all that the filter lets through.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pick {
    #[schema(max_items = 10_000)]
    pub(crate) ids: Vec<String>,
    pub(crate) all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) partition: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) older_than_ms: Option<u64>,
    /// Only for replay: append it for every group, not just the one that gave it up.
    pub(crate) everyone: bool,
}

impl Pick {
    /// Whether it chooses among all.
    pub(crate) fn has_filter(&self) -> bool {
        let texts = [&self.group, &self.reason, &self.key];
        texts.iter().any(|text| text.is_some()) || self.partition.is_some() || self.older_than_ms.is_some()
    }
}

/// A message to send in place of a dead letter.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    pub(crate) id: String,
    /// A message without partition and delay.
    #[serde(deserialize_with = "object")]
    pub(crate) message: Outgoing,
    /// Append it for every group, not just the one that gave it up.
    #[serde(default)]
    pub(crate) everyone: bool,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Count {
    pub(crate) count: u64,
}

/// Topics that have dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadTopics {
    pub(crate) topics: Vec<DeadTopic>,
    /// Pass it as `after` of the next call; null: all topics were looked at.
    pub(crate) next: Option<String>,
}

/// The dead letters of one topic in figures.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadTopic {
    pub(crate) topic: String,
    pub(crate) count: u64,
    pub(crate) groups: Vec<DeadGroup>,
    /// How many letters were read to count reasons; at most 1000 of a topic are.
    pub(crate) counted: u64,
    /// Their reasons, the most frequent first, at most 20; empty without the scope `consume`.
    pub(crate) reasons: Vec<DeadReason>,
}

/// How many letters a group gave up.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadGroup {
    pub(crate) group: String,
    pub(crate) count: u64,
}

/// How many of the letters that were read have this reason.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadReason {
    pub(crate) reason: String,
    pub(crate) count: u64,
}
