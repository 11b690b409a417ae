//! The batcher: which messages travel together, and when. Pure: time is a parameter, no I/O.
//!
//! Per partition, batches leave in the order in which their messages came and one at a time: while
//! one is on its way the next one fills, so that batches grow with the load and a lone message
//! never waits. Bounded by the producer's room, not here.

use firth_engine::Content;
use firth_engine::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// When a batch is full, and how long it may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Wait this long for more messages. Zero: never wait; batches then form only while an earlier
    /// one is on its way.
    pub linger: Duration,
    /// At most this many messages, up to 1 000.
    pub max_records: usize,
    /// At most this many bytes, up to 8 MiB; a larger message travels alone.
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

/// A checked message on its way.
pub(crate) struct Outgoing {
    pub(crate) partition: u32,
    pub(crate) after: Duration,
    pub(crate) content: Content,
    /// The room that it takes until it is answered.
    pub(crate) cost: usize,
}

/// Messages that are appended together. `T` is the completion that the callers who wait for them
/// share.
pub(crate) struct Batch<T> {
    pub(crate) partition: u32,
    pub(crate) after: Duration,
    pub(crate) contents: Vec<Content>,
    pub(crate) completion: T,
    pub(crate) cost: usize,
    bytes: usize,
    opened: Instant,
    /// Takes no more messages, and waits for none.
    sealed: bool,
}

struct BatchQueue<T> {
    batches: VecDeque<Batch<T>>,
    /// The completion of the batch that is on its way.
    busy: Option<T>,
    /// How many messages the last batch had: the next one is likely to have as many.
    usual: usize,
}

/// Where a message went.
pub(crate) struct Pushed<T> {
    /// What tells what became of its batch.
    pub(crate) completion: T,
    /// Its place in the batch.
    pub(crate) index: usize,
    /// Whether the sender may have something to do that it does not know of.
    pub(crate) wakes_sender: bool,
}

pub(crate) struct Batcher<T> {
    policy: BatchPolicy,
    queues: BTreeMap<u32, BatchQueue<T>>,
}

impl<T: Clone + Default> Batcher<T> {
    pub(crate) fn new(policy: BatchPolicy) -> Self {
        Self { policy: policy.sanitised(), queues: BTreeMap::new() }
    }

    /// Takes in a message.
    pub(crate) fn push(&mut self, out: Outgoing, now: impl FnOnce() -> Instant) -> Pushed<T> {
        let Outgoing { partition, after, content, cost } = out;
        let bytes = content.packed_len();
        let queue = self.queues.entry(partition).or_insert_with(|| BatchQueue {
            batches: VecDeque::new(),
            busy: None,
            usual: 0,
        });
        let fits = |batch: &Batch<T>| {
            !batch.sealed
                && batch.after == after
                && batch.contents.len() < self.policy.max_records
                && batch.bytes + bytes <= self.policy.max_bytes
        };
        let opens = !queue.batches.back().is_some_and(fits);
        if opens {
            let contents = Vec::with_capacity(queue.usual);
            let completion = T::default();
            let batch = Batch {
                partition,
                after,
                contents,
                completion,
                cost: 0,
                bytes: 0,
                opened: now(),
                sealed: false,
            };
            queue.batches.push_back(batch);
        }
        let batch = queue.batches.back_mut().expect("one was just made");
        batch.bytes += bytes;
        batch.cost += cost;
        batch.contents.push(content);
        let wakes_sender = queue.busy.is_none() && (opens || self.policy.is_full(batch));
        Pushed { completion: batch.completion.clone(), index: batch.contents.len() - 1, wakes_sender }
    }

    /// The next batch that may leave now; its partition is busy until [`done`](Self::done). `hurry`
    /// ignores the linger.
    pub(crate) fn next(&mut self, now: Instant, hurry: bool) -> Option<Batch<T>> {
        let policy = self.policy;
        let queue = self.queues.values_mut().find(|queue| {
            queue.busy.is_none()
                && queue
                    .batches
                    .front()
                    .is_some_and(|first| hurry || queue.batches.len() > 1 || policy.is_ready(first, now))
        })?;
        let batch = queue.batches.pop_front()?;
        (queue.busy, queue.usual) = (Some(batch.completion.clone()), batch.contents.len());
        Some(batch)
    }

    /// A batch of this partition has arrived or failed.
    pub(crate) fn done(&mut self, partition: u32) {
        if let Some(queue) = self.queues.get_mut(&partition) {
            queue.busy = None;
            if queue.batches.is_empty() {
                self.queues.remove(&partition);
            }
        }
    }

    /// Lets everything taken in so far go without further waiting; answers the completions of
    /// all that is not yet done.
    pub(crate) fn seal(&mut self) -> Vec<T> {
        let mut completions = Vec::new();
        for queue in self.queues.values_mut() {
            completions.extend(queue.busy.clone());
            for batch in &mut queue.batches {
                batch.sealed = true;
                completions.push(batch.completion.clone());
            }
        }
        completions
    }

    /// When the first waiting batch has lingered enough.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.queues.values().filter(|queue| queue.busy.is_none());
        waiting.filter_map(|queue| Some(queue.batches.front()?.opened + self.policy.linger)).min()
    }

    /// Whether nothing waits and nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

impl BatchPolicy {
    fn is_full<T>(&self, batch: &Batch<T>) -> bool {
        batch.contents.len() >= self.max_records || batch.bytes >= self.max_bytes
    }

    fn is_ready<T>(&self, batch: &Batch<T>, now: Instant) -> bool {
        batch.sealed || self.is_full(batch) || now >= batch.opened + self.linger
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    fn out(partition: u32, after: Duration, payload: impl Into<bytes::Bytes>) -> Outgoing {
        Outgoing { partition, after, content: Content::new(payload), cost: 1 }
    }

    fn policy(linger_ms: u64, max_records: usize) -> BatchPolicy {
        BatchPolicy { linger: Duration::from_millis(linger_ms), max_records, ..BatchPolicy::default() }
    }

    fn payloads(batch: &Batch<()>) -> Vec<&[u8]> {
        batch.contents.iter().map(|content| &content.payload[..]).collect()
    }

    #[test]
    fn a_batch_waits_for_its_linger_or_until_it_is_full() {
        let start = Instant::now();
        let mut batcher = Batcher::<()>::new(policy(5, 3));
        assert!(batcher.push(out(0, NOW, "a"), || start).wakes_sender, "somebody must set a timer");
        assert!(batcher.next(start, false).is_none());
        assert_eq!(batcher.next_deadline(), Some(start + Duration::from_millis(5)));
        let second = batcher.push(out(0, NOW, "b"), || start);
        assert_eq!((second.index, second.wakes_sender), (1, false));
        assert!(batcher.push(out(0, NOW, "c"), || start).wakes_sender, "it is full");
        let batch = batcher.next(start, false).unwrap();
        assert_eq!((payloads(&batch), batch.cost), (vec![&b"a"[..], b"b", b"c"], 3));
        batcher.done(0);
        assert!(batcher.is_empty());
    }

    #[test]
    fn one_batch_of_a_partition_is_on_its_way_at_a_time() {
        let start = Instant::now();
        let mut batcher = Batcher::<()>::new(policy(0, 10));
        batcher.push(out(0, NOW, "a"), || start);
        assert!(batcher.next(start, false).is_some());
        assert!(!batcher.push(out(0, NOW, "b"), || start).wakes_sender, "it goes when the first one is back");
        batcher.push(out(1, NOW, "c"), || start);
        assert_eq!(batcher.next(start, false).unwrap().partition, 1);
        assert!(batcher.next(start, true).is_none());
        batcher.done(0);
        assert_eq!(payloads(&batcher.next(start, false).unwrap()), [b"b"]);
    }

    #[test]
    fn messages_with_different_delays_do_not_share_a_batch() {
        let start = Instant::now();
        let mut batcher = Batcher::<()>::new(policy(5, 10));
        batcher.push(out(0, NOW, "a"), || start);
        batcher.push(out(0, Duration::from_secs(1), "b"), || start);
        let first = batcher.next(start, false).unwrap();
        assert_eq!(payloads(&first), [b"a"], "a batch with a successor does not linger");
    }

    #[test]
    fn sealing_ends_the_linger_of_what_is_there_and_of_nothing_else() {
        let start = Instant::now();
        let mut batcher = Batcher::<()>::new(policy(5, 10));
        batcher.push(out(0, NOW, "a"), || start);
        batcher.push(out(1, NOW, "b"), || start);
        assert_eq!(batcher.seal().len(), 2);
        batcher.push(out(0, NOW, "late"), || start);
        assert_eq!(payloads(&batcher.next(start, false).unwrap()), [b"a"]);
        assert_eq!(payloads(&batcher.next(start, false).unwrap()), [b"b"]);
        assert_eq!(batcher.seal().len(), 3, "two on their way, one waiting");
    }

    proptest! {
        #[test]
        fn every_message_leaves_once_in_order_and_within_the_limits(
            sizes in prop::collection::vec((0_u32..3, 2_usize..400), 1..60),
            max_records in 1_usize..7,
        ) {
            let start = Instant::now();
            let mut batcher = Batcher::<()>::new(BatchPolicy { max_bytes: 600, ..policy(0, max_records) });
            for (n, (partition, size)) in sizes.iter().enumerate() {
                let mut payload = vec![0; *size];
                payload[0] = u8::try_from(n).unwrap();
                batcher.push(out(*partition, NOW, payload), || start);
            }
            let mut seen = [const { Vec::new() }; 3];
            while let Some(batch) = batcher.next(start, true) {
                prop_assert!(batch.contents.len() <= max_records && batch.cost == batch.contents.len());
                prop_assert!(batch.contents.len() == 1 || batch.bytes <= 600);
                seen[batch.partition as usize].extend(batch.contents.iter().map(|content| usize::from(content.payload[0])));
                batcher.done(batch.partition);
            }
            for (partition, seen) in seen.iter().enumerate() {
                let sent: Vec<_> = (0..sizes.len()).filter(|n| sizes[*n].0 as usize == partition).collect();
                prop_assert_eq!(seen, &sent);
            }
        }
    }
}
