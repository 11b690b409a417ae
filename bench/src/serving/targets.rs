//! The server's targets: rates, and what it may cost to start and to rest.

use super::{BATCH, CROWD, REST, SINGLE};
use crate::measure::Row;
use crate::verdict::{self, Limit, Verdict};

/// Judges one workload's rows.
pub(crate) fn judge(workload: &str, rows: &[Row]) -> Vec<Verdict> {
    verdict::judge(limits(workload), rows)
}

fn limits(workload: &str) -> &'static [Limit] {
    use Limit::{AtLeast, AtMost};
    match workload {
        BATCH => &[AtLeast("ops_per_s", 100_000.0)],
        SINGLE => &[AtLeast("ops_per_s", 25_000.0)],
        REST => &[AtMost("start_ms", 200.0), AtMost("idle_cpu_percent", 1.0), AtMost("idle_mb", 40.0)],
        CROWD => &[AtMost("peak_mb", 512.0)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_a_target() {
        for workload in crate::serving::WORKLOADS {
            assert!(!limits(workload).is_empty(), "{workload}");
        }
    }
}
