//! [`SourceWriter`]: brings the changes of a source outside, such as a database, into a topic, each
//! exactly once.
//!
//! The engine stores with each batch how far the source is by it (the *mark*). So no second record
//! of progress can contradict the log, whenever a process or a server dies.

mod slot;

use crate::broker::Broker;
use crate::error::{Error, Result, invalid};
use crate::message::Message;
use crate::metrics::SourceMeter;
use crate::partitioner::Mapping;
use crate::producer::{TIMEOUT, append, backoff, check_own, check_payload};
use crate::topic::{TopicConfig, Topics};
use crate::{payload, trace};
use bytes::Bytes;
use firth_engine::facet::{Append, NewMark};
use firth_engine::limits::{MAX_BATCH, MAX_BATCH_BYTES, MAX_MARK};
use firth_engine::{Content, Engine, Epoch, Hint, Partition, RecordId, SourceName, TopicName};
use futures_util::{StreamExt, TryStreamExt, stream};
use slot::Partitions;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The mark of a partition that takes part and got no change yet.
const NOTHING_YET: &[u8] = &[0];
/// With how many partitions a writer deals at a time.
const AT_ONCE: usize = 64;

/// Appends the changes of one source to a topic, under the epoch of one reader.
///
/// Each append names the position of its last change, [`MAX_MARK`](Self::MAX_MARK) bytes at most.
/// The partition stores it in the same step, as the source's mark. What the mark covers is never
/// appended again, positions are compared byte by byte, and a reader whose epoch is not the newest
/// gets [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
///
/// A reader that takes over opens a writer under its own epoch, which ends the former one. Then it
/// reads [`marks`](Self::marks), begins in the source after the lowest one, and leaves out what the
/// mark of its partition covers:
///
/// ```
/// # use firth::{Broker, Epoch, Message, Result, SourceAppend};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<()> {
/// let broker = Broker::memory();
/// broker.create_topic("changes").partitions(4).await?;
/// let epoch = Epoch(7); // of the claim on this source
/// let writer = broker.source_writer("changes", "shop", epoch).await?;
/// let marks = writer.marks().await?;
/// let resume = marks.iter().map(|mark| mark.clone().unwrap_or_default()).min();
///
/// for (position, key) in [(1_u64, "order-1"), (2, "order-2")] {
///     let (position, partition) = (position.to_be_bytes().to_vec(), writer.partition_for(key.as_bytes()));
///     if marks[partition as usize].as_deref() < Some(&position) {
///         let change = Message::new("paid").key(key);
///         writer.append(partition, vec![change], position.into()).await?;
///     }
/// }
/// // What the log has is not appended again.
/// let again = writer.append(writer.partition_for(b"order-1"), vec!["paid".into()], vec![0; 8].into());
/// assert_eq!(again.await?, SourceAppend::Duplicate);
/// # assert_eq!(resume, Some(Default::default()));
/// # Ok(()) }
/// ```
///
/// Batches of one partition go one after the other, those of different partitions side by side. If
/// an outcome stays unknown, or a call is dropped half way, the next append to that partition must
/// be the same batch again: others are [`Invalid`](crate::ErrorKind::Invalid).
///
/// **A topic that grows.** A writer goes on with the partitions that the source had, so that no
/// change is looked for under another partition than its own. [`grow`](Self::grow) takes the new
/// ones in.
pub struct SourceWriter {
    shared: Arc<Shared>,
    mapping: Mapping,
    timeout: Duration,
    compress_above: usize,
    /// Held for writing while the set of partitions changes.
    slots: RwLock<Partitions>,
    /// How many partitions take part.
    active: AtomicU32,
    _watcher: JoinSet<()>,
}

struct Shared {
    engine: Engine,
    topics: Topics,
    topic: TopicName,
    source: SourceName,
    epoch: Epoch,
    /// How many partitions the topic has.
    partitions: AtomicU32,
    max_payload: AtomicUsize,
    meter: SourceMeter,
}

/// Outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAppend {
    /// The records are in the log, and the mark moved with them.
    Stored {
        /// The first record.
        first: RecordId,
        /// The last record.
        last: RecordId,
    },
    /// The mark moved; there were no records.
    Moved,
    /// The mark was there already or beyond, perhaps by an earlier try of this append. Nothing
    /// changed.
    Duplicate,
}

impl SourceWriter {
    /// The most messages of one append.
    pub const MAX_RECORDS: usize = MAX_BATCH;
    /// The most bytes of one append, by [`size_of`](Self::size_of), unless it is a single message.
    pub const MAX_BYTES: usize = MAX_BATCH_BYTES;
    /// The most bytes of a position.
    pub const MAX_MARK: usize = MAX_MARK;

    pub(crate) async fn open(broker: &Broker, topic: &str, source: &str, epoch: Epoch) -> Result<Self> {
        let topic = TopicName::new(topic)?;
        let source = SourceName::new(source)?;
        let info = broker.topic_or_create(&topic).await?;
        check_own(&topic, &info.config)?;
        let shared = Arc::new(Shared {
            engine: broker.engine().clone(),
            topics: broker.topics(),
            meter: SourceMeter::new(&topic),
            topic,
            source,
            epoch,
            partitions: AtomicU32::new(0),
            max_payload: AtomicUsize::new(0),
        });
        shared.update(&info.config);
        let hint = shared.topics.hint();
        let active = shared.take_over().await?;
        let mut watcher = JoinSet::new();
        watcher.spawn(watch(shared.clone(), hint));
        Ok(Self {
            mapping: info.config.mapping,
            timeout: TIMEOUT,
            compress_above: usize::MAX,
            slots: RwLock::new(Partitions::new(active)),
            active: AtomicU32::new(active),
            shared,
            _watcher: watcher,
        })
    }

    /// Compresses payloads of more than this many bytes, as
    /// [`ProducerBuilder::compress_above`](crate::ProducerBuilder::compress_above) does.
    #[must_use]
    pub fn compress_above(mut self, bytes: usize) -> Self {
        self.compress_above = bytes;
        self
    }

    /// How long an append is repeated after transient errors; 30 s unless set.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many partitions take part: number 0 up to, but not, this one.
    pub fn partitions(&self) -> u32 {
        self.active.load(Ordering::Acquire)
    }

    /// How many partitions the topic has by now, if it has more than [take
    /// part](Self::partitions): see [`grow`](Self::grow).
    pub fn grown(&self) -> Option<u32> {
        Some(self.shared.partitions.load(Ordering::Relaxed)).filter(|count| *count > self.partitions())
    }

    /// The partition of a key, by the topic's mapping over the partitions that take part.
    pub fn partition_for(&self, key: &[u8]) -> u32 {
        self.mapping.partition(key, self.partitions())
    }

    /// The largest payload that the topic takes now, in bytes.
    pub fn max_payload(&self) -> usize {
        self.shared.max_payload.load(Ordering::Relaxed)
    }

    /// The bytes of a message that count for [`MAX_BYTES`](Self::MAX_BYTES), before compression.
    pub fn size_of(message: &Message) -> usize {
        message.packed_len()
    }

    /// How far the source is in each partition that takes part; `None` where nothing was appended.
    /// They are as durable as an acknowledged append.
    pub async fn marks(&self) -> Result<Vec<Option<Bytes>>> {
        let count = self.partitions();
        self.shared.note_epoch(0..count).await?;
        let marks = self.shared.read_marks(count).await?;
        Ok(marks.into_iter().map(|mark| Some(mark).filter(|mark| &mark[..] > NOTHING_YET)).collect())
    }

    /// Appends messages in one step and moves the mark to `upto`, the position of the last one.
    /// Without messages only the mark moves.
    ///
    /// Transient errors are repeated as a producer does, also when the outcome is unknown: the mark
    /// tells whether an earlier try arrived.
    pub async fn append(&self, partition: u32, messages: Vec<Message>, upto: Bytes) -> Result<SourceAppend> {
        check_position(&upto)?;
        let contents = messages.into_iter().map(|message| self.pack(partition, message));
        let contents = contents.collect::<Result<Vec<_>>>()?;
        let count = contents.len();
        let slots = self.slots.read().await;
        let Some(slot) = slots.get(partition) else { return Err(self.no_partition(partition)) };
        let mut slot = slot.lock().await;
        slot.begin(&upto, count)?;
        let (answer, is_settled) = self.shared.append(partition, contents, &upto, self.timeout).await;
        if is_settled {
            slot.end(answer.is_ok().then_some(upto));
        }
        answer
    }

    /// Takes in partitions that were added to the topic; answers how many take part now. `upto` is
    /// the position of the newest change that the reader has handed over: everything up to it must
    /// be [appended](Self::append), and nothing after it. It becomes the mark of every partition.
    ///
    /// From then on [`partition_for`](Self::partition_for) uses all partitions. A crash in between
    /// loses and repeats nothing.
    pub async fn grow(&self, upto: Bytes) -> Result<u32> {
        check_position(&upto)?;
        let mut slots = self.slots.write().await;
        slots.check_quiet(&upto)?;
        let shared = &self.shared;
        shared.refresh().await?;
        let old = self.partitions();
        let new = shared.partitions.load(Ordering::Relaxed);
        if new <= old {
            return Ok(old);
        }
        // The old ones first: a new one that has the mark shows that they all have it.
        shared.move_marks(0..old, &upto).await?;
        shared.move_marks(old..new, &upto).await?;
        slots.grow(new, &upto);
        self.active.store(new, Ordering::Release);
        Ok(new)
    }

    fn pack(&self, partition: u32, mut message: Message) -> Result<Content> {
        let limit = self.shared.max_payload.load(Ordering::Relaxed);
        let size = message.payload().len();
        check_payload(&self.shared.topic, size, limit)?;
        if message.partition().is_some_and(|other| other != partition) {
            return Err(invalid("the message names another partition").with_field("partition"));
        }
        trace::inject(&mut message);
        let (after, mut content) = message.into_content()?;
        if !after.is_zero() {
            return Err(invalid("a change of a source cannot be delayed").with_field("after_ms"));
        }
        if size > self.compress_above {
            payload::compress(&mut content);
        }
        Ok(content)
    }

    fn no_partition(&self, partition: u32) -> Error {
        let count = self.partitions();
        let topic = &self.shared.topic;
        let context = format!("partition {partition} of topic {topic}; the source uses {count}");
        invalid(context).with_field("partition").with_limit(count.into())
    }
}

/// Positions lie beyond [`NOTHING_YET`].
fn check_position(upto: &Bytes) -> Result<()> {
    if upto.len() > MAX_MARK || &upto[..] <= NOTHING_YET {
        let context = format!("a position has 1 to {MAX_MARK} bytes, and comes after a single zero byte");
        return Err(invalid(context).with_field("upto").with_limit(MAX_MARK as u64));
    }
    Ok(())
}

impl Shared {
    fn at(&self, partition: u32) -> Partition {
        Partition::new(self.topic.clone(), partition)
    }

    fn update(&self, config: &TopicConfig) {
        self.partitions.store(config.partitions, Ordering::Relaxed);
        self.max_payload.store(config.max_payload, Ordering::Relaxed);
    }

    async fn refresh(&self) -> Result<()> {
        self.update(&self.topics.get(&self.topic).await?.config);
        Ok(())
    }

    /// Ends every older reader, and answers how many partitions take part.
    ///
    /// Those that have a position do. Without any the source is new here, and all take part.
    async fn take_over(&self) -> Result<u32> {
        let mut count = 0;
        loop {
            let known = self.partitions.load(Ordering::Relaxed);
            self.note_epoch(count..known).await?;
            // An older reader may have begun to take in what was added since.
            self.refresh().await?;
            count = known;
            if self.partitions.load(Ordering::Relaxed) == count {
                break;
            }
        }
        let marks = self.read_marks(count).await?;
        if marks.iter().all(|mark| &mark[..] <= NOTHING_YET) {
            self.move_marks(0..count, &Bytes::from_static(NOTHING_YET)).await?;
            return Ok(count);
        }
        let taking_part = marks.iter().take_while(|mark| !mark.is_empty()).count();
        Ok(u32::try_from(taking_part).unwrap_or(count))
    }

    async fn note_epoch(&self, partitions: std::ops::Range<u32>) -> Result<()> {
        self.move_marks(partitions, &Bytes::new()).await
    }

    async fn move_marks(&self, partitions: std::ops::Range<u32>, upto: &Bytes) -> Result<()> {
        stream::iter(partitions)
            .map(|partition| async move { self.append(partition, Vec::new(), upto, TIMEOUT).await.0 })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await
    }

    async fn read_marks(&self, count: u32) -> Result<Vec<Bytes>> {
        let read = |partition| async move {
            let mark = self.engine.mark(&self.at(partition), &self.source).await?;
            Ok(mark.map_or_else(Bytes::new, |mark| mark.upto))
        };
        stream::iter(0..count).map(read).buffered(AT_ONCE).try_collect().await
    }

    /// Appends, and says whether the outcome is known.
    async fn append(
        &self,
        partition: u32,
        contents: Vec<Content>,
        upto: &Bytes,
        timeout: Duration,
    ) -> (Result<SourceAppend>, bool) {
        let at = self.at(partition);
        let count = contents.len();
        let begun = Instant::now();
        let mark = Some(NewMark { source: self.source.clone(), epoch: self.epoch, upto: upto.clone() });
        let request = Append { mark, ..Append::new(contents) };
        let answer = append(&self.engine, &at, request, &backoff(), begun + timeout).await;
        let result = answer.as_ref().map(|done| done.duplicate).map_err(|(error, _)| error.kind());
        self.meter.appended(count, begun.elapsed(), result);
        match answer {
            Err((error, doubtful)) => (Err(error), !doubtful),
            Ok(done) if done.duplicate => (Ok(SourceAppend::Duplicate), true),
            Ok(done) => match (done.first, done.ids().last()) {
                (Some(first), Some(last)) => (Ok(SourceAppend::Stored { first, last }), true),
                _ => (Ok(SourceAppend::Moved), true),
            },
        }
    }
}

/// Follows the topic's limits and its number of partitions.
async fn watch(shared: Arc<Shared>, mut hint: Hint) {
    loop {
        hint.wait().await;
        // A deleted topic shows in the appends; anything else comes again with the next change.
        if let Err(error) = shared.refresh().await {
            tracing::debug!(%error, topic = %shared.topic, "cannot look at the topic");
        }
    }
}

/// Forgets a source in every partition of a topic; true if any knew it.
pub(crate) async fn forget(broker: &Broker, topic: &str, source: &str) -> Result<bool> {
    let topic = TopicName::new(topic)?;
    let source = SourceName::new(source)?;
    let info = broker.topics().get(&topic).await?;
    let mut was_there = false;
    // The last partition first: a writer that is opened after a crash half way finds the first ones
    // without a gap.
    for partition in (0..info.config.partitions).rev() {
        was_there |=
            broker.engine().forget_source(&Partition::new(topic.clone(), partition), &source).await?;
    }
    Ok(was_there)
}

impl fmt::Debug for SourceWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { topic, source, epoch, .. } = &*self.shared;
        write!(f, "SourceWriter({source} to {topic}, epoch {epoch})")
    }
}
