//! A watch of the servers' memory. A server that evicts keys loses records, groups and leases
//! without a word, so the engine refuses it at the start; and a server may be set so, or be full,
//! at any time later.

use super::error_mapping::of_call;
use super::keys::KeyNames;
use super::restart_guard::ask;
use super::start::{self, Info};
use crate::error::{Error, ErrorKind, Result};
use firth_redis::{Client, cmd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often the servers are asked.
const EVERY: Duration = Duration::from_secs(2);
/// The share of its memory, in percent, above which a server is soon full.
const SOON_FULL: u64 = 90;

/// What was last found wrong.
type Wrong = Arc<Mutex<Option<String>>>;

/// Asks all masters from time to time.
pub(super) struct MemoryWatch {
    wrong: Wrong,
    task: JoinHandle<()>,
}

impl MemoryWatch {
    pub(super) fn start(client: Client, keys: &KeyNames) -> Self {
        let wrong = Wrong::default();
        let probe = keys.probe();
        let prefix = keys.prefix().to_owned();
        let task = tokio::spawn(watch(client, probe, prefix, wrong.clone()));
        Self { wrong, task }
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }

    /// What is wrong now.
    pub(super) fn health(&self) -> Result<()> {
        match &*self.wrong.lock().expect("nothing panics while it holds this lock") {
            Some(why) => Err(Error::new(ErrorKind::Unavailable, why.clone())),
            None => Ok(()),
        }
    }
}

async fn watch(client: Client, probe: String, prefix: String, wrong: Wrong) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_soon_full = false;
    loop {
        tick.tick().await;
        let mut found = None;
        let mut soon_full = false;
        for probe in start::probes(&client, &probe, &prefix) {
            // A server that does not answer, or forbids INFO, says nothing about its memory.
            let Ok(memory) = Memory::of(&client, &probe).await else { continue };
            found = found.or(memory.wrong());
            soon_full |= memory.used_percent() >= SOON_FULL;
        }
        if soon_full && !was_soon_full {
            tracing::warn!("the server's memory is {SOON_FULL} % full: trim topics, or raise maxmemory");
        }
        was_soon_full = soon_full;
        let mut wrong = wrong.lock().expect("nothing panics while it holds this lock");
        if let Some(why) = found.as_ref().filter(|_| *wrong != found) {
            tracing::error!("{why}");
        }
        *wrong = found;
    }
}

/// Refuses servers that evict keys. Where INFO is forbidden, that cannot be seen.
pub(super) async fn check(client: &Client, keys: &KeyNames) -> Result<()> {
    for probe in start::probes(client, &keys.probe(), keys.prefix()) {
        match Memory::of(client, &probe).await {
            Ok(memory) => memory.check()?,
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "whether the server evicts keys cannot be seen: permit +info");
            }
        }
    }
    Ok(())
}

/// What a server says of its memory.
struct Memory {
    max: u64,
    used: u64,
    policy: String,
}

impl Memory {
    async fn of(client: &Client, probe: &str) -> Result<Self> {
        let answer = ask(client, probe.as_bytes(), cmd("INFO").arg("memory")).await.map_err(of_call)?;
        let info = Info::parse(&answer);
        let number = |name| info.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let policy = info.get("maxmemory_policy").unwrap_or_default().to_owned();
        Ok(Self { max: number("maxmemory"), used: number("used_memory"), policy })
    }

    /// Our keys have no time to live, so that only these policies evict them.
    fn evicts(&self) -> bool {
        self.max > 0 && self.policy.starts_with("allkeys")
    }

    fn check(&self) -> Result<()> {
        if !self.evicts() {
            return Ok(());
        }
        let context = format!(
            "the server evicts keys when its memory is full (maxmemory-policy {}): records, groups and \
             leases would vanish; set maxmemory-policy noeviction",
            self.policy
        );
        Err(Error::new(ErrorKind::Unsupported, context))
    }

    fn used_percent(&self) -> u64 {
        self.used.saturating_mul(100).checked_div(self.max).unwrap_or(0)
    }

    fn wrong(&self) -> Option<String> {
        let full =
            "the server's memory is full (maxmemory): trim topics, settle records, or give it more memory";
        match self.check() {
            Err(error) => Some(error.context().to_owned()),
            Ok(()) => (self.used_percent() >= 100).then(|| full.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q04_only_a_limit_with_a_policy_for_all_keys_evicts_ours() {
        for (max, used, policy, is_good) in [
            (0, 9, "allkeys-lru", true),
            (10, 1, "allkeys-lfu", false),
            (10, 9, "volatile-ttl", true),
            (10, 10, "noeviction", false),
        ] {
            let memory = Memory { max, used, policy: policy.to_owned() };
            assert_eq!(memory.wrong().is_none(), is_good, "{policy}");
        }
    }
}
