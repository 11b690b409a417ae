//! [`Broker`]: the entry point. A cheap handle on an engine; makes topics, producers, consumers and
//! admin views.
//!
//! It owns one background task, the housekeeper (retention), which starts with the first topic,
//! producer or consumer and ends with `close` or with the last handle; and, while it has consumers
//! or workers, the thread of their renewals.

use crate::admin::Admin;
use crate::adopt::AdoptStream;
use crate::catalog::{BusHandle, CatalogHandle};
use crate::claims::Claims;
use crate::consumer::ConsumerBuilder;
use crate::dead_letters::DeadLetters;
use crate::error::{Error, ErrorKind, Result};
use crate::housekeeping::{self, Housekeeping};
use crate::producer::ProducerBuilder;
use crate::renewals::Renewals;
use crate::side_groups::SideGroups;
use crate::source::SourceWriter;
use crate::topic::{AutoCreate, CreateTopic, TopicConfig, TopicInfo, Topics};
use firth_engine::facet::EngineNode;
use firth_engine::{Engine, Epoch, Hold, TopicName};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the engine may take for a sign of life.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// A handle on everything; clones share it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let broker = firth::Broker::memory();
/// broker.create_topic("orders").partitions(4).await?;
/// let producer = broker.producer("orders").await?;
/// let receipt = producer.send("first order").await?;
/// assert!(receipt.partition < 4);
/// # broker.close().await
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Broker(Arc<Inner>);

struct Inner {
    engine: Engine,
    auto_create: Option<AutoCreate>,
    housekeep_every: Duration,
    housekeeping: Mutex<Option<Housekeeping>>,
    renewals: Renewals,
}

impl Broker {
    /// Opens topics in a directory, which is made if missing. Every acknowledged message is on
    /// disk. One process at a time.
    #[cfg(feature = "embedded")]
    pub async fn open(path: impl AsRef<std::path::Path>) -> Result<Self> {
        let options = firth_engine::FileOptions::default();
        Ok(Self::with_engine(Engine::file(path, options).await?))
    }

    /// Opens the engine that `url` names: `memory:`, `file:./data`, `redis://host`, …
    pub async fn connect(url: &str) -> Result<Self> {
        Ok(Self::with_engine(Engine::at(url).await?))
    }

    /// Topics in memory, gone with the last handle: for tests, and for data that may be lost.
    pub fn memory() -> Self {
        Self::with_engine(Engine::memory())
    }

    /// A broker on any engine.
    pub fn with_engine(engine: Engine) -> Self {
        Self(Arc::new(Inner {
            renewals: Renewals::new(engine.clone()),
            engine,
            auto_create: None,
            housekeep_every: Duration::from_secs(60),
            housekeeping: Mutex::new(None),
        }))
    }

    /// A handle that creates missing topics like this when a producer or a consumer asks for them.
    /// Without it they are errors. There is a bound on how many: see [`AutoCreate`].
    #[must_use]
    pub fn auto_create(&self, policy: impl Into<AutoCreate>) -> Self {
        self.with(|inner| inner.auto_create = Some(policy.into()))
    }

    /// A handle whose retention runs this often; every minute unless set.
    #[must_use]
    pub fn housekeep_every(&self, interval: Duration) -> Self {
        self.with(|inner| inner.housekeep_every = interval.max(Duration::from_millis(10)))
    }

    fn with(&self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner {
            engine: self.0.engine.clone(),
            auto_create: self.0.auto_create.clone(),
            housekeep_every: self.0.housekeep_every,
            housekeeping: Mutex::new(None),
            renewals: self.0.renewals.clone(),
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Creates a topic; see [`CreateTopic`] for what can be set.
    pub fn create_topic(&self, name: &str) -> CreateTopic<'_> {
        CreateTopic::new(self, name)
    }

    /// Makes a topic of one partition that follows a plain Redis stream which other programs write;
    /// see [`AdoptStream`]. On Redis and Valkey only.
    pub fn adopt_stream(&self, topic: &str) -> AdoptStream<'_> {
        AdoptStream::new(self, topic)
    }

    /// A topic as it stands.
    pub async fn topic(&self, name: &str) -> Result<TopicInfo> {
        self.topics().get(&TopicName::new(name)?).await
    }

    /// A producer for a topic; see [`ProducerBuilder`] for what can be set.
    pub fn producer(&self, topic: &str) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), topic)
    }

    /// The writer of a source's changes to a topic, under the epoch of the reader's claim on the
    /// source; see [`SourceWriter`]. From now on every reader with a lower epoch is refused, and if
    /// one with a higher epoch is there, this fails with [`ErrorKind::Fenced`].
    pub async fn source_writer(&self, topic: &str, source: &str, epoch: Epoch) -> Result<SourceWriter> {
        SourceWriter::open(self, topic, source, epoch).await
    }

    /// Forgets how far a source is in a topic, once it is gone for good: its place goes to another
    /// source. False if no partition knew it. A reader of the source that still runs would not be
    /// refused afterwards: stop it first.
    pub async fn forget_source(&self, topic: &str, source: &str) -> Result<bool> {
        crate::source::forget(self, topic, source).await
    }

    /// All topics, sorted by name.
    pub async fn list_topics(&self) -> Result<Vec<TopicInfo>> {
        self.topics().list().await
    }

    /// Adds partitions, up to `partitions` in all. Groups read the new ones from their start.
    ///
    /// Keys move as the topic's [`Mapping`](crate::Mapping) says; records that are already there
    /// stay where they are, so the order of a moved key holds only from its first record in the new
    /// partition on. Running producers and consumers notice by themselves.
    pub async fn grow_topic(&self, name: &str, partitions: u32) -> Result<TopicInfo> {
        self.topics().grow(&TopicName::new(name)?, partitions).await
    }

    /// Changes retention, payload limit and the like; not the partitions, not the mapping of keys.
    pub async fn alter_topic(&self, name: &str, change: impl Fn(&mut TopicConfig)) -> Result<TopicInfo> {
        self.topics().alter(&TopicName::new(name)?, change).await
    }

    /// Deletes a topic with its records, groups and dead letters; false if there was none.
    pub async fn delete_topic(&self, name: &str) -> Result<bool> {
        self.topics().delete(&TopicName::new(name)?).await
    }

    /// A consumer of a topic as a member of `group`; see [`ConsumerBuilder`] for what can be set.
    pub fn consumer(&self, topic: &str, group: &str) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic, group)
    }

    /// A service whose work is offered and claimed; see [`claims`](crate::claims).
    pub fn claims(&self, service: &str) -> Claims {
        Claims::new(self.clone(), service)
    }

    /// The operator's view: topics, groups, owners, lag, repair.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// The dead letters of a topic.
    pub fn dead_letters(&self, topic: &str) -> DeadLetters {
        DeadLetters::new(self.clone(), topic)
    }

    /// Groups beside the one that this hold is of, on the hold's partition, for the partition's
    /// owner; see [`SideGroups`].
    pub fn side_groups(&self, hold: &Hold) -> Result<SideGroups> {
        SideGroups::new(self.clone(), hold)
    }

    /// Small values that all processes of the engine share; see [`catalog`](crate::catalog).
    pub fn catalog(&self) -> CatalogHandle {
        CatalogHandle::new(self.engine().clone())
    }

    /// Hints from process to process; see [`catalog`](crate::catalog).
    pub fn bus(&self) -> BusHandle {
        BusHandle::new(self.engine().clone())
    }

    /// Asks the engine for a sign of life, for health checks: one small read, answered within 5 s
    /// or else with `Unavailable`. Also fails while the engine knows that something is wrong with
    /// what it stores.
    pub async fn check(&self) -> Result<()> {
        self.engine().health()?;
        let answer = tokio::time::timeout(SIGN_OF_LIFE, self.topics().check()).await;
        answer.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the engine does not answer")))
    }

    /// The engine's kind and place, without secrets: `memory:`, `file:DIR`, `redis://…`.
    pub fn describe(&self) -> String {
        self.engine().describe()
    }

    /// The servers that the engine runs on, as it saw them a few seconds ago; none for an engine
    /// inside the process. It asks nothing of them.
    pub fn nodes(&self) -> Vec<EngineNode> {
        self.engine().nodes()
    }

    /// Fails at once while the engine takes no messages, because its disk or memory is full. A
    /// producer would try again for its whole timeout.
    pub fn takes_appends(&self) -> Result<()> {
        self.engine().takes_appends()
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Where leases are renewed.
    pub(crate) fn renewals(&self) -> &Renewals {
        &self.0.renewals
    }

    /// Runs retention once, now. The housekeeper does so by itself.
    pub async fn housekeep(&self) -> Result<housekeeping::Swept> {
        housekeeping::sweep(self.engine()).await
    }

    /// Stops the housekeeper and closes the engine, for every handle on it. Close producers and
    /// consumers first.
    pub async fn close(self) -> Result<()> {
        let running = self.0.housekeeping.lock().expect("nothing panics under this lock").take();
        if let Some(running) = running {
            running.stop().await;
        }
        self.0.engine.close().await
    }

    pub(crate) fn topics(&self) -> Topics {
        Topics::new(self.0.engine.clone())
    }

    /// The topic, created by the policy of [`auto_create`](Self::auto_create) if it is missing.
    pub(crate) async fn topic_or_create(&self, name: &TopicName) -> Result<TopicInfo> {
        self.start_housekeeping();
        let topics = self.topics();
        match (topics.open(name).await, &self.0.auto_create) {
            (Err(missing), Some(policy)) if missing.kind() == ErrorKind::NotFound => {
                policy.make(&topics, name).await
            }
            (found, _) => found,
        }
    }

    pub(crate) fn start_housekeeping(&self) {
        let mut running = self.0.housekeeping.lock().expect("nothing panics under this lock");
        running.get_or_insert_with(|| Housekeeping::start(self.0.engine.clone(), self.0.housekeep_every));
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broker({:?})", self.0.engine)
    }
}
