//! What is measured: an act on an engine, with a number of partitions, read from its name.

use anyhow::{Context, Result};

/// Bytes of a payload.
pub(crate) const PAYLOAD: usize = 256;

/// All workloads, in the order of the table.
pub(crate) const ALL: [&str; 27] = [
    "produce/redis",
    "consume/redis",
    "e2e/redis",
    "produce/redis/16",
    "consume/redis/16",
    "e2e/redis/16",
    "produce/redis-aof",
    "consume/redis-aof",
    "e2e/redis-aof",
    "produce/embedded",
    "consume/embedded",
    "e2e/embedded",
    "produce/embedded/16",
    "consume/embedded/16",
    "e2e/embedded/16",
    "produce/synced",
    "consume/synced",
    "e2e/synced",
    "produce/memory",
    "consume/memory",
    "e2e/memory",
    "latency/redis",
    "latency/embedded",
    "failing/redis",
    "idle/redis",
    "failover/redis",
    "failover/redis/5",
];

/// One workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) act: Act,
    pub(crate) engine: Engine,
    /// Partitions; for [`Act::Failover`] the seconds of the lease.
    pub(crate) number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Send as fast as possible, until all is acknowledged.
    Produce,
    /// Handle and settle what lies ready.
    Consume,
    /// Both at once.
    EndToEnd,
    /// From send to handler at 1 000 messages a second.
    Latency,
    /// End to end, every twentieth message failing once, beside the same without failures.
    Failing,
    /// A group of 64 partitions without messages.
    Idle,
    /// From the death of an owner to the first delivery at its successor.
    Failover,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Without persistence.
    Redis,
    /// With an append-only file synced every second.
    RedisAof,
    /// `file:` with durability `fast`.
    Embedded,
    /// `file:` with durability `synced`.
    Synced,
    Memory,
}

impl Workload {
    pub(crate) fn named(name: &str) -> Result<Self> {
        let mut parts = name.split('/');
        let act = match parts.next() {
            Some("produce") => Act::Produce,
            Some("consume") => Act::Consume,
            Some("e2e") => Act::EndToEnd,
            Some("latency") => Act::Latency,
            Some("failing") => Act::Failing,
            Some("idle") => Act::Idle,
            Some("failover") => Act::Failover,
            _ => return Err(anyhow::anyhow!("no workload {name}")),
        };
        let engine = match parts.next() {
            Some("redis") => Engine::Redis,
            Some("redis-aof") => Engine::RedisAof,
            Some("embedded") => Engine::Embedded,
            Some("synced") => Engine::Synced,
            Some("memory") => Engine::Memory,
            _ => return Err(anyhow::anyhow!("no workload {name}")),
        };
        let number = match parts.next() {
            None if act == Act::Idle => 64,
            None => 1,
            Some(number) => number.parse().with_context(|| format!("no workload {name}"))?,
        };
        Ok(Self { act, engine, number })
    }

    /// Whether a subject can be measured here, and compares.
    pub(crate) fn suits(self, subject: &str) -> bool {
        let single = self.number == 1
            && matches!(self.act, Act::Produce | Act::Consume | Act::EndToEnd | Act::Latency);
        let on_redis = matches!(self.engine, Engine::Redis | Engine::RedisAof);
        match subject {
            "firth" => true,
            "raw" => {
                on_redis && matches!(self.act, Act::Produce | Act::Consume | Act::EndToEnd | Act::Latency)
            }
            "jetstream-memory" => single && matches!(self.engine, Engine::Redis | Engine::Memory),
            "jetstream-file" => {
                single && matches!(self.engine, Engine::RedisAof | Engine::Embedded | Engine::Synced)
            }
            // It stalls at a paced rate.
            "apalis" | "apalis-bare" => single && on_redis && self.act != Act::Latency,
            "bullmq" => single && on_redis,
            _ => false,
        }
    }
}

/// How many messages a measurement takes: about a second's worth.
pub(crate) fn messages(subject: &str, workload: Workload, quick: bool) -> u64 {
    let many: u64 = match (subject, workload.act) {
        (_, Act::Latency) => return if quick { 2_000 } else { 4_000 },
        ("apalis" | "apalis-bare", Act::Consume) => 8_000,
        ("apalis" | "apalis-bare", Act::EndToEnd) => 60_000,
        ("apalis" | "apalis-bare" | "bullmq", _) => 12_000,
        ("jetstream-memory" | "jetstream-file", _) => 100_000,
        // Many, because journals take up to 128 MiB of disk in any case.
        ("firth", Act::Produce) if workload.engine == Engine::Embedded => return 4_000_000,
        // Long, because the first ones that fail come again only after a while.
        (_, Act::Failing) => return 2_000_000,
        (_, _) if workload.engine == Engine::Synced => 200_000,
        _ => 500_000,
    };
    if quick { many / 2 } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_a_meaning_and_firth_takes_part_in_all() {
        for name in ALL {
            assert!(Workload::named(name).unwrap().suits("firth"), "{name}");
        }
        assert!(Workload::named("e2e/kafka").is_err());
        assert!(Workload::named("e2e/redis/many").is_err());
    }
}
