//! [`Progress`]: how a source is, for operators. Written by its reader, read by all.

use crate::error::{Error, ErrorKind};
use firth_router::event::{Event, Operation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
#[cfg(feature = "_reader")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// What a source does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Condition {
    /// Another node reads it, or none does yet.
    #[default]
    Waiting,
    /// It logs in and checks.
    Starting,
    /// Changes flow.
    Streaming,
    /// It failed for a passing reason and tries again.
    Retrying,
    /// An operator must do something; it tries again now and then.
    Failed,
    /// The database no longer has changes that the topic lacks. It stands still.
    Lost,
    /// An operator paused it.
    Paused,
    /// It copied all that it was asked for, and follows no changes.
    Done,
}

impl Condition {
    /// All, the usual ones first.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Starting,
        Self::Streaming,
        Self::Retrying,
        Self::Failed,
        Self::Lost,
        Self::Paused,
        Self::Done,
    ];

    /// Its name, for metrics and wire formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Streaming => "streaming",
            Self::Retrying => "retrying",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Paused => "paused",
            Self::Done => "done",
        }
    }
}

/// How far the copy of a table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotProgress {
    /// The table, `schema.table`.
    pub table: String,
    /// Rows that are in the topic.
    pub rows: u64,
    /// How many there are, about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<u64>,
    /// Whether all of them are in the topic.
    pub is_done: bool,
}

/// A source at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// What it does.
    pub condition: Condition,
    /// Why it does not stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when it does that, in milliseconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// What an operator should know while it streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Changes read in this process.
    pub changes: u64,
    /// The same by operation: insert, update, replace, delete, snapshot, truncate, resync.
    pub by_operation: BTreeMap<String, u64>,
    /// Records stored in this process.
    pub appended: u64,
    /// Changes that lack large values.
    pub with_missing: u64,
    /// How often the stream was started anew.
    pub reconnects: u64,
    /// Failures in this process by their kind, such as `unavailable`.
    pub errors: BTreeMap<String, u64>,
    /// Bytes that wait between the database and the topic.
    pub buffer_bytes: u64,
    /// How often so much waited that the source was not read further.
    #[serde(skip_serializing_if = "is_zero")]
    pub full: u64,
    /// How often the source was told how far it may forget.
    #[serde(skip_serializing_if = "is_zero")]
    pub checkpoints: u64,
    /// Up to where the database may forget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<String>,
    /// When the database was told so last, in milliseconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed_ms: Option<u64>,
    /// Bytes of the database's log that it has written and the topic does not hold yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<u64>,
    /// Bytes of its log that the database keeps for this source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_bytes: Option<u64>,
    /// How many it may keep, as the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot_limit_bytes: Option<u64>,
    /// Changes that wait in the source and were not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_changes: Option<u64>,
    /// Whether the source may miss changes without a loss being told.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// How often such a source certainly or perhaps missed changes.
    #[serde(skip_serializing_if = "is_zero")]
    pub gaps: u64,
    /// Changes that could not be events and went to the topic of dead letters.
    #[serde(skip_serializing_if = "is_zero")]
    pub dead: u64,
    /// How often the source began anew after a loss.
    #[serde(skip_serializing_if = "is_zero")]
    pub resyncs: u64,
    /// Why it did so last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_reason: Option<String>,
    /// When that was, in milliseconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resynced_ms: Option<u64>,
    /// When the newest change that was read was committed, in milliseconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_committed_ms: Option<u64>,
    /// From the commit of that change, or from the last sign of life, to its reading, in
    /// milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// When the reader wrote the last sign of life that came back through the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
    /// Copies of tables, those under way first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotProgress>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A handle on a source's status; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Watched>);

#[derive(Debug, Default)]
struct Watched {
    status: Mutex<Status>,
    /// The same as that of the status.
    condition: watch::Sender<Condition>,
    /// Whether it stands still until some of what waits is stored.
    #[cfg(feature = "_reader")]
    is_full: AtomicBool,
}

impl Progress {
    /// The source as it is now.
    pub fn status(&self) -> Status {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, condition: Condition, reason: Option<String>) {
        self.change(&mut self.lock(), condition, reason);
    }

    fn change(&self, status: &mut Status, condition: Condition, reason: Option<String>) {
        if status.condition != condition || status.since_ms.is_none() {
            status.since_ms = Some(Self::now_ms());
        }
        (status.condition, status.reason) = (condition, reason);
        status.warning = None;
        self.0.condition.send_replace(condition);
    }

    /// Resolves once it does something else than this.
    pub(crate) async fn left(&self, condition: Condition) {
        let mut conditions = self.0.condition.subscribe();
        conditions.wait_for(|now| *now != condition).await.map(drop).unwrap_or_default();
    }

    pub(crate) fn ended(&self, error: &Error) {
        let condition = match error.kind() {
            ErrorKind::Lost => Condition::Lost,
            ErrorKind::Unavailable => Condition::Retrying,
            ErrorKind::Fenced => Condition::Waiting,
            _ => Condition::Failed,
        };
        let mut status = self.lock();
        self.change(&mut status, condition, Some(error.to_string()));
        status.reconnects += 1;
        *status.errors.entry(error.kind().as_str().to_owned()).or_default() += 1;
        status.buffer_bytes = 0;
    }

    /// One request or row failed, and the source goes on.
    pub(crate) fn refused(&self, error: &Error) {
        *self.lock().errors.entry(error.kind().as_str().to_owned()).or_default() += 1;
    }

    pub(crate) fn read(&self, event: &Event) {
        let mut status = self.lock();
        status.changes += 1;
        match status.by_operation.get_mut(event.operation.as_str()) {
            Some(count) => *count += 1,
            None => drop(status.by_operation.insert(event.operation.as_str().to_owned(), 1)),
        }
        status.with_missing += u64::from(!event.missing.is_empty());
        if event.operation != Operation::Snapshot && event.committed_ms > 0 {
            status.last_committed_ms = Some(event.committed_ms);
            status.lag_ms = Some(event.observed_ms.saturating_sub(event.committed_ms));
        }
    }

    pub(crate) fn appended(&self, records: usize) {
        self.lock().appended += records as u64;
    }

    /// How much of the database's log is not in the topic yet.
    pub fn behind(&self, bytes: u64) {
        self.lock().behind_bytes = Some(bytes);
    }

    /// How much of its log the database keeps for this source.
    pub fn kept_by_slot(&self, bytes: u64) {
        self.lock().slot_bytes = Some(bytes);
    }

    /// How far the copies of tables are, those under way first.
    pub fn copying(&self, snapshots: Vec<SnapshotProgress>) {
        self.lock().snapshots = snapshots;
    }

    /// Now, in milliseconds of Unix time.
    pub fn now_ms() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }
}

/// What the readers of sources tell.
#[cfg(feature = "_reader")]
impl Progress {
    pub(crate) fn streaming(&self) {
        self.enter(Condition::Streaming, None);
    }

    /// All is copied, and its database keeps nothing for it.
    pub(crate) fn done(&self) {
        let told = "all rows are copied; `firth connect snapshot` copies them again";
        self.enter(Condition::Done, Some(told.to_owned()));
        let mut status = self.lock();
        (status.slot_bytes, status.behind_bytes, status.buffer_bytes) = (Some(0), Some(0), 0);
    }

    /// A change went to the topic of dead letters, and the source goes on.
    pub(crate) fn died(&self, error: &Error) {
        self.refused(error);
        self.lock().dead += 1;
    }

    /// The source begins anew after a loss.
    pub(crate) fn resynced(&self, error: &Error) {
        self.refused(error);
        let mut status = self.lock();
        status.resyncs += 1;
        (status.resync_reason, status.resynced_ms) = (Some(error.to_string()), Some(Self::now_ms()));
    }

    /// The source may miss changes.
    pub(crate) fn lossy(&self) {
        self.lock().lossy = true;
    }

    /// A source that may miss changes perhaps did.
    pub(crate) fn gap(&self) {
        self.lock().gaps += 1;
    }

    /// How many changes wait in the source.
    pub(crate) fn behind_by(&self, changes: u64) {
        self.lock().behind_changes = Some(changes);
    }

    /// The reader's own sign of life came back through the log.
    pub(crate) fn heard_heartbeat(&self, sent_ms: u64) {
        let mut status = self.lock();
        status.heartbeat_ms = Some(sent_ms);
        status.lag_ms = Some(Self::now_ms().saturating_sub(sent_ms));
    }

    /// So much waits now; `is_full` if the source is not read before some of it is stored.
    pub(crate) fn buffered(&self, bytes: usize, is_full: bool) {
        let was_full = self.0.is_full.swap(is_full, Ordering::Relaxed);
        let mut status = self.lock();
        status.buffer_bytes = bytes as u64;
        status.full += u64::from(is_full && !was_full);
    }

    pub(crate) fn confirmed(&self, lsn: Option<String>) {
        if lsn.is_some() {
            let mut status = self.lock();
            (status.confirmed, status.confirmed_ms) = (lsn, Some(Self::now_ms()));
            status.checkpoints += 1;
        }
    }

    /// How much of its log the database may keep for this source.
    pub(crate) fn limit_slot(&self, bytes: Option<u64>) {
        self.lock().slot_limit_bytes = bytes;
    }

    /// What an operator should know, or that it is over.
    pub(crate) fn warn(&self, warning: Option<String>) {
        self.lock().warning = warning;
    }
}
