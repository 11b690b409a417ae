//! The pub/sub targets: ratios to the best Rust peer in the same run, the heap of a channel, and
//! what a change of the cluster may cost: a short silence, and no loss that is not signalled.

use crate::measure::Row;
use crate::verdict::{self, Limit, Verdict};

/// Judges one workload's rows.
pub(crate) fn judge(workload: &str, rows: &[Row]) -> Vec<Verdict> {
    verdict::judge(limits(workload), rows)
}

fn limits(workload: &str) -> &'static [Limit] {
    match workload {
        "deliver/1" | "deliver/1000" => &[Limit::Cpu(0.33), Limit::AtMost("lost_share", 0.0)],
        "deliver/10000" => &[Limit::AtMost("bytes_per_item", 600.0), Limit::AtMost("lost_share", 0.0)],
        "migrate" => &[
            Limit::AtMost("silence_ms", 50.0),
            Limit::AtMost("never_resumed", 0.0),
            Limit::AtMost("lost_silently", 0.0),
            Limit::AtMost("others_lost", 0.0),
            Limit::AtMost("wrong_replies", 0.0),
        ],
        "failover" => &[
            Limit::AtMost("live_again_ms", 500.0),
            Limit::AtMost("never_resumed", 0.0),
            Limit::AtMost("lost_silently", 0.0),
            Limit::AtMost("others_lost", 0.0),
        ],
        _ => &[],
    }
}
