//! [`ProducerBuilder`]: the builder behind `broker.producer(..)`, finished by `.await`.

use super::accumulator::Accumulator;
use super::sender::Sender;
use super::{BatchPolicy, Producer, Settings, Shared, TIMEOUT, TopicView, backoff, check_own};
use crate::broker::Broker;
use crate::error::{Result, invalid};
use crate::metrics::ProducerMeter;
use crate::partitioner::{ByKey, Partitioner};
use firth_engine::{Durability, MAX_NAME, ProducerName, TopicName};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A producer about to be made; finish it with `.await`.
#[must_use = "nothing is made until it is awaited"]
pub struct ProducerBuilder {
    broker: Broker,
    topic: String,
    settings: Settings,
    partitioner: Option<Box<dyn Partitioner>>,
    max_buffered: usize,
    compress_above: usize,
}

impl ProducerBuilder {
    pub(crate) fn new(broker: Broker, topic: &str) -> Self {
        let settings = Settings {
            batch: BatchPolicy::default(),
            idempotent: false,
            name: "producer".to_owned(),
            timeout: TIMEOUT,
            backoff: backoff(),
            durability: None,
        };
        let max_buffered = 32 * 1024 * 1024;
        let compress_above = usize::MAX;
        Self { broker, topic: topic.to_owned(), settings, partitioner: None, max_buffered, compress_above }
    }

    /// Waits up to this long for more messages before a batch leaves. Zero unless set: batches then
    /// grow with the load alone.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.batch.linger = linger;
        self
    }

    /// Everything about batches.
    pub fn batch(mut self, policy: BatchPolicy) -> Self {
        self.settings.batch = policy;
        self
    }

    /// How many bytes may wait or be on their way, overhead included; 32 MiB unless set. Beyond
    /// that, sending waits.
    pub fn max_buffered(mut self, bytes: usize) -> Self {
        self.max_buffered = bytes.clamp(1024, 1024 * 1024 * 1024);
        self
    }

    /// Numbers the batches, so that a batch is appended once however often it is sent, and unknown
    /// outcomes can be retried.
    ///
    /// Each partition remembers the producer for at least twice its [`timeout`](Self::timeout),
    /// however many `send_once` names and `Idempotency-Key` requests come, while fewer
    /// than 10 000 idempotent producers send to it in that time. If the server lost its last
    /// moments in a crash, the producer goes on, a send that may have been among them fails as in
    /// doubt ([`may_have_happened`](crate::Error::may_have_happened)), and
    /// [`take_lost`](crate::Producer::take_lost) names acknowledged ones that are gone.
    pub fn idempotent(mut self) -> Self {
        self.settings.idempotent = true;
        self
    }

    /// A name for people, the stem of the idempotent producer's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// How long the producer repeats an append after transient errors; 30 s unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Chooses partitions in another way than the topic's mapping of keys.
    pub fn partitioner(mut self, partitioner: impl Partitioner) -> Self {
        self.partitioner = Some(Box::new(partitioner));
        self
    }

    /// Compresses payloads of more than this many bytes, unless they hardly shrink; none unless
    /// set. Consumers need no setting: a record says itself that it is compressed, and every
    /// consumer gets its original. The topic's limit is on the original.
    pub fn compress_above(mut self, bytes: usize) -> Self {
        self.compress_above = bytes;
        self
    }

    /// What an acknowledgement of this producer means; what the engine promises unless set. Where
    /// the engine cannot give it (replicas in a file, a disk in memory), making the producer fails
    /// with `Unsupported`.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = Some(durability);
        self
    }

    async fn build(self) -> Result<Producer> {
        let topic = TopicName::new(&self.topic)?;
        ProducerName::new(&self.settings.name)?;
        if self.settings.name.len() > MAX_NAME - 20 {
            return Err(invalid(format!(
                "the producer's name is too long; at most {} characters",
                MAX_NAME - 20
            )));
        }
        let info = self.broker.topic_or_create(&topic).await?;
        check_own(&topic, &info.config)?;
        if let Some(durability) = self.settings.durability {
            self.broker.engine().can_promise(durability).await?;
        }
        let view = Arc::new(TopicView::new(&info.config));
        let accumulator = Arc::new(Accumulator::new(self.settings.batch, self.max_buffered));
        let engine = self.broker.engine().clone();
        let settings = self.settings;
        let sender =
            Sender::new(engine.clone(), topic.clone(), view.clone(), settings.clone(), accumulator.clone());
        tokio::spawn(sender.run());
        Ok(Producer(Arc::new(Shared {
            meter: ProducerMeter::new(&topic),
            engine,
            settings,
            topic,
            view,
            partitioner: self.partitioner.unwrap_or_else(|| Box::new(ByKey::new(info.config.mapping))),
            accumulator,
            max_buffered: self.max_buffered,
            compress_above: self.compress_above,
        })))
    }
}

impl IntoFuture for ProducerBuilder {
    type Output = Result<Producer>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.build())
    }
}
