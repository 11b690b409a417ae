//! [`ConsumerBuilder`]: the builder behind `broker.consumer(..)`, finished by `.await`.

use super::config::{ConsumerConfig, KeyOrdering, StartAt};
use super::coordinator::Coordinator;
use super::damage::Damage;
use super::lane::Common;
use super::leases::LeaseRenewer;
use super::losses::Losses;
use super::ready_queue::ReadyQueue;
use super::{Consumer, ConsumerHandle};
use crate::background::Background;
use crate::broker::Broker;
use crate::error::{Result, invalid};
use crate::metrics::GroupMeter;
use crate::retry::RetryPolicy;
use crate::topic::{TopicInfo, Topics};
use firth_engine::{GroupName, HolderName, TopicName};
use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A consumer about to join its group; finish it with `.await`.
#[must_use = "nothing is consumed until it is awaited"]
pub struct ConsumerBuilder {
    broker: Broker,
    topic: String,
    group: String,
    config: ConsumerConfig,
}

impl ConsumerBuilder {
    pub(crate) fn new(broker: Broker, topic: &str, group: &str) -> Self {
        Self { broker, topic: topic.to_owned(), group: group.to_owned(), config: ConsumerConfig::default() }
    }

    /// Everything at once.
    pub fn config(mut self, config: ConsumerConfig) -> Self {
        self.config = config;
        self
    }

    /// A name for people; a random part is added.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// What kind of program it is, for people who look at the group; `library` unless set.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.config.kind = kind.into();
        self
    }

    /// Only one consumer at a time has this name: it takes over from its predecessor at once, which
    /// is gone. See [`ConsumerConfig::takes_over`].
    pub fn takes_over(mut self) -> Self {
        self.config.takes_over = true;
        self
    }

    /// How many records of one partition are read ahead and not settled; 500 unless set.
    pub fn max_in_flight(mut self, records: usize) -> Self {
        self.config.max_in_flight = records;
        self
    }

    /// How many records of one partition are handled at the same time; 1 unless set. Records of one
    /// key never are.
    pub fn concurrency(mut self, records: usize) -> Self {
        self.config.concurrency = records;
        self
    }

    /// What a failed record does to later ones of its key; strict unless set.
    pub fn ordering(mut self, ordering: KeyOrdering) -> Self {
        self.config.ordering = ordering;
        self
    }

    /// When failed records are tried again, and when they are given up.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.config.retry = policy;
        self
    }

    /// Where a new group starts; at the oldest record unless set.
    pub fn start_at(mut self, start: StartAt) -> Self {
        self.config.start = start;
        self
    }

    /// How long a crashed consumer keeps its partitions; 10 s unless set.
    pub fn lease(mut self, ttl: Duration) -> Self {
        self.config.lease = ttl;
        self
    }

    /// How long a handler may take before it counts as failed; without limit unless set.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.config.handler_timeout = Some(limit);
        self
    }

    /// How long running handlers may finish when a partition is given up or the consumer closes; 30
    /// s unless set.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.config.drain = limit;
        self
    }

    /// Takes exactly these partitions, independent of the other members; they share the rest.
    pub fn partitions(mut self, partitions: impl IntoIterator<Item = u32>) -> Self {
        self.config.partitions = partitions.into_iter().collect();
        self
    }

    /// Takes at most this many partitions, even if the group has few members. A partition for which
    /// no member has room waits. Any number unless set.
    pub fn max_partitions(mut self, count: u32) -> Self {
        self.config.max_partitions = Some(count);
        self
    }

    async fn build(self) -> Result<Consumer> {
        let Self { broker, topic, group, config } = self;
        let topic = TopicName::new(&topic)?;
        let group = GroupName::new(&group)?;
        config.check()?;
        let me = format!("{}-{:016x}", config.name, fastrand::u64(..));
        HolderName::new(&me)?;
        let info = broker.topic_or_create(&topic).await?;
        if let Some(missing) = config.partitions.iter().find(|index| **index >= info.config.partitions) {
            let count = info.config.partitions;
            return Err(invalid(format!("partition {missing} of topic {topic}, which has {count}")));
        }
        // Fixes where the group starts on every partition, before any member opens it.
        let topics = Topics::new(broker.engine().clone());
        topics.make_group(&info, &group, config.start.into(), &config.partitions).await?;
        Ok(start(&broker, &info, group, config, me))
    }
}

fn start(
    broker: &Broker,
    info: &TopicInfo,
    group: GroupName,
    config: ConsumerConfig,
    me: String,
) -> Consumer {
    let topic = info.name.clone();
    let (paused, is_paused) = watch::channel(false);
    let (assigned, assignment) = watch::channel(BTreeMap::new());
    let closing = CancellationToken::new();
    let leases = LeaseRenewer::new(config.lease);
    let common = Arc::new(Common {
        engine: broker.engine().clone(),
        meter: GroupMeter::new(&topic, &group),
        group,
        config,
        ready_queue: Arc::new(ReadyQueue::default()),
        paused: is_paused,
        chunk: AtomicUsize::new(1),
        batch: AtomicUsize::new(1),
        max_payload: info.config.max_payload,
        losses: Losses::default(),
        damage: Damage::default(),
        built_on: info.clone(),
        follows: info.config.adopted.as_ref().map(|adopted| adopted.stream.clone()),
    });
    let coordinator = Coordinator::new(common.clone(), topic, me.clone(), leases.clone(), assigned);
    let renewals = broker.renewals().spawn(|engine, vital| leases.clone().keep_renewing(engine, vital));
    let coordinator = tokio::spawn(coordinator.run(closing.clone()));
    let in_flight = common.meter.in_flight.clone();
    let paused = Arc::new(paused);
    let losses = common.losses.clone();
    let damage = common.damage.clone();
    let handle = ConsumerHandle { name: me, paused, closing, assignment, leases, in_flight, losses, damage };
    // Dropped before its end, it takes the lanes and the renewals with it.
    let coordinator = Background::new("consumer", coordinator, renewals.stop());
    Consumer { common, handle, coordinator, news: None }
}

impl IntoFuture for ConsumerBuilder {
    type Output = Result<Consumer>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.build())
    }
}
