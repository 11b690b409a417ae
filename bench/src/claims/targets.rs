//! The targets of claims: at most two calls per tick and shard however many claims there are,
//! takeover at most 300 ms after the TTL.

use crate::measure::Row;
use crate::verdict::{self, Limit, Verdict};

/// Judges one workload's rows.
pub(crate) fn judge(workload: &str, rows: &[Row]) -> Vec<Verdict> {
    let limits: &[Limit] = match workload.split('/').next() {
        Some("rest") => &[Limit::AtMost("calls_per_tick", 2.0)],
        Some("takeover") => &[Limit::AtMost("after_ttl_ms", 300.0)],
        _ => &[],
    };
    verdict::judge(limits, rows)
}
