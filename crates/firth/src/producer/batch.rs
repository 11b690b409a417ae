//! The batcher: which messages travel together, and when. Pure: time is a parameter, no I/O.
//!
//! Per partition, batches leave in the order in which their messages came and one at a time: while one is on its way the next
//! one fills, so that batches grow with the load and a lone message never waits. Bounded by the producer's room, not here.

use firth_engine::Content;
use firth_engine::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// When a batch is full, and how long it may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Wait this long for company. Zero: never wait; batches then form only while an earlier one is on its way.
    pub linger: Duration,
    /// At most so many messages, up to 1 000.
    pub max_records: usize,
    /// At most so many bytes, up to 8 MiB; a larger message travels alone.
    pub max_bytes: usize,
}

impl Default for BatchPolicy {
    fn default() -> Self {
        Self { linger: Duration::ZERO, max_records: 500, max_bytes: 1024 * 1024 }
    }
}

impl BatchPolicy {
    pub(crate) fn sanitised(mut self) -> Self {
        self.max_records = self.max_records.clamp(1, MAX_BATCH);
        self.max_bytes = self.max_bytes.clamp(1, MAX_BATCH_BYTES);
        self
    }
}

/// A checked message on its way. `T` is what the sender needs to answer it.
pub(crate) struct Outgoing<T> {
    pub(crate) partition: u32,
    pub(crate) after: Duration,
    pub(crate) content: Content,
    pub(crate) ticket: T,
}

/// Messages that are appended together. `T` is what the sender needs to answer each of them.
pub(crate) struct Batch<T> {
    pub(crate) partition: u32,
    pub(crate) after: Duration,
    pub(crate) contents: Vec<Content>,
    pub(crate) tickets: Vec<T>,
    bytes: usize,
    opened: Instant,
}

struct Queue<T> {
    batches: VecDeque<Batch<T>>,
    busy: bool,
}

pub(crate) struct Batcher<T> {
    policy: BatchPolicy,
    queues: BTreeMap<u32, Queue<T>>,
}

impl<T> Batcher<T> {
    pub(crate) fn new(policy: BatchPolicy) -> Self {
        Self { policy: policy.sanitised(), queues: BTreeMap::new() }
    }

    /// Takes in a message.
    pub(crate) fn push(&mut self, out: Outgoing<T>, now: Instant) {
        let Outgoing { partition, after, content, ticket } = out;
        let bytes = content.packed_len();
        let queue =
            self.queues.entry(partition).or_insert_with(|| Queue { batches: VecDeque::new(), busy: false });
        let fits = |batch: &Batch<T>| {
            batch.after == after
                && batch.contents.len() < self.policy.max_records
                && batch.bytes + bytes <= self.policy.max_bytes
        };
        if !queue.batches.back().is_some_and(fits) {
            let (contents, tickets) = (Vec::new(), Vec::new());
            queue.batches.push_back(Batch { partition, after, contents, tickets, bytes: 0, opened: now });
        }
        let batch = queue.batches.back_mut().expect("one was just made");
        batch.bytes += bytes;
        batch.contents.push(content);
        batch.tickets.push(ticket);
    }

    /// The next batch that may leave now; its partition is busy until [`done`](Self::done). `hurry` ignores the linger.
    pub(crate) fn next(&mut self, now: Instant, hurry: bool) -> Option<Batch<T>> {
        let policy = self.policy;
        let queue = self.queues.values_mut().find(|queue| {
            !queue.busy
                && queue
                    .batches
                    .front()
                    .is_some_and(|first| hurry || queue.batches.len() > 1 || policy.is_ready(first, now))
        })?;
        queue.busy = true;
        queue.batches.pop_front()
    }

    /// A batch of this partition has arrived or failed.
    pub(crate) fn done(&mut self, partition: u32) {
        if let Some(queue) = self.queues.get_mut(&partition) {
            queue.busy = false;
            if queue.batches.is_empty() {
                self.queues.remove(&partition);
            }
        }
    }

    /// When the first waiting batch has lingered enough.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.queues.values().filter(|queue| !queue.busy);
        waiting.filter_map(|queue| Some(queue.batches.front()?.opened + self.policy.linger)).min()
    }

    /// Whether nothing waits and nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

impl BatchPolicy {
    fn is_ready<T>(&self, batch: &Batch<T>, now: Instant) -> bool {
        let full = batch.contents.len() >= self.max_records || batch.bytes >= self.max_bytes;
        full || now >= batch.opened + self.linger
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    fn out<T>(partition: u32, after: Duration, content: Content, ticket: T) -> Outgoing<T> {
        Outgoing { partition, after, content, ticket }
    }

    fn policy(linger_ms: u64, max_records: usize) -> BatchPolicy {
        BatchPolicy { linger: Duration::from_millis(linger_ms), max_records, ..BatchPolicy::default() }
    }

    #[test]
    fn a_batch_waits_for_its_linger_or_until_it_is_full() {
        let start = Instant::now();
        let mut batcher = Batcher::new(policy(5, 3));
        batcher.push(out(0, NOW, Content::new("a"), 1), start);
        assert!(batcher.next(start, false).is_none());
        assert_eq!(batcher.next_deadline(), Some(start + Duration::from_millis(5)));
        batcher.push(out(0, NOW, Content::new("b"), 2), start);
        batcher.push(out(0, NOW, Content::new("c"), 3), start);
        assert_eq!(batcher.next(start, false).unwrap().tickets, [1, 2, 3]);
        batcher.done(0);
        assert!(batcher.is_empty());
    }

    #[test]
    fn one_batch_of_a_partition_is_on_its_way_at_a_time() {
        let start = Instant::now();
        let mut batcher = Batcher::new(policy(0, 10));
        batcher.push(out(0, NOW, Content::new("a"), 1), start);
        assert!(batcher.next(start, false).is_some());
        batcher.push(out(0, NOW, Content::new("b"), 2), start);
        batcher.push(out(1, NOW, Content::new("c"), 3), start);
        assert_eq!(batcher.next(start, false).unwrap().partition, 1);
        assert!(batcher.next(start, true).is_none());
        batcher.done(0);
        assert_eq!(batcher.next(start, false).unwrap().tickets, [2]);
    }

    #[test]
    fn messages_with_different_delays_do_not_share_a_batch() {
        let start = Instant::now();
        let mut batcher = Batcher::new(policy(5, 10));
        batcher.push(out(0, NOW, Content::new("a"), 1), start);
        batcher.push(out(0, Duration::from_secs(1), Content::new("b"), 2), start);
        assert_eq!(batcher.next(start, false).unwrap().tickets, [1], "a sealed batch does not linger");
    }

    proptest! {
        #[test]
        fn every_message_leaves_once_in_order_and_within_the_limits(
            sizes in prop::collection::vec((0_u32..3, 0_usize..400), 1..60),
            max_records in 1_usize..7,
        ) {
            let start = Instant::now();
            let mut batcher = Batcher::new(BatchPolicy { max_bytes: 600, ..policy(0, max_records) });
            for (n, (partition, size)) in sizes.iter().enumerate() {
                batcher.push(out(*partition, NOW, Content::new(vec![0; *size]), n), start);
            }
            let mut seen = [const { Vec::new() }; 3];
            while let Some(batch) = batcher.next(start, true) {
                prop_assert!(batch.tickets.len() <= max_records && batch.tickets.len() == batch.contents.len());
                prop_assert!(batch.tickets.len() == 1 || batch.bytes <= 600);
                seen[batch.partition as usize].extend(batch.tickets);
                batcher.done(batch.partition);
            }
            for (partition, seen) in seen.iter().enumerate() {
                let sent: Vec<_> = (0..sizes.len()).filter(|n| sizes[*n].0 as usize == partition).collect();
                prop_assert_eq!(seen, &sent);
            }
        }
    }
}
