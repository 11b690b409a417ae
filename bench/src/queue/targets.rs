//! The queue's targets: ratios to the limit and to other queues in the same run, and a few figures
//! that stand by themselves.

use crate::measure::Row;
use crate::verdict::{self, Limit, Verdict};

/// Judges one workload's rows.
pub(crate) fn judge(workload: &str, rows: &[Row]) -> Vec<Verdict> {
    verdict::judge(limits(workload), rows)
}

fn limits(workload: &str) -> &'static [Limit] {
    use Limit::{AtLeast, AtMost, RateOf, ServerOf};
    match workload {
        "produce/redis" | "produce/redis-aof" => &[RateOf("raw", 0.85), AtMost("bytes_per_item", 310.0)],
        "produce/redis/16" => &[RateOf("raw", 0.85)],
        "consume/redis" | "consume/redis/16" | "consume/redis-aof" => &[RateOf("raw", 0.60)],
        "e2e/redis/16" => &[RateOf("raw", 0.65), ServerOf("raw", 1.15), AtMost("cpu_us_per_op", 2.5)],
        "e2e/redis" => &[
            RateOf("raw", 0.65),
            ServerOf("raw", 1.15),
            AtMost("cpu_us_per_op", 2.5),
            RateOf("jetstream-memory", 2.0),
            RateOf("apalis", 8.0),
            RateOf("bullmq", 20.0),
        ],
        "e2e/redis-aof" => &[
            RateOf("raw", 0.65),
            ServerOf("raw", 1.15),
            AtMost("cpu_us_per_op", 2.5),
            RateOf("jetstream-file", 2.0),
            RateOf("apalis", 8.0),
            RateOf("bullmq", 20.0),
        ],
        "e2e/embedded" => &[AtLeast("ops_per_s", 400_000.0), RateOf("jetstream-file", 4.0)],
        "produce/embedded" => &[AtMost("bytes_per_item", 333.0)],
        "e2e/synced" => &[AtLeast("ops_per_s", 50_000.0)],
        "latency/redis" | "latency/embedded" => &[AtMost("p50_us", 150.0), AtMost("p99_us", 1000.0)],
        "failing/redis" => &[AtMost("cost_share", 0.10)],
        "idle/redis" => &[AtMost("client_cpu_percent", 0.5), AtMost("server_cpu_percent", 0.5)],
        "failover/redis" | "failover/redis/5" => &[AtMost("over_ttl_ms", 300.0)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::workload;

    #[test]
    fn targets_belong_to_workloads_that_exist() {
        let judged = workload::ALL.iter().filter(|name| !limits(name).is_empty()).count();
        assert_eq!(judged, 19);
    }
}
