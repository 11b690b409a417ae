//! Keys of Redis: a notification names a key, the reader reads it and tells what it holds now.
//!
//! Notifications are told once, to those who listen. So changes can be missed and are joined, and
//! the status says `lossy`. `rescan` reads all keys at the start and after each gap.

mod config;
mod listen;
mod value;

pub use config::{ReadAs, RedisKeysConfig, RedisKeysOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::pump::Limits;
use crate::source::{ChangeStream, NoPlace, Opening, Policy, Source, Step};
use firth_redis::config::{Config, Server};
use firth_redis::mux::{Buffer, OverflowPolicy};
use firth_redis::{CallError, Client, NodeRole, cmd};
use listen::Listener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Steps that wait for the reader, at most.
const AHEAD: usize = 64;
/// Bytes of notifications that wait, at most; those beyond are a gap.
const BUFFER: usize = 4 << 20;

/// Keys of Redis as a source.
#[derive(Debug)]
pub struct RedisKeys {
    config: Arc<RedisKeysConfig>,
    /// Numbers the steps of all sessions under one epoch.
    count: Arc<AtomicU64>,
}

impl RedisKeys {
    /// The keys of this source.
    pub fn new(config: Arc<RedisKeysConfig>) -> Self {
        Self { config, count: Arc::default() }
    }
}

impl Source for RedisKeys {
    type Place = NoPlace;
    type Stream = Notified;

    fn name(&self) -> &str {
        &self.config.name
    }

    fn policy(&self) -> &Policy {
        &self.config.policy
    }

    fn collections(&self) -> Vec<String> {
        vec![self.config.collection.clone()]
    }

    fn limits(&self) -> Limits {
        self.config.limits.clone()
    }

    async fn open(&self, place: Option<&NoPlace>, context: &Opening<'_>) -> Result<(Notified, NoPlace)> {
        let config = self.config.clone();
        let progress = context.progress.clone();
        progress.lossy();
        if place.is_some() {
            // Before this session no node listened.
            progress.gap();
        }
        let client = Client::connect(&config.redis).await.map_err(|error| {
            Error::unavailable("Redis cannot be reached, or refuses us").with_source(error)
        })?;
        let nodes = nodes(&config, &client).await?;
        for node in &nodes {
            check(&config, node).await?;
        }
        let prefix = format!("__keyspace@{}__:", config.redis.database);
        let pattern = format!("{prefix}{}", config.pattern);
        let buffer = Buffer { bytes: BUFFER, overflow: OverflowPolicy::DropOldest };
        let subscribed = client.mux().subscribe_pattern([pattern]).buffer(buffer).await;
        let (steps, told) = mpsc::channel(AHEAD);
        let is_first = place.is_none();
        let numbers = (context.epoch, self.count.clone());
        let subscription = subscribed.map_err(passing)?;
        let listener = Listener { config, client, progress, steps, numbers, prefix, scan: None };
        let mut task = JoinSet::new();
        task.spawn(listener.run(subscription, is_first));
        Ok((Notified { told, _task: task }, NoPlace {}))
    }
}

/// A client for each master, whose keys and settings are its own.
async fn nodes(config: &RedisKeysConfig, client: &Client) -> Result<Vec<Client>> {
    if !matches!(config.redis.server, Server::Cluster(_)) {
        return Ok(vec![client.clone()]);
    }
    let mut nodes = Vec::new();
    for node in client.nodes().into_iter().filter(|node| node.role == NodeRole::Master) {
        let mut alone: Config = config.redis.clone();
        alone.server = Server::Tcp(node.address);
        nodes.push(Client::connect(&alone).await.map_err(|error| {
            Error::unavailable("a node of the cluster cannot be reached").with_source(error)
        })?);
    }
    Ok(nodes)
}

/// Whether a node tells what happens to the keys. Its settings are the operator's, and stay.
async fn check(config: &RedisKeysConfig, node: &Client) -> Result<()> {
    let asked = node.call::<Vec<String>>(cmd("CONFIG").arg("GET").arg("notify-keyspace-events")).await;
    let told = match asked {
        Err(error) if error.code().is_some() => {
            let context =
                "the setting notify-keyspace-events cannot be read: give the user the right CONFIG|GET";
            return Err(Error::new(ErrorKind::Unauthorized, context).with_source(error));
        }
        told => told.map_err(passing)?,
    };
    let flags = told.get(1).map_or("", String::as_str);
    let missing = config.read.missing(flags);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::refused(format!(
        "notify-keyspace-events is {flags:?} and lacks {missing}: set it on every node, for example to KA"
    )))
}

fn passing(error: CallError) -> Error {
    Error::unavailable("Redis does not answer as it should").with_source(error)
}

/// Open subscriptions; a task reads the keys.
pub struct Notified {
    told: mpsc::Receiver<Result<Step<NoPlace>>>,
    _task: JoinSet<()>,
}

impl ChangeStream for Notified {
    type Place = NoPlace;

    async fn next(&mut self) -> Result<Step<NoPlace>> {
        match self.told.recv().await {
            Some(step) => step,
            None => Err(Error::unavailable("the reader of keys ended")),
        }
    }
}
