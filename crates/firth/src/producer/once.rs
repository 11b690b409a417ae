//! Sending once under a name that the caller chooses: for callers that repeat a whole request after
//! a lost answer, also after a restart.
//!
//! Nothing is kept here: the name goes into the append, and the engine recognises it. So partitions
//! and batches must follow from the name and the messages alone. A message without a key gets its
//! partition from the name and its index.

use super::sender::append;
use super::{Producer, Receipt};
use crate::error::{Result, invalid};
use crate::message::{Delay, Message};
use crate::partitioner::key_hash;
use crate::trace;
use firth_engine::facet::{Append, ProducerSeq};
use firth_engine::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use firth_engine::{Content, Partition, ProducerName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Messages that are appended together.
struct OnceBatch {
    delay: Delay,
    after: Duration,
    bytes: usize,
    contents: Vec<Content>,
    /// Their places in the request.
    places: Vec<usize>,
}

impl Producer {
    /// Sends messages under `name` and waits for all of them. However often any process sends the
    /// same messages under this name, the topic holds each of them once. Receipts of messages that
    /// were there already say `duplicate`.
    ///
    /// A name is good for one list of messages; choose a random one of 1 to 128 characters
    /// `[a-zA-Z0-9._-]`. A partition remembers its last 10 000 names. On an error send the same
    /// again: what had arrived stays as it is. Adding partitions in between can move a message,
    /// which is then there twice.
    pub async fn send_once<M: Into<Message>>(
        &self,
        name: &str,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Receipt>> {
        let name = ProducerName::new(name)?;
        let mut queues: BTreeMap<u32, Vec<OnceBatch>> = BTreeMap::new();
        let mut count = 0;
        for (place, message) in messages.into_iter().enumerate() {
            let mut message: Message = message.into();
            self.check_size(&message)?;
            let partition = self.choose_once(&name, place, &message)?;
            trace::inject(&mut message);
            let delay = message.delay();
            let (after, content) = self.pack(message)?;
            add(queues.entry(partition).or_default(), delay, after, content, place);
            count += 1;
        }
        let mut receipts = vec![None; count];
        for (partition, batches) in queues {
            self.append_batches(&name, partition, batches, &mut receipts).await?;
        }
        Ok(receipts.into_iter().flatten().collect())
    }

    fn choose_once(&self, name: &ProducerName, place: usize, message: &Message) -> Result<u32> {
        if message.partition().is_some() || message.key_bytes().is_some() {
            return self.choose(message);
        }
        let count = self.partitions().max(1);
        let start = key_hash(name.as_str().as_bytes()) % u64::from(count);
        let chosen = (start + place as u64) % u64::from(count);
        u32::try_from(chosen).map_err(|_| invalid("no such partition"))
    }

    async fn append_batches(
        &self,
        name: &ProducerName,
        partition: u32,
        batches: Vec<OnceBatch>,
        receipts: &mut [Option<Receipt>],
    ) -> Result<()> {
        let at = Partition::new(self.topic().clone(), partition);
        let mut first = 0;
        for batch in batches {
            let count = batch.contents.len();
            let producer = Some(ProducerSeq { name: name.clone(), first, keep: Duration::ZERO });
            let durability = self.0.settings.durability;
            let records = Arc::new(batch.contents);
            let request = Append { records, after: batch.after, producer, mark: None, durability };
            let begun = Instant::now();
            let give_up = begun + self.0.settings.timeout;
            let done = append(&self.0.engine, &at, request, &self.0.settings.backoff, give_up).await;
            self.0.meter.sent(count, begun.elapsed(), done.is_ok());
            let some_arrived = receipts.iter().any(Option::is_some);
            let done =
                done.map_err(|(error, _)| if some_arrived { error.with_unknown_outcome() } else { error })?;
            first += count as u64;
            let mut ids = done.ids();
            for place in batch.places {
                receipts[place] = Some(Receipt { partition, id: ids.next(), duplicate: done.duplicate });
            }
        }
        Ok(())
    }
}

/// Adds a message to the last batch that has room and the same delay.
fn add(batches: &mut Vec<OnceBatch>, delay: Delay, after: Duration, content: Content, place: usize) {
    let bytes = content.packed_len();
    let fits = |batch: &OnceBatch| {
        batch.delay == delay && batch.contents.len() < MAX_BATCH && batch.bytes + bytes <= MAX_BATCH_BYTES
    };
    if !batches.last().is_some_and(fits) {
        batches.push(OnceBatch { delay, after, bytes: 0, contents: Vec::new(), places: Vec::new() });
    }
    if let Some(batch) = batches.last_mut() {
        batch.bytes += bytes;
        batch.contents.push(content);
        batch.places.push(place);
    }
}
