//! [`WorkerConfig`]: everything that can be set on a worker, checked once; and where a worker's
//! name comes from.

use crate::error::{Result, invalid};
use firth_engine::Backoff;
use firth_engine::limits::{MAX_CAPACITY, MAX_TTL};
use std::time::Duration;

/// How a worker works.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// How long a crashed or hanging worker keeps its claims. Renewed three times as often, all
    /// claims of a shard with one call.
    pub ttl: Duration,
    /// How many claims it takes at most.
    pub max_claims: u64,
    /// Take an even share of the free and orphaned units. Off: the worker gets only the units that
    /// it asks for by name, and it is told of orphans.
    pub automatic: bool,
    /// How many grants wait for a slow reader; at this number nothing more is granted to
    /// this worker.
    pub buffer: usize,
    /// How long the holder of a recalled claim may take to give it back; after that it is taken.
    /// The same when the worker closes.
    pub handover: Duration,
    /// How often a call that failed for a passing reason is tried again.
    pub retries: u32,
    /// How long to wait before each of these tries.
    pub backoff: Backoff,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            max_claims: 1_000_000,
            automatic: true,
            buffer: 500,
            handover: Duration::from_secs(5),
            retries: 5,
            backoff: Backoff::exponential(Duration::from_millis(100), Duration::from_secs(30)),
        }
    }
}

/// The shortest `ttl`.
const MIN_TTL: Duration = Duration::from_millis(100);
/// The largest `buffer`.
const MAX_BUFFER: usize = 100_000;

impl WorkerConfig {
    /// Checks every value, or says what to change.
    pub fn check(&self) -> Result<()> {
        if self.ttl < MIN_TTL || self.ttl > MAX_TTL {
            return Err(invalid(format!("a worker's ttl is {:?}; give 100 ms to 24 hours", self.ttl)));
        }
        if !(1..=MAX_CAPACITY).contains(&self.max_claims) {
            return Err(invalid(format!("max_claims is {}; give 1 to {MAX_CAPACITY}", self.max_claims)));
        }
        if !(1..=MAX_BUFFER).contains(&self.buffer) {
            return Err(invalid(format!("buffer is {}; give 1 to {MAX_BUFFER}", self.buffer)));
        }
        if self.handover > MAX_TTL {
            return Err(invalid(format!("handover is {:?}; give at most 24 hours", self.handover)));
        }
        Ok(())
    }

    /// The capacity that others count on.
    pub(crate) fn capacity(&self) -> u64 {
        if self.automatic { self.max_claims } else { 0 }
    }
}

/// A worker's name from the environment: `FIRTH_WORKER`, else `POD_NAME`, else `POD_IP`.
pub fn worker_id_from_env() -> Result<String> {
    id_from(|name| std::env::var(name).ok())
}

fn id_from(get: impl Fn(&str) -> Option<String>) -> Result<String> {
    let found = ["FIRTH_WORKER", "POD_NAME", "POD_IP"]
        .into_iter()
        .find_map(|name| get(name).filter(|id| !id.is_empty()));
    // An IPv6 address has colons, which a name cannot have.
    found
        .map(|id| id.replace(':', "-"))
        .ok_or_else(|| invalid("a worker needs a name: set FIRTH_WORKER, POD_NAME or POD_IP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_option_is_named() {
        let wrong = |change: fn(&mut WorkerConfig)| {
            let mut config = WorkerConfig::default();
            change(&mut config);
            config.check().expect_err("it is wrong").to_string()
        };
        assert!(wrong(|config| config.ttl = Duration::from_millis(9)).contains("ttl"));
        assert!(wrong(|config| config.max_claims = 0).contains("max_claims"));
        assert!(wrong(|config| config.buffer = 0).contains("buffer"));
        assert!(wrong(|config| config.handover = Duration::from_secs(1 << 30)).contains("handover"));
        assert!(WorkerConfig::default().check().is_ok());
    }

    #[test]
    fn a_name_comes_from_the_pod_or_there_is_none() {
        let only = |wanted: &'static str, value: &'static str| {
            id_from(move |name| (name == wanted).then(|| value.to_owned()))
        };
        assert_eq!(only("POD_NAME", "pod-7").unwrap(), "pod-7");
        assert_eq!(only("POD_IP", "fd00::1").unwrap(), "fd00--1");
        assert!(only("POD_NAME", "").is_err());
        assert!(only("HOME", "x").unwrap_err().to_string().contains("POD_NAME"));
    }
}
