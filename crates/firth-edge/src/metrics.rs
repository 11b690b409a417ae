//! All metric names of this crate. Labels are bounded: a code or a reason, never a tenant, a user
//! or an address.

use crate::hub::HubStatus;
use crate::protocol::Code;
use metrics::{counter, gauge};

/// Exports what a hub holds, and its accounting.
pub(crate) fn status(status: &HubStatus) {
    gauge!("firth_edge_connections").set(status.connections as f64);
    gauge!("firth_edge_subscriptions").set(status.subscriptions as f64);
    gauge!("firth_edge_journal_bytes").set(status.journal_bytes as f64);
    gauge!("firth_edge_queued_events").set(status.accounting.queued as f64);
    let accounting = &status.accounting;
    let totals = [
        ("sent", accounting.sent),
        ("conflated", accounting.conflated),
        ("gap_marked", accounting.gap_marked),
        ("left_behind", accounting.left_behind),
    ];
    counter!("firth_edge_matched_total").absolute(accounting.taken);
    for (result, total) in totals {
        counter!("firth_edge_events_total", "result" => result).absolute(total);
    }
}

/// A socket was opened (1) or closed (-1).
pub(crate) fn sockets(more: f64) {
    gauge!("firth_edge_sockets").increment(more);
}

/// A request was not granted.
pub(crate) fn refused(code: Code) {
    counter!("firth_edge_refused_total", "code" => code.as_str()).increment(1);
}

/// A client could not resume.
pub(crate) fn resync(reason: &'static str) {
    counter!("firth_edge_resyncs_total", "reason" => reason).increment(1);
}

/// An event came from a feed.
pub(crate) fn fed(result: &'static str) {
    counter!("firth_edge_fed_total", "result" => result).increment(1);
}
