//! Changes of claims on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What happened to the units of a service, the newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TakeoverList {
    pub(crate) changes: Vec<ClaimChange>,
    /// Since when this server has looked; null before its first look.
    pub(crate) since_ms: Option<u64>,
}

/// One change of one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClaimChange {
    /// When it happened, as Unix time.
    pub(crate) time_ms: u64,
    pub(crate) unit: String,
    pub(crate) kind: ClaimChangeKind,
    /// The worker that had the unit.
    pub(crate) from: Option<String>,
    /// The worker that has it from then on.
    pub(crate) to: Option<String>,
    /// The unit's epoch afterwards.
    pub(crate) epoch: u64,
    /// Changes before this one that no look saw.
    pub(crate) missed: u64,
}

/// What happened to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClaimChangeKind {
    /// It was offered.
    Offered,
    /// A worker got it, free as it was.
    Granted,
    /// Its worker vanished.
    Orphaned,
    /// Another worker has it now.
    TakenOver,
    /// Its worker, or an operator, gave it back.
    Released,
    /// It is done, or was withdrawn.
    Ended,
}

impl ClaimChangeKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Granted => "granted",
            Self::Orphaned => "orphaned",
            Self::TakenOver => "taken over",
            Self::Released => "released",
            Self::Ended => "ended",
        }
    }
}
