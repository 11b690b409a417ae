//! The records that a node has read and not settled: each waits for the lanes that it is in.

use super::refusal::{REFUSED_BY, reason_of};
use crate::lane::{RecordNumber, ReleaseCause, Released};
use firth::{Delivery, Nack, RecordId, Settled, TRACEPARENT};
use foldhash::fast::RandomState;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Open records by ticket. Bounded by the consumers' windows: 500 per partition and consumer.
pub(super) struct Records {
    open: Mutex<Open>,
    given_up: Mutex<GivenUp>,
    keep_dead: bool,
}

/// What one gateway alone refused for good, by gateway and partition, and whether that is stored:
/// as much as a partition may have settled ahead of an event that waits.
type GivenUp = HashMap<(String, u32), VecDeque<(RecordId, Settled)>>;
const MAX_GIVEN_UP: usize = 1000;

#[derive(Default)]
struct Open {
    records: HashMap<RecordNumber, Record, RandomState>,
    /// How many there are, by partition and reader.
    counts: HashMap<(u32, Source), usize>,
    last: RecordNumber,
}

struct Record {
    delivery: InHand,
    source: Source,
    lanes: usize,
    /// Reasons why it is not delivered, each with the gateway at fault; `None` if no gateway is.
    dead: Vec<(Option<String>, String)>,
}

/// Who read a record: the reader of what happens, or the one that feeds a parked gateway (by its
/// lane's number).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    Live,
    Again(u64),
}

/// A delivery that comes again, in its place and without a counted attempt, if this node drops it:
/// a node that stops in the middle must not turn order into retries.
pub(super) struct InHand(Option<Delivery>);

/// The longest trace context that is passed on; version 00 has 55 characters.
const MAX_TRACE: usize = 128;

impl InHand {
    pub(super) fn new(delivery: Delivery) -> Self {
        Self(Some(delivery))
    }

    /// Its trace context, if it is a text as the standard has it.
    pub(super) fn trace(&self) -> Option<Arc<str>> {
        let trace = self.headers().get(TRACEPARENT)?;
        let text = std::str::from_utf8(&trace).ok()?;
        (text.len() <= MAX_TRACE && text.is_ascii()).then(|| text.into())
    }

    /// Acks all. The verdicts are noted at once; the caller need not know when they are stored.
    pub(super) fn ack_all(all: impl IntoIterator<Item = Self>) {
        Delivery::ack_all(all.into_iter().filter_map(|mut one| one.0.take()));
    }

    /// Makes it a dead letter; answers when that is stored. `by` is the gateway that alone refused
    /// it, if that is the cause.
    pub(super) fn reject(mut self, why: impl std::fmt::Display, by: Option<&str>) -> Settled {
        let by = by.unwrap_or_default().to_owned();
        let nack = Nack::reject(why).with_header(REFUSED_BY, by);
        self.0.take().expect("only a verdict takes it").nack(nack)
    }
}

impl std::ops::Deref for InHand {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        self.0.as_ref().expect("only a verdict takes it")
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        if let Some(delivery) = self.0.take() {
            delivery.give_back();
        }
    }
}

impl Record {
    fn reasons(&self) -> String {
        self.dead.iter().map(|(_, reason)| reason.as_str()).collect::<Vec<_>>().join("; ")
    }
}

impl Records {
    /// No records; `keep_dead` says whether what gateways refuse for good becomes a dead letter, or
    /// is only counted and logged.
    pub(super) fn new(keep_dead: bool) -> Self {
        Self { open: Mutex::default(), given_up: Mutex::default(), keep_dead }
    }

    /// Keeps each record until the given number of lanes has released it. A record may come with a
    /// reason why a subscription does not get it. Returns the record numbers, in order.
    pub(super) fn open(
        &self,
        records: impl IntoIterator<Item = (InHand, usize, Option<String>)>,
        source: Source,
    ) -> Range<RecordNumber> {
        let mut open = self.lock();
        let first = open.last + 1;
        for (delivery, lanes, refused) in records {
            open.last += 1;
            let record_number = open.last;
            *open.counts.entry((delivery.partition(), source)).or_default() += 1;
            let dead = refused.into_iter().map(|reason| (None, reason)).collect();
            open.records.insert(record_number, Record { delivery, source, lanes, dead });
        }
        first..open.last + 1
    }

    /// Notes what a lane released for its gateway. Settles the records that no lane holds any more.
    pub(super) fn release(&self, gateway: &str, released: &[Released]) {
        let mut done = Vec::with_capacity(released.len());
        {
            let mut open = self.lock();
            for one in released {
                let Some(record) = open.records.get_mut(&one.record_number) else { continue };
                record.lanes = record.lanes.saturating_sub(1);
                if let ReleaseCause::Dead(reason) = &one.cause {
                    record.dead.push((Some(gateway.to_owned()), reason_of(gateway, reason)));
                }
                if record.lanes == 0
                    && let Some(record) = open.records.remove(&one.record_number)
                {
                    let count = open.counts.entry((record.delivery.partition(), record.source)).or_default();
                    *count = count.saturating_sub(1);
                    done.push(record);
                }
            }
        }
        let mut fine = Vec::with_capacity(done.len());
        for record in done {
            if record.dead.is_empty() {
                fine.push(record.delivery);
            } else if self.keep_dead {
                self.give_up(record);
            } else {
                let partition = record.delivery.partition();
                let seq = record.delivery.id().seq;
                let reason = record.reasons();
                tracing::warn!(partition, seq, reason, "a refused event is given up: routing.dlq is off");
                fine.push(record.delivery);
            }
        }
        InHand::ack_all(fine);
    }

    fn give_up(&self, record: Record) {
        let partition = record.delivery.partition();
        let id = record.delivery.id();
        let reasons = record.reasons();
        let alone = match &record.dead[..] {
            [(gateway, _)] => gateway.as_deref(),
            _ => None,
        };
        let stored = record.delivery.reject(reasons, alone);
        if let (Source::Live, Some(gateway)) = (record.source, alone) {
            let mut all = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
            let theirs = all.entry((gateway.to_owned(), partition)).or_default();
            theirs.push_back((id, stored));
            if theirs.len() > MAX_GIVEN_UP {
                theirs.pop_front();
            }
        }
    }

    /// The dead letters of a partition that are there because of this gateway alone, from a place
    /// on. Waits until they are stored.
    pub(super) async fn take_given_up(&self, gateway: &str, partition: u32, from: u64) -> Vec<RecordId> {
        let key = (gateway.to_owned(), partition);
        let theirs = self.given_up.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let mut ids = Vec::new();
        for (id, stored) in theirs.into_iter().flatten().filter(|(id, _)| id.seq >= from) {
            // What is not stored comes again, and is no letter.
            if stored.await.is_ok() {
                ids.push(id);
            }
        }
        ids
    }

    /// A gateway is gone: nothing is fed to it again.
    pub(super) fn forget(&self, gateway: &str) {
        let mut all = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(theirs, _), _| theirs != gateway);
    }

    /// How many records of a partition a reader has open.
    pub(super) fn count(&self, partition: u32, source: Source) -> usize {
        self.lock().counts.get(&(partition, source)).copied().unwrap_or_default()
    }

    /// Gives back what a reader has open of a partition: it comes again, here or elsewhere.
    pub(super) fn give_back(&self, partition: u32, source: Source) {
        let mut open = self.lock();
        let is_theirs = |record: &Record| record.source == source && record.delivery.partition() == partition;
        let theirs: Vec<_> = open.records.extract_if(|_, record| is_theirs(record)).collect();
        open.counts.remove(&(partition, source));
        drop(open);
        drop(theirs);
    }

    /// The whole name of an open record.
    pub(super) fn id(&self, partition: u32, seq: u64) -> Option<RecordId> {
        let open = self.lock();
        let ids = open.records.values().filter(|record| record.delivery.partition() == partition);
        ids.map(|record| record.delivery.id()).find(|id| id.seq == seq)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().records.len()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Position;
    use firth::{Broker, Consumer};

    /// Records of a gateway that refuses one for good, before or after its node has lost the
    /// partition.
    async fn refused(is_lost: bool) -> (Consumer, Records, RecordId) {
        let broker = Broker::memory();
        broker.create_topic("changes").await.unwrap();
        broker.producer("changes").await.unwrap().send("event").await.unwrap();
        let mut consumer = broker.consumer("changes", "router").await.unwrap();
        let delivery = consumer.next().await.unwrap().unwrap();
        let id = delivery.id();
        let records = Records::new(true);
        let numbers = records.open([(InHand::new(delivery), 1, None)], Source::Live);
        if is_lost {
            assert!(broker.admin().force_release("changes", "router", 0).await.unwrap());
        }
        let position = Position { partition: 0, seq: id.seq };
        let cause = ReleaseCause::Dead("never".to_owned());
        records.release("g", &[Released { position, record_number: numbers.start, cause }]);
        assert_eq!(records.len(), 0);
        (consumer, records, id)
    }

    #[tokio::test]
    async fn letters_of_a_gateway_are_taken_once_and_from_a_place_on() {
        for (from, found) in [(0, 1), (1, 1), (2, 0)] {
            let (consumer, records, id) = refused(false).await;
            assert!(records.take_given_up("other", 0, 0).await.is_empty());
            assert!(records.take_given_up("g", 1, 0).await.is_empty());
            let taken = records.take_given_up("g", 0, from).await;
            assert_eq!(taken, vec![id; found], "from {from}");
            assert!(records.take_given_up("g", 0, 0).await.is_empty());
            consumer.close().await.unwrap();
        }
    }

    /// The next owner has the record again: there is no letter to take back.
    #[tokio::test]
    async fn a_dead_letter_that_was_not_stored_is_none() {
        let (consumer, records, _) = refused(true).await;
        assert!(records.take_given_up("g", 0, 0).await.is_empty());
        consumer.close().await.unwrap();
    }
}
