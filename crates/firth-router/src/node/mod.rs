//! [`Router`]: a node. Reads a topic as a member of a consumer group, matches, routes, and feeds
//! the lanes of gateways.
//!
//! ```text
//! consumer group ─► reader: decode, match, route ─► lane per gateway ─► driver ─► deliverer
//!      ▲ ack, or dead letter                            │ released
//!      └────────────── open records ◄───────────────────┘
//! ```
//! A record is settled when every gateway that it is for has released it, so the group's frontier
//! is the checkpoint: assignment, handover, fencing and resuming are the queue's. A record that
//! some gateway refused for good becomes a dead letter of the group, with each gateway's reason;
//! replaying it delivers it again under the same number, and gateways that have it drop it.
//!
//! If a gateway holds up a partition, the node *parks* it: a group of its own on the topic feeds it
//! until it has caught up. So it does not slow the other gateways (`catch_up`).

mod catch_up;
mod dead_letter_expiry;
mod driver;
mod health;
mod lanes;
mod metrics;
mod progress;
mod reader;
mod records;
mod refusal;
mod slot;

pub use health::{Health, LAG_LIMIT, STALE_LIMIT, Signs};
pub use lanes::{LaneStatus, ParkedPartition};

use crate::config::RoutingConfig;
use crate::deliver::Deliverer;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::lane::LaneAccounting;
use crate::registry::Registry;
use crate::routing::partition;
use firth::{Broker, ConsumerConfig, ConsumerHandle, KeyOrdering, Message, RetryPolicy};
use lanes::Lanes;
use reader::Reader;
use records::Records;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// What a node reads and how it is called.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// The topic of events.
    pub topic: String,
    /// The group that all nodes of one router share.
    pub group: String,
    /// The name of this node, for people and for gateways.
    pub node: String,
    /// No other node has this name, so that after a crash it takes over from its former life at
    /// once instead of waiting for the lease.
    pub is_sole: bool,
    /// Everything under `routing:`.
    pub routing: RoutingConfig,
    /// How long a crashed node keeps its partitions.
    pub lease: Duration,
    /// How long batches on their way may finish when a partition is handed over or the node closes.
    pub drain: Duration,
    /// How long a gateway may hold up a partition before it is parked.
    pub stall_timeout: Duration,
}

impl RouterOptions {
    /// Options with the defaults.
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            group: "router".to_owned(),
            node: "router".to_owned(),
            is_sole: false,
            routing: RoutingConfig::default(),
            lease: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(1),
        }
    }

    /// How a consumer of the router works.
    fn consumer(&self) -> ConsumerConfig {
        ConsumerConfig {
            name: self.node.clone(),
            takes_over: self.is_sole,
            max_in_flight: MAX_OPEN,
            concurrency: MAX_OPEN,
            // Order is kept by the lanes, per document and around controls; nothing is ever nacked.
            ordering: KeyOrdering::Unordered,
            retry: RetryPolicy { max_crashes: 0, ..RetryPolicy::default() },
            lease: self.lease,
            drain: self.drain,
            ..ConsumerConfig::default()
        }
    }
}

/// What the name of a group that feeds a parked gateway begins with: the router's, this, and then
/// the gateway's.
const FEED: &str = ".gw.";

/// Whether a group is that of a router, or one by which it feeds a parked gateway.
pub fn is_routers(router: &str, group: &str) -> bool {
    group.strip_prefix(router).is_some_and(|rest| rest.is_empty() || rest.starts_with(FEED))
}

/// How many records of a partition may be unsettled; the queue allows no more.
const MAX_OPEN: usize = 500;

/// A running node. [`close`](Self::close) drains it; dropping it is like a crash, and another node
/// takes over.
pub struct Router {
    handle: ConsumerHandle,
    lanes: Arc<Lanes>,
    records: Arc<Records>,
    reader: Mutex<Option<JoinHandle<Result<()>>>>,
    sweeper: JoinHandle<()>,
}

impl Router {
    /// Joins the group and begins to route.
    pub async fn start(
        broker: &Broker,
        registry: Registry,
        deliverer: Arc<dyn Deliverer>,
        options: RouterOptions,
    ) -> Result<Self> {
        registry.join(&options.node, &options.topic, &options.group).await?;
        let builder = broker.consumer(&options.topic, &options.group);
        let consumer = builder.config(options.consumer()).await?;
        let handle = consumer.handle();
        let records = Arc::new(Records::new(options.routing.dlq.enabled));
        let sweeper = tokio::spawn(dead_letter_expiry::run(broker.clone(), options.clone()));
        let lanes = Lanes::new(registry, deliverer, &options, Arc::clone(&records), handle.clone());
        let lanes = Arc::new(lanes);
        let reader = Reader::new(broker.clone(), handle.clone(), Arc::clone(&lanes), options);
        let reader = tokio::spawn(reader.run(consumer));
        Ok(Self { handle, lanes, records, reader: Mutex::new(Some(reader)), sweeper })
    }

    /// The node as a member of its group.
    pub fn consumer(&self) -> &ConsumerHandle {
        &self.handle
    }

    /// The lanes, by gateway.
    pub fn lanes(&self) -> Vec<LaneStatus> {
        self.lanes.status()
    }

    /// The accounting of all lanes, by partition. In balance at every moment.
    pub fn accounting(&self) -> BTreeMap<u32, LaneAccounting> {
        self.lanes.accounting()
    }

    /// Whether it routes; a node whose reader failed, or that was closed, does not.
    pub fn is_running(&self) -> bool {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.as_ref().is_some_and(|reader| !reader.is_finished())
    }

    /// Records that are read and not settled.
    pub fn open_records(&self) -> usize {
        self.records.len()
    }

    /// Stops reading, lets batches on their way finish, stores every verdict, and hands the
    /// partitions over.
    pub async fn close(&self) -> Result<()> {
        self.lanes.closing.cancel();
        self.handle.close();
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = match reader {
            Some(reader) => reader.await.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Engine, "the reader's task failed").with_source(error))
            }),
            None => Ok(()),
        };
        self.lanes.close().await;
        self.sweeper.abort();
        ended
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            reader.abort();
        }
        self.lanes.abort();
        self.sweeper.abort();
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router({} lanes, {} records open)", self.lanes.len(), self.records.len())
    }
}

/// The message that carries an event: in the compact form, to the partition of its document.
///
/// It has no key: the lanes keep the order of each document, so a busy document does not wait for
/// one acknowledgement per event.
pub fn message(event: &Event, partitions: u32) -> Result<Message> {
    event.check()?;
    let at = partition(&event.collection, &event.key, partitions);
    Ok(Message::new(event.to_compact()).to_partition(at))
}
