//! The client's targets, workload by workload, as ratios to the best Rust peer in the same run.
//!
//! Rate and 99th percentile are asked for where 64 or 1 024 tasks share the connection.

use crate::measure::Row;
use crate::verdict::{self, Limit, Verdict};

/// Judges one workload's rows.
pub(crate) fn judge(workload: &str, rows: &[Row]) -> Vec<Verdict> {
    verdict::judge(limits(workload), rows)
}

fn limits(workload: &str) -> &'static [Limit] {
    use Limit::{Cpu, P99, Rate};
    match workload {
        "get/1/st" => &[Cpu(1.05)],
        "get/64/st" | "xadd/64/st" => &[Cpu(0.60), Rate(1.3), P99(1.0)],
        "get/1024/st" => &[Cpu(0.40), Rate(1.8), P99(1.0)],
        "set/64/st" => &[Rate(1.3), P99(1.0)],
        "set/1024/st" => &[Cpu(0.45), Rate(1.8), P99(1.0)],
        "pipeline/100/st" | "get64k/16/st" => &[Cpu(0.65)],
        "xreadgroup/100/st" => &[Cpu(0.55)],
        "get/64/mt" => &[Cpu(0.45), Rate(1.3), P99(1.0)],
        "get/1024/mt" => &[Cpu(0.45), Rate(1.8), P99(1.0)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::workload;

    #[test]
    fn every_workload_has_a_target() {
        for workload in workload::ALL {
            assert!(!limits(workload.name).is_empty(), "{}", workload.name);
        }
    }
}
