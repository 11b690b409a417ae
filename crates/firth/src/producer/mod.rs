//! Producers: [`Producer`] is a cloneable handle on one task that batches and appends.
//!
//! Everything waiting in a producer is bounded in bytes ([`ProducerBuilder::max_buffered`]); when
//! the room is used up, `enqueue` and `send` wait and `try_enqueue` fails with `Overloaded`.

mod accumulator;
mod batch;
mod build;
mod completion;
mod once;
mod sender;
mod sequence;

pub use batch::BatchPolicy;
pub use build::ProducerBuilder;
pub use completion::SendFuture;
pub(crate) use sender::append;
pub use sequence::LostSends;

use crate::error::{Error, ErrorKind, Result, closed, invalid};
use crate::message::Message;
use crate::metrics::ProducerMeter;
use crate::partitioner::Partitioner;
use crate::payload;
use crate::topic::TopicConfig;
use crate::trace;
use accumulator::Accumulator;
use batch::Outgoing;
use firth_engine::limits::MAX_DELAY;
use firth_engine::{Backoff, Content, Durability, Engine, RecordId, TopicName};
use sequence::{Sequence, UntoldLosses};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::TryAcquireError;
use tokio::time::Instant;

/// What a message costs in the buffer beyond its own bytes.
const OVERHEAD: usize = 256;
/// How long transient errors of an append are repeated, unless the caller says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait between two tries of an append.
pub(crate) fn backoff() -> Backoff {
    Backoff::exponential(Duration::from_millis(20), Duration::from_millis(500))
}

/// Refuses a payload that is larger than its topic takes.
pub(crate) fn check_payload(topic: &TopicName, size: usize, limit: usize) -> Result<()> {
    if size > limit {
        return Err(invalid(format!(
            "payload has {size} bytes; topic {topic} takes at most {limit}: store it elsewhere and send a \
             reference, or raise the topic's max_payload"
        ))
        .with_field("payload")
        .with_limit(limit as u64));
    }
    Ok(())
}

/// Refuses to send to a topic that follows a stream of others.
pub(crate) fn check_own(topic: &TopicName, config: &TopicConfig) -> Result<()> {
    config.adopted.as_ref().map_or(Ok(()), |adopted| {
        Err(invalid(format!("topic {topic} follows the stream {}: send to it with XADD", adopted.stream)))
    })
}

/// Sends messages to one topic. Clones share one task; dropping the last handle still sends what
/// was enqueued.
#[derive(Clone)]
pub struct Producer(Arc<Shared>);

struct Shared {
    topic: TopicName,
    view: Arc<TopicView>,
    partitioner: Box<dyn Partitioner>,
    accumulator: Arc<Accumulator>,
    max_buffered: usize,
    compress_above: usize,
    /// For what is sent past the task: see `once`.
    engine: Engine,
    settings: Settings,
    meter: ProducerMeter,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.accumulator.leave();
    }
}

/// What a producer must know of its topic, kept fresh by the task.
struct TopicView {
    partitions: AtomicU32,
    max_payload: AtomicUsize,
    losses: UntoldLosses,
}

impl TopicView {
    fn new(config: &TopicConfig) -> Self {
        let view = Self {
            partitions: AtomicU32::new(0),
            max_payload: AtomicUsize::new(0),
            losses: UntoldLosses::default(),
        };
        view.update(config);
        view
    }

    fn update(&self, config: &TopicConfig) {
        self.partitions.store(config.partitions, Ordering::Relaxed);
        self.max_payload.store(config.max_payload, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Settings {
    batch: BatchPolicy,
    idempotent: bool,
    name: String,
    timeout: Duration,
    backoff: Backoff,
    durability: Option<Durability>,
}

impl Settings {
    /// The numbers of an idempotent producer in one partition, from the start. The partition
    /// remembers the name for longer than this producer tries again.
    fn sequence(&self) -> Sequence {
        Sequence::fresh(&self.name, self.timeout.saturating_mul(2).min(MAX_DELAY))
    }
}

/// Where a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// Its partition.
    pub partition: u32,
    /// Its place there; `None` for a delayed message, which gets its place when its time has come.
    pub id: Option<RecordId>,
    /// Whether an earlier try had arrived after all (idempotent mode): it is there once.
    pub duplicate: bool,
}

impl Producer {
    /// Sends a message and waits until the engine has it, as durably as the engine promises.
    ///
    /// An error whose [`may_have_happened`](Error::may_have_happened) is false means: certainly not
    /// sent. Dropping the future may leave the message on its way.
    pub async fn send(&self, message: impl Into<Message>) -> Result<Receipt> {
        self.enqueue(message).await?.await
    }

    /// Hands a message over and waits only for room; the future tells later what became of it.
    /// Messages of one caller leave in order.
    pub async fn enqueue(&self, message: impl Into<Message>) -> Result<SendFuture> {
        let out = self.prepare(message.into())?;
        match self.0.accumulator.try_room(out.cost) {
            Ok(()) => {}
            Err(TryAcquireError::Closed) => return Err(self.closed()),
            Err(TryAcquireError::NoPermits) => self.wait_for_room(out.cost).await?,
        }
        self.hand_over(out)
    }

    /// As [`enqueue`](Self::enqueue), but fails with `Overloaded` when there is no room now.
    pub fn try_enqueue(&self, message: impl Into<Message>) -> Result<SendFuture> {
        let out = self.prepare(message.into())?;
        self.0.accumulator.try_room(out.cost).map_err(|error| match error {
            TryAcquireError::Closed => self.closed(),
            TryAcquireError::NoPermits => Error::new(
                ErrorKind::Overloaded,
                format!("the producer of {} is full: wait for earlier messages", self.0.topic),
            ),
        })?;
        self.hand_over(out)
    }

    /// Sends many messages, batched per partition, and waits for all of them. On failure the first
    /// error is returned; others may have been sent.
    pub async fn send_all<M: Into<Message>>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Receipt>> {
        let mut pending = Vec::new();
        for message in messages {
            pending.push(self.enqueue(message).await?);
        }
        let mut receipts = Vec::with_capacity(pending.len());
        for sending in pending {
            receipts.push(sending.await?);
        }
        Ok(receipts)
    }

    /// Sends everything enqueued so far without lingering, and waits until each message is
    /// answered.
    pub async fn flush(&self) -> Result<()> {
        for last in self.0.accumulator.flush().ok_or_else(|| self.closed())? {
            // Each message's own future tells what became of it.
            let _ = last.await;
        }
        if self.0.accumulator.has_ended() { Err(self.closed()) } else { Ok(()) }
    }

    /// Messages that were acknowledged and that the engine has lost since, as far as an
    /// [`idempotent`](ProducerBuilder::idempotent) producer found out since this was last asked: a
    /// server that crashes may lose its last moments (see [`Durability`]), and the next batch then
    /// shows the gap. At most 1 024 losses are kept until they are asked for; the log and the
    /// counter `firth_lost_sends_total` tell of all.
    pub fn take_lost(&self) -> Vec<LostSends> {
        self.0.view.losses.take()
    }

    /// Refuses further messages on every clone, then waits until everything enqueued is answered.
    pub async fn close(self) -> Result<()> {
        self.0.accumulator.refuse();
        self.flush().await
    }

    /// Whether it was closed: nothing more is taken.
    pub fn is_closed(&self) -> bool {
        self.0.accumulator.is_refusing()
    }

    /// The topic.
    pub fn topic(&self) -> &TopicName {
        &self.0.topic
    }

    /// How many partitions the topic has.
    pub fn partitions(&self) -> u32 {
        self.0.view.partitions.load(Ordering::Relaxed)
    }

    fn check_size(&self, message: &Message) -> Result<()> {
        let limit = self.0.view.max_payload.load(Ordering::Relaxed);
        check_payload(&self.0.topic, message.payload().len(), limit)
    }

    fn prepare(&self, mut message: Message) -> Result<Outgoing> {
        self.check_size(&message)?;
        let partition = self.choose(&message)?;
        trace::inject(&mut message);
        let (after, content) = self.pack(message)?;
        let cost = (content.packed_len() + OVERHEAD).min(self.0.max_buffered);
        Ok(Outgoing { partition, after, content, cost })
    }

    /// What the log will hold, compressed if that is wanted.
    fn pack(&self, message: Message) -> Result<(Duration, Content)> {
        let size = message.payload().len();
        let (after, mut content) = message.into_content()?;
        if size > self.0.compress_above {
            payload::compress(&mut content);
        }
        Ok((after, content))
    }

    fn choose(&self, message: &Message) -> Result<u32> {
        let count = self.partitions();
        let topic = &self.0.topic;
        let partition = message.partition().unwrap_or_else(|| self.0.partitioner.partition(message, count));
        if partition >= count {
            let context = format!("partition {partition} of topic {topic}, which has {count}");
            return Err(invalid(context).with_field("partition").with_limit(count.into()));
        }
        Ok(partition)
    }

    fn hand_over(&self, out: Outgoing) -> Result<SendFuture> {
        self.0.accumulator.push(out).ok_or_else(|| self.closed())
    }

    async fn wait_for_room(&self, cost: usize) -> Result<()> {
        let begun = Instant::now();
        self.0.accumulator.room(cost).await.map_err(|_| self.closed())?;
        self.0.meter.waited(begun.elapsed());
        Ok(())
    }

    fn closed(&self) -> Error {
        closed(format!("the producer of {} was closed", self.0.topic))
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Producer({})", self.0.topic)
    }
}
