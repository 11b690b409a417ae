//! The metrics of the sources that this server may read.

use firth_connect::{Condition, Progress, Status};
use metrics::{counter, gauge};

/// Brings the series of one source up to date.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
pub(super) fn tell(source: &str, status: &Status) {
    let name = || source.to_owned();
    for (operation, count) in &status.by_operation {
        let operation = operation.clone();
        counter!("firth_source_changes_total", "source" => name(), "op" => operation).absolute(*count);
    }
    for (kind, count) in &status.errors {
        counter!("firth_source_errors_total", "source" => name(), "kind" => kind.clone()).absolute(*count);
    }
    counter!("firth_source_appended_total", "source" => name()).absolute(status.appended);
    counter!("firth_source_missing_columns_total", "source" => name()).absolute(status.with_missing);
    counter!("firth_source_gaps_total", "source" => name()).absolute(status.gaps);
    counter!("firth_source_dead_total", "source" => name()).absolute(status.dead);
    counter!("firth_source_resyncs_total", "source" => name()).absolute(status.resyncs);
    counter!("firth_source_reconnects_total", "source" => name()).absolute(status.reconnects);
    counter!("firth_source_full_total", "source" => name()).absolute(status.full);
    counter!("firth_source_checkpoints_total", "source" => name()).absolute(status.checkpoints);
    gauge!("firth_source_buffer_bytes", "source" => name()).set(status.buffer_bytes as f64);
    for condition in Condition::ALL {
        let is_it = f64::from(u8::from(status.condition == condition));
        gauge!("firth_source_state", "source" => name(), "state" => condition.as_str()).set(is_it);
    }
    if let Some(lag) = status.lag_ms {
        gauge!("firth_source_lag_seconds", "source" => name()).set(lag as f64 / 1_000.0);
    }
    if let Some(bytes) = status.behind_bytes {
        gauge!("firth_source_position_lag_bytes", "source" => name()).set(bytes as f64);
    }
    if let Some(changes) = status.behind_changes {
        gauge!("firth_source_behind_changes", "source" => name()).set(changes as f64);
    }
    if let Some(bytes) = status.slot_bytes {
        gauge!("firth_source_slot_bytes", "source" => name()).set(bytes as f64);
    }
    if let Some(bytes) = status.slot_limit_bytes {
        gauge!("firth_source_slot_limit_bytes", "source" => name()).set(bytes as f64);
    }
    confirmed(source, status);
    snapshots(source, status);
}

/// How long ago the database was told how far it may forget; zero where another node tells it.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn confirmed(source: &str, status: &Status) {
    let Some(told) = status.confirmed_ms else { return };
    let reads = !matches!(status.condition, Condition::Waiting | Condition::Paused | Condition::Done);
    let age = if reads { Progress::now_ms().saturating_sub(told) } else { 0 };
    gauge!("firth_source_confirmed_age_seconds", "source" => source.to_owned()).set(age as f64 / 1_000.0);
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn snapshots(source: &str, status: &Status) {
    for copy in &status.snapshots {
        let known = [("copied", Some(copy.rows)), ("estimated", copy.estimate)];
        for (state, rows) in known.into_iter().filter_map(|(state, rows)| Some((state, rows?))) {
            let table = copy.table.clone();
            let source = source.to_owned();
            let rows = rows as f64;
            gauge!("firth_source_snapshot_rows", "source" => source, "table" => table, "state" => state)
                .set(rows);
        }
    }
}
