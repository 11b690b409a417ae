//! Many deliveries at a time: taken together and acknowledged together, for programs that do little
//! work per record.

use super::Consumer;
use super::delivery::{ChunkGuard, Delivery, HandlerVerdict, VerdictBatch};
use crate::error::Result;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Consumer {
    /// As [`next`](Self::next), but up to `max` deliveries of one partition as they lie ready, in
    /// order; at least one.
    ///
    /// Never waits for more. Use it alone or beside [`next`](Self::next). Cancel-safe.
    pub async fn next_many(&mut self, max: usize) -> Option<Result<Vec<Delivery>>> {
        self.common.chunk.store(max.max(1), Ordering::Relaxed);
        self.common.batch.store(max.max(1), Ordering::Relaxed);
        poll_fn(|context| self.poll_take(context, max.max(1), |_| None)).await
    }
}

impl Delivery {
    /// Acknowledges many deliveries, of any partitions, which costs far less than one by one. The
    /// call does not wait until they are stored: a record whose verdict is not stored comes again.
    pub fn ack_all(deliveries: impl IntoIterator<Item = Self>) {
        // Dropped last, and so after all verdicts are handed in: the lane hears of the end of a
        // chunk behind the verdicts on it.
        let mut ends: Vec<Arc<ChunkGuard>> = Vec::new();
        let mut batch: Option<VerdictBatch> = None;
        for delivery in deliveries {
            let end = delivery.chunk_end();
            if ends.last().is_none_or(|last| !Arc::ptr_eq(last, end)) {
                ends.push(Arc::clone(end));
            }
            let same_lane = batch.as_ref().is_some_and(|batch| batch.is_of(&delivery));
            let batch = match &mut batch {
                Some(batch) if same_lane => batch,
                other => other.insert(VerdictBatch::beside(&delivery, 0)),
            };
            batch.add(delivery, HandlerVerdict::Ack);
        }
        drop(batch);
        drop(ends);
    }
}

#[cfg(test)]
mod tests {
    use super::Delivery;
    use crate::{Broker, Message};

    #[tokio::test]
    async fn deliveries_that_were_handed_out_in_pieces_are_taken_as_one() {
        let broker = Broker::memory();
        broker.create_topic("pieces").partitions(1).await.unwrap();
        let producer = broker.producer("pieces").await.unwrap();
        producer.send_all((0..30).map(|number: u32| number.to_string())).await.unwrap();
        let mut consumer = broker.consumer("pieces", "all").concurrency(100).await.unwrap();
        // The lane hands them out one by one until the caller asks for many.
        let first = consumer.next().await.unwrap().unwrap();
        let some = consumer.next_many(20).await.unwrap().unwrap();
        let rest = consumer.next_many(20).await.unwrap().unwrap();
        assert_eq!((seqs(&some), seqs(&rest)), ((2..=21).collect(), (22..=30).collect()));
        Delivery::ack_all(std::iter::once(first).chain(some).chain(rest));
        consumer.close().await.unwrap();
        assert_eq!(broker.admin().group("pieces", "all").await.unwrap().lag(), 0);
    }

    fn seqs(some: &[Delivery]) -> Vec<u64> {
        some.iter().map(|one| one.id().seq).collect()
    }

    /// What lies ready behind it must not overtake it: without keys, and within one.
    #[tokio::test]
    async fn what_is_given_back_comes_before_what_was_not_taken_yet() {
        for key in ["", "a"] {
            let broker = Broker::memory();
            broker.create_topic("back").partitions(1).await.unwrap();
            let producer = broker.producer("back").await.unwrap();
            let message = |number: u32| match key {
                "" => Message::new(number.to_string()),
                key => Message::new(number.to_string()).key(key),
            };
            producer.send_all((0..60).map(message)).await.unwrap();
            let mut consumer = broker.consumer("back", "all").concurrency(100).await.unwrap();
            Delivery::ack_all(consumer.next_many(20).await.unwrap().unwrap());
            // The rest of its chunk lies ready, and other chunks where keys allow.
            let first = consumer.next().await.unwrap().unwrap();
            let seq = first.id().seq;
            first.give_back();
            let again = consumer.next_many(20).await.unwrap().unwrap();
            assert_eq!(seqs(&again)[0], seq, "{key:?}");
            Delivery::ack_all(again);
            consumer.close().await.unwrap();
        }
    }
}
