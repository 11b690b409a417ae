//! The Redis engine: Redis 7 or Valkey, standalone, behind sentinels, or a cluster.
//!
//! ```text
//! facets (log, groups, dead, leases, offers, catalog, bus) ─► script call ─► steps ─► EVALSHA [+ WAIT] ─► one slot
//! hints ◄─ notifier ◄─ invalidation pushes (client tracking) and a slow poll
//! ```
//! Each step of the contract is one script on keys of one hash tag. Reads of the log are plain
//! commands, and so are appends to a log that no other process appends to (`optimistic_append.rs`).
//! The engine keeps nothing in memory but names, sizes and heads under a watch: all truth is on the
//! server. If the outcome of a call is unknown, the owner opens the group again, and an idempotent
//! producer sends the batch again.
//!
//! One promise of the contract is weaker here: with `replicated` and `synced` a reader may see a
//! record a moment before its append is acknowledged. What a commit settles is still as safe as the
//! commit, since it follows on the same server.

mod blob;
mod burst_detector;
mod bus;
mod catalog;
mod dead;
mod delayed;
mod durability;
mod entry;
mod error_mapping;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzzing;
mod groups;
mod keys;
mod leases;
mod log;
mod node_info;
mod notify;
mod offers;
mod optimistic_append;
mod options;
mod pools;
mod read;
mod reply_decoding;
mod restart_guard;
mod scripts;
mod server_watch;
mod slot_placement;
mod start;
mod streams;
mod synced;
mod tail;
mod unit_clock;
mod waits;

pub use options::RedisOptions;

use crate::durability::Durability;
use crate::engine::Engine;
use crate::error::Result;
use crate::facet::{Backend, EngineNode, Reply};
use crate::id::RecordId;
use crate::name::{GroupName, Partition};
use crate::watch::{Hint, HintKey, Hints};
use durability::Steps;
use firth_redis::Client;
use firth_redis::config::{Address, Server};
use keys::{GroupKeys, KeyNames, PartitionKeys};
use notify::Notifier;
use optimistic_append::OptimisticAppends;
use restart_guard::FreshFile;
use server_watch::ServerWatch;
use std::sync::Arc;
use std::time::Duration;
use tail::Tails;

/// The engine on Redis or Valkey.
pub(crate) struct RedisEngine {
    keys: KeyNames,
    steps: Steps,
    notifier: Notifier,
    servers: ServerWatch,
    tails: Tails,
    optimistic: OptimisticAppends,
    description: String,
}

impl RedisEngine {
    /// Connects, checks the server, and starts to listen.
    pub(crate) async fn open(url: &str, options: RedisOptions) -> Result<Self> {
        let keys = KeyNames::new(&options.prefix)?;
        let client = start::connect(url).await?;
        let file = Arc::new(FreshFile::new(client.clone(), keys.probe()));
        let durability = match start::examine(&client, &file, &keys, &options).await {
            Ok(durability) => durability,
            Err(error) => {
                client.close().await;
                return Err(error);
            }
        };
        let description = describe(&client, &keys);
        let notifier = Notifier::start(client.clone());
        let servers = ServerWatch::start(client.clone(), &keys);
        let steps = Steps::new(file, durability, options.wait);
        tracing::info!(engine = %description, durability = ?steps.durability(), "opened");
        let tails = Tails::default();
        let optimistic = OptimisticAppends::default();
        Ok(Self { keys, steps, notifier, servers, tails, optimistic, description })
    }

    fn group_keys(&self, at: &Partition, group: &GroupName) -> (Arc<PartitionKeys>, GroupKeys) {
        let keys = self.keys.partition(at);
        let own = keys.group(group);
        (keys, own)
    }
}

/// Where the engine is, without secrets.
fn describe(client: &Client, keys: &KeyNames) -> String {
    let list = |addresses: &[Address]| addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
    let place = match &client.config().server {
        Server::Tcp(address) => format!("redis://{address}"),
        Server::Unix(path) => format!("redis+unix://{}", path.display()),
        Server::Sentinel(sentinels) => {
            format!("redis+sentinel://{}/{}", list(&sentinels.addresses), sentinels.master)
        }
        Server::Cluster(addresses) => format!("redis+cluster://{}", list(addresses)),
        _ => "redis".to_owned(),
    };
    format!("{place}?prefix={}", keys.prefix())
}

/// A duration as the scripts take it.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Where a listing by number begins: marks in time ([`RecordId::before_ms`]) have no number, and
/// are found by looking at all.
fn scan_from(after: RecordId) -> RecordId {
    if after.seq == u64::MAX { RecordId::ZERO } else { after }
}

impl Hints for RedisEngine {
    fn hint(&self, key: HintKey) -> Hint {
        self.notifier.hint(&self.keys, key)
    }
}

impl Backend for RedisEngine {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn can_promise(&self, durability: Durability) -> Reply<'_, ()> {
        Box::pin(self.steps.can_promise(&self.keys, durability))
    }

    fn apart(&self) -> Option<Engine> {
        let client = Client::lazy(self.steps.client.config().clone()).ok()?;
        let keys = KeyNames::new(self.keys.prefix()).ok()?;
        let file = Arc::new(FreshFile::new(client.clone(), keys.probe()));
        Some(Engine::new(Self {
            keys,
            steps: self.steps.over(file),
            servers: ServerWatch::start(client.clone(), &self.keys),
            notifier: Notifier::start(client),
            tails: Tails::default(),
            optimistic: OptimisticAppends::default(),
            description: self.description.clone(),
        }))
    }

    fn health(&self) -> Result<()> {
        self.servers.health()
    }

    fn nodes(&self) -> Vec<EngineNode> {
        self.servers.nodes()
    }

    fn close(&self) -> Reply<'_, ()> {
        Box::pin(async move {
            self.notifier.stop();
            self.servers.stop();
            self.optimistic.close();
            self.steps.close().await;
            Ok(())
        })
    }
}
