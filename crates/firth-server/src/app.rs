//! What every handler shares: the broker, delivery leases, worker sessions, cached producers,
//! the guard, the limits. Closed once, at the end.

use crate::api::Meter;
use crate::auth::{Audit, Buckets, Guard, Sum};
use crate::config::Limits;
use crate::connect::Connect;
use crate::delivery_leases::DeliveryLeases;
use crate::events::Events;
use crate::routing::Routing;
use crate::takeovers::Takeovers;
use crate::telemetry::{Series, Telemetry};
use crate::worker_sessions::WorkerSessions;
use firth::{Broker, Durability, Error, ErrorKind, Producer, Result, TopicConfig};
use firth_router::config::NodeConfig;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Producers kept for topics in use; beyond that, one that is kept makes room.
const MAX_PRODUCERS: usize = 1024;
/// Idempotency keys whose request is remembered, to tell a repetition from a mistake; beyond that,
/// all are forgotten.
const MAX_KEYS: usize = 10_000;

/// Small bodies have room for one in this many of the bytes that all have, on top.
const SMALL_SHARE: usize = 8;

fn take(room: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    room.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
}

/// The server's state; clones share it.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    broker: Broker,
    /// What a topic is that says nothing else.
    usual: TopicConfig,
    delivery_leases: DeliveryLeases,
    worker_sessions: WorkerSessions,
    guard: Guard,
    audit: Arc<Audit>,
    limits: RwLock<Arc<Limits>>,
    /// Room for request bodies, in bytes.
    room: Arc<Semaphore>,
    /// Room for small bodies alone, so that uploads never keep verdicts out.
    small_room: Arc<Semaphore>,
    streams: Mutex<usize>,
    callers: Buckets<String>,
    failures: Buckets<RefusalKey>,
    metrics: Option<Series>,
    meter: Meter,
    telemetry: Telemetry,
    events: Events,
    takeovers: Takeovers,
    routing: Routing,
    connect: Connect,
    console: bool,
    producers: Mutex<HashMap<Sending, Producer>>,
    requests: Mutex<HashMap<[u8; 32], [u8; 32]>>,
    draining: AtomicBool,
    closing: CancellationToken,
}

/// What a server has beyond an app inside a process.
#[derive(Default)]
pub(crate) struct Extras {
    pub(crate) limits: Limits,
    pub(crate) audit: Arc<Audit>,
    pub(crate) telemetry: Telemetry,
    pub(crate) routing: Option<NodeConfig>,
    /// The databases whose changes are read here.
    pub(crate) connect: Vec<firth_connect::SourceConfig>,
    /// How many partitions a topic gets that names none.
    pub(crate) partitions: Option<u32>,
    /// Whether `/` answers with the console.
    pub(crate) console: bool,
}

/// What refusals are counted by.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum RefusalKey {
    /// The presented token and where it came from: others there are not affected.
    Answered(Option<IpAddr>, Option<Sum>),
    /// Lines in log and audit, by address alone, so that no guesser fills the disk.
    Told(Option<IpAddr>),
}

/// A topic, and how messages are sent to it where that differs from the usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sending {
    pub(crate) topic: String,
    /// What an acknowledgement means.
    pub(crate) durability: Option<Durability>,
    /// Payloads of more than this many bytes are compressed.
    pub(crate) compress_above: Option<usize>,
}

/// The right to one stream, given back when it is dropped.
pub(crate) struct StreamPermit(App);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        *self.0.0.streams.lock().expect("nothing panics under this lock") -= 1;
        metrics::gauge!("firth_http_streams").decrement(1);
    }
}

impl App {
    /// State on a broker. Without `metrics` there is nothing to scrape.
    pub(crate) fn new(broker: Broker, guard: Guard, metrics: Option<Series>) -> Self {
        Self::with(broker, guard, metrics, Extras::default())
    }

    pub(crate) fn with(
        broker: Broker,
        guard: Guard,
        metrics: Option<Series>,
        Extras { limits, audit, telemetry, routing, connect, partitions, console }: Extras,
    ) -> Self {
        let closing = CancellationToken::new();
        // A server has a guard at its door; a command with an engine of its own has none.
        let kind = if matches!(guard, Guard::Inside) { "cli" } else { "server" };
        let delivery_leases = DeliveryLeases::open(broker.clone(), telemetry.clone(), kind);
        let worker_sessions = WorkerSessions::new(broker.clone());
        let events = Events::new(broker.clone(), metrics.clone(), delivery_leases.clone(), closing.clone());
        telemetry.refresh_with(&events);
        let routing = Routing::new(broker.clone(), routing);
        let connect = Connect::new(broker.clone(), connect);
        let room = limits.buffered.clamp(1024, Semaphore::MAX_PERMITS);
        let usual = TopicConfig::default();
        let usual = TopicConfig { partitions: partitions.unwrap_or(usual.partitions), ..usual };
        Self(Arc::new(Inner {
            broker,
            usual,
            delivery_leases,
            worker_sessions,
            guard,
            audit,
            limits: RwLock::new(Arc::new(limits)),
            room: Arc::new(Semaphore::new(room)),
            small_room: Arc::new(Semaphore::new(room / SMALL_SHARE)),
            streams: Mutex::new(0),
            callers: Buckets::new(),
            failures: Buckets::new(),
            metrics,
            meter: Meter::default(),
            telemetry,
            events,
            takeovers: Takeovers::default(),
            routing,
            connect,
            console,
            producers: Mutex::default(),
            requests: Mutex::default(),
            draining: AtomicBool::new(false),
            closing,
        }))
    }

    pub(crate) fn broker(&self) -> &Broker {
        &self.0.broker
    }

    /// What a topic is that says nothing else.
    pub(crate) fn usual_topic(&self) -> TopicConfig {
        self.0.usual.clone()
    }

    pub(crate) fn delivery_leases(&self) -> &DeliveryLeases {
        &self.0.delivery_leases
    }

    pub(crate) fn worker_sessions(&self) -> &WorkerSessions {
        &self.0.worker_sessions
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.0.guard
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.0.audit
    }

    pub(crate) fn routing(&self) -> &Routing {
        &self.0.routing
    }

    pub(crate) fn connect(&self) -> &Connect {
        &self.0.connect
    }

    /// Whether `/` answers with the console.
    pub(crate) fn has_console(&self) -> bool {
        self.0.console
    }

    pub(crate) fn events(&self) -> &Events {
        &self.0.events
    }

    pub(crate) fn takeovers(&self) -> &Takeovers {
        &self.0.takeovers
    }

    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.0.telemetry
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.0.meter
    }

    pub(crate) fn metrics(&self) -> Option<&Series> {
        self.0.metrics.as_ref()
    }

    /// How often callers ask, by their names.
    pub(crate) fn callers(&self) -> &Buckets<String> {
        &self.0.callers
    }

    /// How often callers were refused.
    pub(crate) fn failures(&self) -> &Buckets<RefusalKey> {
        &self.0.failures
    }

    pub(crate) fn limits(&self) -> Arc<Limits> {
        self.0.limits.read().expect("nothing panics under this lock").clone()
    }

    /// From now on these hold. Connections, room for bodies and times of connections stay as they
    /// were at the start.
    pub(crate) fn set_limits(&self, limits: Limits) {
        *self.0.limits.write().expect("nothing panics under this lock") = Arc::new(limits);
    }

    /// Room for this many bytes of a body, or `None` if there is none now.
    pub(crate) fn room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        take(&self.0.room, bytes)
    }

    /// Room for a body that is small so far: its own, else that of all.
    pub(crate) fn small_room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        take(&self.0.small_room, bytes).or_else(|| self.room_for(bytes))
    }

    /// A permit for one more stream, or `Overloaded`.
    pub(crate) fn permit(&self) -> Result<StreamPermit> {
        let max = self.limits().streams;
        let mut taken = self.0.streams.lock().expect("nothing panics under this lock");
        if *taken >= max {
            let why = format!("at most {max} streams at a time: close one, or raise limits.streams");
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        *taken += 1;
        metrics::gauge!("firth_http_streams").increment(1);
        Ok(StreamPermit(self.clone()))
    }

    /// The topic's producer, made at first use.
    pub(crate) async fn producer(&self, how: Sending) -> Result<Producer> {
        if let Some(producer) = self.producers().get(&how) {
            return Ok(producer.clone());
        }
        let mut made = self.broker().producer(&how.topic).name("http");
        if let Some(durability) = how.durability {
            made = made.durability(durability);
        }
        if let Some(bytes) = how.compress_above {
            made = made.compress_above(bytes);
        }
        let made = made.await?;
        let mut producers = self.producers();
        if producers.len() >= MAX_PRODUCERS
            && let Some(any) = producers.keys().next().cloned()
        {
            producers.remove(&any);
        }
        Ok(producers.entry(how).or_insert(made).clone())
    }

    /// Forgets what is cached of a topic that is gone.
    pub(crate) fn forget_producer(&self, topic: &str) {
        self.producers().retain(|how, _| how.topic != topic);
    }

    /// Ends the series of a topic that is gone, or of one of its groups.
    pub(crate) fn forget_series(&self, topic: &str, group: Option<&str>) {
        if let Some(metrics) = self.metrics() {
            metrics.forget(topic, group);
        }
    }

    /// Whether a key came with another request before, as far as is remembered.
    pub(crate) fn is_reused(&self, key: [u8; 32], request: [u8; 32]) -> bool {
        let mut requests = self.0.requests.lock().expect("nothing panics under this lock");
        if requests.len() >= MAX_KEYS {
            requests.clear();
        }
        *requests.entry(key).or_insert(request) != request
    }

    /// From now on it is not ready, and waiting fetches and streams end.
    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.closing.cancel();
        self.delivery_leases().stop_fetching();
        self.worker_sessions().stop_waiting();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    /// Resolves when streams must end.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Leaves every group, sends what is buffered and closes the engine.
    pub(crate) async fn close(&self) -> Result<()> {
        self.drain();
        self.connect().close().await;
        self.routing().close().await;
        self.delivery_leases().close().await;
        self.worker_sessions().close().await;
        let producers = std::mem::take(&mut *self.producers());
        for (_, producer) in producers {
            producer.close().await?;
        }
        self.telemetry().close().await;
        self.broker().clone().close().await
    }

    fn producers(&self) -> std::sync::MutexGuard<'_, HashMap<Sending, Producer>> {
        self.0.producers.lock().expect("nothing panics under this lock")
    }
}
