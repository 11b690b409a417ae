//! [`Pump`]: changes and time in, batches and the position to confirm out. Pure.
//!
//! Each partition has its own queue and at most one batch under way, so its order is the source's.
//! A change that the partition's mark covers was stored before a crash and is dropped. The source
//! may forget a transaction once all of its changes, and all before it, are stored. Changes of one
//! position go in one batch: there are no more of them than a batch holds.

use firth::Message;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How much a batch takes, and how much may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Records of a batch.
    pub batch_records: usize,
    /// Bytes of a batch; a larger record goes alone.
    pub batch_bytes: usize,
    /// How long a batch that is not full waits for more while the source has more to read.
    pub linger: Duration,
    /// Bytes that wait or are under way, at most, before the source is not read further. Many
    /// batches fit: more would only make a large transaction large in memory.
    pub buffer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_records: 1_000,
            batch_bytes: 8 << 20,
            linger: Duration::from_millis(5),
            buffer_bytes: 16 << 20,
        }
    }
}

/// A change on its way to a partition.
#[derive(Debug)]
pub struct Change<P> {
    /// The partition.
    pub partition: usize,
    /// Where the change stands in the source.
    pub position: P,
    /// The record that tells it.
    pub message: Message,
    /// Bytes that the record takes.
    pub size: usize,
}

/// Records for one partition, and the mark that is stored with them.
#[derive(Debug)]
pub struct Batch<P> {
    /// The partition.
    pub partition: usize,
    /// The records, in source order.
    pub messages: Vec<Message>,
    /// The position of the last one.
    pub upto: P,
}

/// The queues of a source; see the [module](self). `P` is the position of a change, `C` what the
/// source is told to confirm.
#[derive(Debug)]
pub struct Pump<P, C> {
    limits: Limits,
    lanes: Vec<Lane<P>>,
    /// Transactions that are not confirmed yet, oldest first. Without records of their own they
    /// are merged, so there are at most as many as records that wait, and one more.
    txns: VecDeque<Txn<C>>,
    /// The number of the first of them.
    first: u64,
    /// Whether the last of them is still being read.
    is_open: bool,
    bytes: usize,
    confirmed: Option<C>,
}

#[derive(Debug)]
struct Lane<P> {
    mark: Option<P>,
    waiting: VecDeque<Entry<P>>,
    waiting_bytes: usize,
    under_way: Option<UnderWay>,
}

#[derive(Debug)]
struct Entry<P> {
    position: P,
    message: Message,
    size: usize,
    txn: u64,
    since: Instant,
}

/// What a batch that is being appended holds.
#[derive(Debug)]
struct UnderWay {
    bytes: usize,
    /// Records by transaction, oldest first.
    txns: Vec<(u64, usize)>,
}

#[derive(Debug)]
struct Txn<C> {
    /// What to confirm when it is stored; none while it is being read.
    end: Option<C>,
    /// Records that are not stored yet.
    left: usize,
}

impl<P: Ord + Clone, C: Copy + Ord> Pump<P, C> {
    /// A pump for partitions that hold these marks.
    pub fn new(limits: Limits, marks: Vec<Option<P>>) -> Self {
        Self {
            limits,
            lanes: marks.into_iter().map(Lane::new).collect(),
            txns: VecDeque::new(),
            first: 0,
            is_open: false,
            bytes: 0,
            confirmed: None,
        }
    }

    /// A transaction starts.
    pub fn begin(&mut self) {
        debug_assert!(!self.is_open, "transactions come one after the other");
        self.txns.push_back(Txn { end: None, left: 0 });
        self.is_open = true;
    }

    /// A change of the open transaction, read at `now`; false if its partition has it already.
    pub fn push(&mut self, now: Instant, change: Change<P>) -> bool {
        let lane = &mut self.lanes[change.partition];
        if lane.mark.as_ref().is_some_and(|mark| change.position <= *mark) {
            return false;
        }
        let txn = self.first + self.txns.len() as u64 - 1;
        self.txns.back_mut().expect("changes stand in transactions").left += 1;
        let Change { position, message, size, .. } = change;
        lane.waiting_bytes += size;
        self.bytes += size;
        lane.waiting.push_back(Entry { position, message, size, txn, since: now });
        true
    }

    /// The open transaction is over. Answers a number by which to ask whether it is stored.
    pub fn commit(&mut self, end: C) -> u64 {
        self.is_open = false;
        let last = self.txns.back_mut().expect("it was begun");
        last.end = Some(end);
        // One without records ends with the one before it.
        if last.left == 0 && self.txns.len() > 1 {
            self.txns.pop_back();
            self.txns.back_mut().expect("there are two").end = Some(end);
        }
        let number = self.first + self.txns.len() as u64 - 1;
        self.settle();
        number
    }

    /// Whether this transaction and all before it are stored.
    pub fn is_stored(&self, txn: u64) -> bool {
        self.first > txn
    }

    /// The source has sent everything up to here.
    pub fn sent_upto(&mut self, end: C) {
        if self.txns.is_empty() {
            self.confirmed = self.confirmed.max(Some(end));
        }
    }

    /// The next batch that is due. `is_drained`: the source has nothing to read just now, so that
    /// waiting for more would only delay.
    pub fn poll(&mut self, now: Instant, is_drained: bool) -> Option<Batch<P>> {
        let limits = &self.limits;
        let (partition, lane) = self.lanes.iter_mut().enumerate().find(|(_, lane)| {
            lane.under_way.is_none()
                && lane.waiting.front().is_some_and(|first| {
                    is_drained
                        || lane.waiting.len() >= limits.batch_records
                        || lane.waiting_bytes >= limits.batch_bytes
                        || now >= first.since + limits.linger
                })
        })?;
        Some(lane.take(partition, limits))
    }

    /// When a batch becomes due by waiting alone.
    pub fn due(&self) -> Option<Instant> {
        let idle = self.lanes.iter().filter(|lane| lane.under_way.is_none());
        idle.filter_map(|lane| lane.waiting.front()).map(|first| first.since + self.limits.linger).min()
    }

    /// The partition's batch is stored.
    pub fn stored(&mut self, partition: usize) {
        let done = self.lanes[partition].under_way.take().expect("a batch was under way");
        self.bytes -= done.bytes;
        for (txn, records) in done.txns {
            let place = usize::try_from(txn - self.first).expect("it is among the open ones");
            self.txns[place].left -= records;
        }
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(Txn { end: Some(end), left: 0 }) = self.txns.front() {
            self.confirmed = self.confirmed.max(Some(*end));
            self.txns.pop_front();
            self.first += 1;
        }
    }

    /// Everything before this is stored: the source may forget it. None before anything was.
    pub fn confirmed(&self) -> Option<C> {
        self.confirmed
    }

    /// Whether the source must not be read before a batch is stored.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.limits.buffer_bytes
    }

    /// Whether a transaction is being read.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Bytes that wait or are under way.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in new partitions, `partitions` in all: each of them holds `upto`. Nothing may
    /// wait or be under way.
    pub fn grow(&mut self, partitions: usize, upto: &P) {
        assert_eq!(self.bytes, 0, "everything that was read is stored");
        self.lanes.resize_with(partitions.max(self.lanes.len()), || Lane::new(None));
        self.lanes.iter_mut().for_each(|lane| lane.mark = Some(upto.clone()));
    }

    /// Whether every change that was read is stored.
    pub fn is_idle(&self) -> bool {
        self.txns.is_empty()
    }
}

impl<P: Clone + PartialEq> Lane<P> {
    fn new(mark: Option<P>) -> Self {
        Self { mark, waiting: VecDeque::new(), waiting_bytes: 0, under_way: None }
    }

    /// How many entries go into a batch: as many as fit without parting those of one position, and
    /// at least those of the first one.
    fn room(&self, limits: &Limits) -> usize {
        let (mut bytes, mut whole) = (0, 0);
        let mut entries = self.waiting.iter().enumerate().peekable();
        while let Some((place, entry)) = entries.next() {
            bytes += entry.size;
            if whole > 0 && (place >= limits.batch_records || bytes > limits.batch_bytes) {
                break;
            }
            if entries.peek().is_none_or(|(_, next)| next.position != entry.position) {
                whole = place + 1;
            }
        }
        whole
    }

    /// Cuts off a batch.
    fn take(&mut self, partition: usize, limits: &Limits) -> Batch<P> {
        let mut under_way = UnderWay { bytes: 0, txns: Vec::new() };
        let mut messages = Vec::new();
        let mut upto = None;
        let mut left = self.room(limits);
        while let Some(entry) = self.waiting.pop_front_if(|_| left > 0) {
            left -= 1;
            under_way.bytes += entry.size;
            match under_way.txns.last_mut() {
                Some((txn, records)) if *txn == entry.txn => *records += 1,
                _ => under_way.txns.push((entry.txn, 1)),
            }
            upto = Some(entry.position);
            messages.push(entry.message);
        }
        self.waiting_bytes -= under_way.bytes;
        self.mark.clone_from(&upto);
        self.under_way = Some(under_way);
        Batch { partition, messages, upto: upto.expect("a lane with entries was chosen") }
    }
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod model;
