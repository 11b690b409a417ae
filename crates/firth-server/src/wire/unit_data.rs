//! A unit's own data on the wire: records read and settled under a claim.

use super::lenient::{maybe_whole, objects, whole};
use super::{Shown, Start};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to read of a unit's own data.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadUnitData {
    pub(crate) session: String,
    /// The claim's handle.
    pub(crate) claim: String,
    /// Which partition is the unit's; 0 unless set.
    #[serde(default)]
    #[schema(maximum = 4095)]
    #[serde(deserialize_with = "whole")]
    pub(crate) partition: u64,
    /// The group whose progress it is; the service's own unless set. Consumers must not join it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Where the unit's first owner begins; later ones go on where the last one was.
    #[serde(default)]
    pub(crate) start: Start,
    /// Instead of `start`: with records that are not older than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) age_ms: Option<u64>,
    /// The last `place` that was seen; 0, the default, tells everything that is not settled.
    #[serde(default)]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) after: u64,
    /// At most this many; 100 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 500)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max: Option<u64>,
    /// How long to wait for the first, at most a third of the session's TTL; 0 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 30_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) wait_ms: Option<u64>,
}

/// A record of a unit's own data.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct UnitRecord {
    /// Where it stands in what was read here: go on after it.
    pub(crate) place: u64,
    pub(crate) record: Shown,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct UnitDataPage {
    pub(crate) records: Vec<UnitRecord>,
    /// Whether the claim is wanted back: nothing more comes; settle what is done and release it.
    pub(crate) recalled: bool,
    /// For how long the claims hold, from when the request was sent.
    pub(crate) valid_ms: u64,
}

/// Verdicts on records of a unit's own data.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleUnitData {
    pub(crate) session: String,
    /// The claim's handle.
    pub(crate) claim: String,
    /// Which partition is the unit's; 0 unless set.
    #[serde(default)]
    #[schema(maximum = 4095)]
    #[serde(deserialize_with = "whole")]
    pub(crate) partition: u64,
    /// The group whose progress it is; the service's own unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Done: everything that was read up to this place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) ack_to: Option<u64>,
    /// Done: these records, by their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    pub(crate) ack: Vec<String>,
    /// Given up: make these dead letters of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    #[schema(max_items = 500)]
    pub(crate) reject: Vec<RejectRecord>,
}

/// A record to give up.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectRecord {
    pub(crate) id: String,
    /// Kept with the record; longer ones are cut after 1024 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct UnitDataSettled {
    pub(crate) settled: u64,
    pub(crate) failed: Vec<NotStored>,
    /// For how long the claims hold, from when the request was sent.
    pub(crate) valid_ms: u64,
}

/// A verdict that was not stored, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NotStored {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) detail: String,
}
