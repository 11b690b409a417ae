//! A watch of the servers: how they are, for operators, and their memory. A server that evicts keys
//! loses records, groups and leases without a word, so the engine refuses it at the start; and a
//! server may be set so, or be full, at any time later.

use super::error_mapping::of_call;
use super::keys::KeyNames;
use super::node_info;
use super::restart_guard::ask;
use super::start::{self, Info};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::EngineNode;
use firth_redis::{CallError, Client, cmd};
use futures_util::future::join_all;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often the servers are asked.
const EVERY: Duration = Duration::from_secs(2);
/// The share of its memory, in percent, above which a server is soon full.
const SOON_FULL: u64 = 90;

/// How long one server has for its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was found last.
#[derive(Default)]
struct WatchedServers {
    wrong: Option<String>,
    nodes: Vec<EngineNode>,
}

/// Asks all masters from time to time.
pub(super) struct ServerWatch {
    found: Arc<Mutex<WatchedServers>>,
    task: JoinHandle<()>,
}

impl ServerWatch {
    pub(super) fn start(client: Client, keys: &KeyNames) -> Self {
        let found = Arc::<Mutex<WatchedServers>>::default();
        let probe = keys.probe();
        let prefix = keys.prefix().to_owned();
        let task = tokio::spawn(watch(client, probe, prefix, found.clone()));
        Self { found, task }
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }

    /// What is wrong now.
    pub(super) fn health(&self) -> Result<()> {
        match &self.found.lock().expect("nothing panics while it holds this lock").wrong {
            Some(why) => Err(Error::new(ErrorKind::Unavailable, why.clone())),
            None => Ok(()),
        }
    }

    /// All servers.
    pub(super) fn nodes(&self) -> Vec<EngineNode> {
        self.found.lock().expect("nothing panics while it holds this lock").nodes.clone()
    }
}

async fn watch(client: Client, probe: String, prefix: String, found: Arc<Mutex<WatchedServers>>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_soon_full = false;
    loop {
        tick.tick().await;
        let asked = node_info::masters(&client, &probe, &prefix).into_iter().map(|master| {
            let client = &client;
            async move {
                let about = cmd("INFO").arg("server").arg("memory").arg("replication");
                let asked = ask(client, master.probe.as_bytes(), about);
                // A server that forbids INFO says nothing, but it is there.
                let info = match tokio::time::timeout(PATIENCE, asked).await {
                    Ok(Ok(info)) => Some(Info::parse(&info)),
                    Ok(Err(CallError::Server(_))) => Some(Info::default()),
                    _ => None,
                };
                (master, info)
            }
        });
        let told = join_all(asked).await;
        let memory: Vec<_> = told.iter().filter_map(|(_, info)| info.as_ref().map(Memory::read)).collect();
        let is_soon_full = memory.iter().any(|memory| memory.used_percent() >= SOON_FULL);
        if is_soon_full && !was_soon_full {
            tracing::warn!("the server's memory is {SOON_FULL} % full: trim topics, or raise maxmemory");
        }
        was_soon_full = is_soon_full;
        let wrong = memory.iter().find_map(Memory::wrong);
        let nodes = node_info::nodes(told, &client.nodes());
        let mut found = found.lock().expect("nothing panics while it holds this lock");
        if let Some(why) = wrong.as_ref().filter(|_| found.wrong != wrong) {
            tracing::error!("{why}");
        }
        *found = WatchedServers { wrong, nodes };
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
        Ok(Self::read(&Info::parse(&answer)))
    }

    fn read(info: &Info) -> Self {
        let policy = info.get("maxmemory_policy").unwrap_or_default().to_owned();
        let [max, used] = ["maxmemory", "used_memory"].map(|name| info.number(name).unwrap_or(0));
        Self { max, used, policy }
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
