//! The engine's targets: what it may cost beside the raw limit of the same run, and what a record
//! may weigh.

use crate::measure::Row;
use crate::verdict::{self, Limit, Verdict};

/// Judges one workload's rows.
pub(crate) fn judge(workload: &str, rows: &[Row]) -> Vec<Verdict> {
    verdict::judge(limits(workload), rows)
}

fn limits(workload: &str) -> &'static [Limit] {
    use Limit::{AtLeast, AtMost, RateOf, ServerOf};
    const SERVER: Limit = ServerOf("raw", 1.15);
    const CLIENT: Limit = AtMost("cpu_us_per_op", 2.5);
    match workload {
        "append/redis" => &[RateOf("raw", 0.85), SERVER, CLIENT, AtMost("bytes_per_item", 310.0)],
        "append/redis-everysec" => &[RateOf("raw", 0.85), SERVER, CLIENT],
        "settle/redis" | "settle/redis-everysec" => &[RateOf("raw", 0.6), SERVER, CLIENT],
        "delay/redis" => &[AtMost("bytes_per_item", 350.0)],
        "append/file-fast" | "settle/file-fast" => &[AtLeast("ops_per_s", 400_000.0)],
        "append/file" | "settle/file" => &[AtLeast("ops_per_s", 50_000.0)],
        "restart/file" => &[AtMost("open_ms", 2000.0), AtMost("disk_ratio", 1.3)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::workload;

    #[test]
    fn every_target_belongs_to_a_workload() {
        let judged = workload::ALL.iter().filter(|workload| !limits(workload.name).is_empty());
        assert_eq!(judged.count(), 10);
    }
}
