//! Sources: databases and other programs whose changes become events.

use firth_connect::control::SnapshotRequest;
use firth_connect::{Finding, SnapshotProgress, Status};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The sources that this server's configuration names, and those that another server told of.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Sources {
    pub(crate) sources: Vec<SourceShown>,
}

/// A source, and how it is as its reader told last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct SourceShown {
    pub(crate) name: String,
    /// What it is: `postgres`, `mongodb`, `nats`, `redis-keys`, `webhook`.
    pub(crate) kind: String,
    /// The topic that gets its changes.
    pub(crate) topic: String,
    /// `waiting` (no node reads it), `starting`, `streaming`, `retrying`, `failed` (an operator
    /// must do something), `lost` (history is gone), `paused`, `done` (all is copied of a source
    /// that only copies), `removing` or `removed`.
    pub(crate) state: String,
    /// Why it does not stream.
    pub(crate) reason: Option<String>,
    /// Since when its reader is in that state, as Unix time.
    pub(crate) since_ms: Option<u64>,
    /// What an operator should know while it streams.
    pub(crate) warning: Option<String>,
    /// The node that reads it.
    pub(crate) reader: Option<String>,
    /// When its reader told all this, as Unix time.
    pub(crate) told_ms: Option<u64>,
    /// Whether the configuration of this server names it.
    pub(crate) configured: bool,
    /// Changes that its reader read since it began.
    pub(crate) changes: u64,
    /// The same by operation.
    pub(crate) by_operation: BTreeMap<String, u64>,
    /// Records that its reader stored.
    pub(crate) appended: u64,
    /// Changes that lack large values, because the database did not send them.
    pub(crate) with_missing: u64,
    /// How often its reader began anew.
    pub(crate) reconnects: u64,
    /// Failures of its reader by their kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Bytes between the database and the topic.
    pub(crate) buffer_bytes: u64,
    /// How often so much waited there that the source was not read further.
    pub(crate) full: u64,
    /// How often the source was told how far it may forget.
    pub(crate) checkpoints: u64,
    /// Up to where the database may forget, in its own words.
    pub(crate) confirmed: Option<String>,
    /// When the database was told so last, as Unix time.
    pub(crate) confirmed_ms: Option<u64>,
    /// Bytes of the database's log that the topic does not hold yet.
    pub(crate) behind_bytes: Option<u64>,
    /// Bytes of its log that the database keeps for this source.
    pub(crate) slot_bytes: Option<u64>,
    /// How many it may keep, as the configuration says.
    pub(crate) slot_limit_bytes: Option<u64>,
    /// Changes that wait in the source and were not read.
    pub(crate) behind_changes: Option<u64>,
    /// Whether it may miss changes without a loss being told.
    pub(crate) lossy: bool,
    /// How often a lossy source perhaps missed changes.
    pub(crate) gaps: u64,
    /// Changes that could not be events and went to the topic of dead letters.
    pub(crate) dead: u64,
    /// How often it began anew after a loss.
    pub(crate) resyncs: u64,
    /// Why it did so last.
    pub(crate) resync_reason: Option<String>,
    /// When that was, as Unix time.
    pub(crate) resynced_ms: Option<u64>,
    /// When the newest change was committed, as Unix time.
    pub(crate) last_committed_ms: Option<u64>,
    /// From that commit, or from the last sign of life, until it was read.
    pub(crate) lag_ms: Option<u64>,
    /// When its reader wrote the last sign of life that came back, as Unix time.
    pub(crate) heartbeat_ms: Option<u64>,
    /// Copies of tables that its reader makes or made.
    pub(crate) snapshots: Vec<SnapshotShown>,
    /// Copies that were asked for and are not done.
    pub(crate) wanted_snapshots: Vec<SnapshotWanted>,
}

/// How far the copy of a table is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct SnapshotShown {
    pub(crate) table: String,
    /// Rows that are in the topic.
    pub(crate) rows: u64,
    /// How many there are, about.
    pub(crate) estimate: Option<u64>,
    pub(crate) done: bool,
}

/// A copy that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct SnapshotWanted {
    /// Its number; it grows with each request of the source.
    pub(crate) id: u64,
    /// The table; all of them if none is named.
    #[serde(default)]
    pub(crate) table: Option<String>,
    /// Which rows.
    #[serde(default, rename = "where")]
    pub(crate) condition: Option<String>,
}

/// What to copy from a source into its topic, beside its changes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewSnapshot {
    /// The table, `schema.table`; all tables of the source unless it is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) table: Option<String>,
    /// Which rows, as the condition of a `WHERE` in the database's own words; it needs `table`.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 4096)]
    pub(crate) condition: Option<String>,
}

/// What a look at a source's other side found.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Examined {
    /// The worst first; none if all is well.
    pub(crate) findings: Vec<FindingShown>,
}

/// One thing that was found.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct FindingShown {
    /// `error` (the source cannot work), `warning` or `note`.
    pub(crate) level: String,
    pub(crate) text: String,
    /// The statements that mend it.
    pub(crate) sql: Vec<String>,
}

impl From<Finding> for FindingShown {
    fn from(finding: Finding) -> Self {
        Self { level: finding.level.as_str().to_owned(), text: finding.text, sql: finding.sql }
    }
}

/// Outcome of a request to a webhook.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct HookTaken {
    /// Whether its event is in the topic; false if the configuration leaves it out.
    pub(crate) stored: bool,
    /// Whether it was there already.
    pub(crate) duplicate: bool,
}

impl SourceShown {
    /// Takes over what the reader tells.
    pub(crate) fn with_status(self, status: Status) -> Self {
        Self {
            state: status.condition.as_str().to_owned(),
            reason: status.reason,
            since_ms: status.since_ms,
            changes: status.changes,
            by_operation: status.by_operation,
            appended: status.appended,
            with_missing: status.with_missing,
            reconnects: status.reconnects,
            errors: status.errors,
            buffer_bytes: status.buffer_bytes,
            full: status.full,
            checkpoints: status.checkpoints,
            confirmed: status.confirmed,
            confirmed_ms: status.confirmed_ms,
            behind_bytes: status.behind_bytes,
            slot_bytes: status.slot_bytes,
            slot_limit_bytes: status.slot_limit_bytes,
            warning: status.warning,
            behind_changes: status.behind_changes,
            lossy: status.lossy,
            gaps: status.gaps,
            dead: status.dead,
            resyncs: status.resyncs,
            resync_reason: status.resync_reason,
            resynced_ms: status.resynced_ms,
            last_committed_ms: status.last_committed_ms,
            lag_ms: status.lag_ms,
            heartbeat_ms: status.heartbeat_ms,
            snapshots: status.snapshots.into_iter().map(SnapshotShown::from).collect(),
            ..self
        }
    }
}

impl From<SnapshotProgress> for SnapshotShown {
    fn from(progress: SnapshotProgress) -> Self {
        let SnapshotProgress { table, rows, estimate, is_done } = progress;
        Self { table, rows, estimate, done: is_done }
    }
}

impl From<SnapshotRequest> for SnapshotWanted {
    fn from(request: SnapshotRequest) -> Self {
        let SnapshotRequest { id, table, condition } = request;
        Self { id, table, condition }
    }
}
