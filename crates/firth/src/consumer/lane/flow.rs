//! The flow of one lane: which of the records at hand may be handed out now. Pure.
//!
//! Records leave in the order of the partition, as far as their keys allow: two records of one key
//! are never out at the same time (unless one chunk carries both, in order). With strict ordering a
//! record that waits for a retry holds back the later records of its key, and only those. Bounded
//! by the lane's window: nothing enters here that is not in it.

use crate::shared_record::SharedRecord;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

#[derive(Default)]
pub(crate) struct Flow {
    strict: bool,
    /// Records go out as if they had no keys.
    ignores_keys: bool,
    /// What may go out now, by place; of each key at most one.
    ready: VecDeque<SharedRecord>,
    keys: HashMap<Bytes, Key>,
    out: usize,
}

#[derive(Default)]
struct Key {
    /// The place of its record in `ready`.
    ready: Option<u64>,
    /// Held back, by place.
    waiting: VecDeque<SharedRecord>,
    out: usize,
    /// Places whose retry the engine keeps until it is due.
    due: BTreeSet<u64>,
}

/// Outcome of a record that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// Done or given up.
    Settled,
    /// To be tried again when it is due, or not yet stored as given up.
    Postponed,
    /// It never started: it may go out again.
    Unstarted,
}

/// Where a record waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlow {
    Ready,
    HeldBack,
}

impl Flow {
    pub(crate) fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// The same, but with no regard to keys unless they are minded.
    pub(crate) fn minding_keys(self, minds: bool) -> Self {
        Self { ignores_keys: !minds, ..self }
    }

    fn key_of<'r>(&self, record: &'r SharedRecord) -> Option<&'r Bytes> {
        record.content.key.as_ref().filter(|_| !self.ignores_keys)
    }

    /// A record with this key waits in the engine until it is due, or until its last verdict is
    /// stored.
    pub(crate) fn note_due(&mut self, key: Option<&Bytes>, seq: u64) {
        if self.strict
            && let Some(key) = key
        {
            self.keys.entry(key.clone()).or_default().due.insert(seq);
            self.review(key);
        }
    }

    /// A record no longer holds back its key.
    pub(crate) fn clear_due(&mut self, key: Option<&Bytes>, seq: u64) {
        if let Some(key) = key
            && let Some(state) = self.keys.get_mut(key)
        {
            state.due.remove(&seq);
            self.review(key);
        }
    }

    /// A record is at hand.
    pub(crate) fn admit(&mut self, record: SharedRecord) {
        let Some(key) = self.key_of(&record).cloned() else { return put(&mut self.ready, record) };
        let seq = record.id.seq;
        let state = self.keys.entry(key.clone()).or_default();
        state.due.remove(&seq);
        if state.is_free() {
            state.ready = Some(seq);
            return put(&mut self.ready, record);
        }
        put(&mut state.waiting, record);
        self.review(&key);
    }

    /// The place of the next record that may go out.
    pub(crate) fn next_seq(&self) -> Option<u64> {
        self.ready.front().map(|record| record.id.seq)
    }

    /// Takes up to `max` records that one worker runs one after the other, in order; none beyond
    /// `limit`.
    pub(crate) fn take(&mut self, max: usize, limit: u64) -> Vec<SharedRecord> {
        let mut chunk = Vec::with_capacity(max.min(self.ready.len()));
        // The next ones of keys in this chunk may ride along.
        let mut riding = BTreeMap::new();
        while chunk.len() < max {
            let first = self.next_seq();
            let rider = riding.first_key_value().map(|(seq, _)| *seq);
            let rides = rider.is_some_and(|seq| first.is_none_or(|first| seq < first));
            if if rides { rider } else { first }.is_some_and(|seq| seq > limit) {
                break;
            }
            let record = if rides { self.take_rider(&mut riding) } else { self.ready.pop_front() };
            let Some(record) = record else { break };
            if let Some(key) = self.key_of(&record) {
                let state = self.keys.get_mut(key).expect("a waiting key is known");
                (state.ready, state.out) = (None, state.out + 1);
                if let Some(next) = state.next(self.strict) {
                    riding.insert(next, key.clone());
                }
            }
            self.out += 1;
            chunk.push(record);
        }
        chunk
    }

    fn take_rider(&mut self, riding: &mut BTreeMap<u64, Bytes>) -> Option<SharedRecord> {
        let (_, key) = riding.pop_first()?;
        self.keys.get_mut(&key)?.waiting.pop_front()
    }

    /// A record that was out came back.
    pub(crate) fn back(&mut self, record: &SharedRecord, how: Back) {
        self.out -= 1;
        let Some(key) = self.key_of(record) else {
            if how == Back::Unstarted {
                self.admit(record.clone());
            }
            return;
        };
        let state = self.keys.get_mut(key).expect("the key of a record that is out is known");
        state.out -= 1;
        match how {
            Back::Settled => {}
            Back::Postponed if self.strict => drop(state.due.insert(record.id.seq)),
            Back::Postponed => {}
            Back::Unstarted => put(&mut state.waiting, record.clone()),
        }
        self.review(key);
    }

    /// How many records could go out now, keys taken into account one by one.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// How many records are out.
    pub(crate) fn out(&self) -> usize {
        self.out
    }

    /// The numbers of all records that wait here.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        let held_back = self.keys.values().flat_map(|key| &key.waiting);
        self.ready.iter().chain(held_back).map(|record| record.id.seq)
    }

    /// Where a record waits. It costs a search: for tests and for errors.
    pub(crate) fn find(&self, seq: u64) -> Option<InFlow> {
        if self.ready.binary_search_by_key(&seq, |record| record.id.seq).is_ok() {
            return Some(InFlow::Ready);
        }
        let is_held_back = |key: &Key| key.waiting.iter().any(|record| record.id.seq == seq);
        self.keys.values().any(is_held_back).then_some(InFlow::HeldBack)
    }

    /// How many records are held back by an earlier one of their key.
    #[cfg(test)]
    pub(crate) fn held_back(&self) -> usize {
        self.keys.values().map(|key| key.waiting.len()).sum()
    }

    /// Puts the state of one key right after a change: its first record is ready exactly if nothing
    /// holds it back.
    fn review(&mut self, key: &Bytes) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if let Some(seq) = state.ready {
            let comes_first = state.waiting.front().is_none_or(|first| seq < first.id.seq);
            if comes_first && state.may_go(seq, self.strict) {
                return;
            }
            let at = self.ready.binary_search_by_key(&seq, |record| record.id.seq);
            let record =
                at.ok().and_then(|at| self.ready.remove(at)).expect("what is noted as ready is there");
            put(&mut state.waiting, record);
            state.ready = None;
        }
        if state.out == 0
            && let Some(seq) = state.next(self.strict)
        {
            let record = state.waiting.pop_front().expect("the next one waits");
            state.ready = Some(seq);
            put(&mut self.ready, record);
        }
        if state.is_free() {
            self.keys.remove(key);
        }
    }
}

impl Key {
    /// The first waiting record, unless an earlier one of this key is due later.
    fn next(&self, strict: bool) -> Option<u64> {
        let first = self.waiting.front()?.id.seq;
        self.may_go(first, strict).then_some(first)
    }

    fn may_go(&self, seq: u64, strict: bool) -> bool {
        !(strict && self.due.first().is_some_and(|due| *due < seq))
    }

    /// Whether nothing of this key is here.
    fn is_free(&self) -> bool {
        self.ready.is_none() && self.waiting.is_empty() && self.out == 0 && self.due.is_empty()
    }
}

/// Puts a record into its place; most come last, and of what was due, put in from its end, most
/// come first.
fn put(list: &mut VecDeque<SharedRecord>, record: SharedRecord) {
    let seq = record.id.seq;
    if list.back().is_none_or(|last| last.id.seq < seq) {
        return list.push_back(record);
    }
    if list.front().is_some_and(|first| seq < first.id.seq) {
        return list.push_front(record);
    }
    let at = list.partition_point(|other| other.id.seq < seq);
    list.insert(at, record);
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::{Content, Record, RecordId};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn record(seq: u64, key: &str) -> SharedRecord {
        let content = Content::new("x");
        let content = if key.is_empty() { content } else { content.with_key(key.to_owned()) };
        SharedRecord::alone(Record { id: RecordId::new(1, seq), attempt: 1, crashes: 0, content })
    }

    fn seqs(chunk: &[SharedRecord]) -> Vec<u64> {
        chunk.iter().map(|record| record.id.seq).collect()
    }

    #[test]
    fn a_key_is_out_once_unless_one_chunk_carries_it() {
        let mut flow = Flow::new(true);
        for (seq, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "")] {
            flow.admit(record(seq, key));
        }
        let first = flow.take(1, u64::MAX);
        assert_eq!(seqs(&first), [1]);
        assert_eq!(seqs(&flow.take(1, u64::MAX)), [3]);
        assert_eq!(seqs(&flow.take(9, u64::MAX)), [4]);
        assert_eq!((flow.ready(), flow.held_back()), (0, 1));
        flow.back(&first[0], Back::Settled);
        assert_eq!(seqs(&flow.take(9, u64::MAX)), [2]);

        let mut flow = Flow::new(true);
        (1..=3).for_each(|seq| flow.admit(record(seq, "a")));
        assert_eq!(seqs(&flow.take(2, u64::MAX)), [1, 2]);
        assert_eq!(flow.ready(), 0);
    }

    #[test]
    fn strict_order_holds_back_the_key_of_a_retry_and_nothing_else() {
        for strict in [true, false] {
            let mut flow = Flow::new(strict);
            for (seq, key) in [(1, "a"), (2, "b"), (3, "a")] {
                flow.admit(record(seq, key));
            }
            let chunk = flow.take(1, u64::MAX);
            flow.back(&chunk[0], Back::Postponed);
            assert_eq!(seqs(&flow.take(9, u64::MAX)), if strict { vec![2] } else { vec![2, 3] });
            flow.admit(record(1, "a"));
            assert_eq!(seqs(&flow.take(1, u64::MAX)), if strict { vec![1] } else { vec![] });
        }
    }

    #[test]
    fn without_regard_to_keys_records_go_out_in_the_order_of_the_partition() {
        let mut flow = Flow::new(false).minding_keys(false);
        (1..=4).for_each(|seq| flow.admit(record(seq, if seq == 3 { "" } else { "a" })));
        let first = flow.take(1, u64::MAX);
        assert_eq!(seqs(&flow.take(1, u64::MAX)), [2]);
        flow.back(&first[0], Back::Unstarted);
        assert_eq!(seqs(&flow.take(9, u64::MAX)), [1, 3, 4]);
        assert_eq!((flow.out(), flow.held_back()), (4, 0));
        flow.back(&first[0], Back::Settled);
        assert_eq!((flow.out(), flow.ready()), (3, 0));
    }

    #[test]
    fn what_never_started_goes_out_again_in_its_place() {
        let mut flow = Flow::new(true);
        (1..=3).for_each(|seq| flow.admit(record(seq, "a")));
        let chunk = flow.take(3, u64::MAX);
        flow.back(&chunk[0], Back::Settled);
        flow.back(&chunk[1], Back::Unstarted);
        flow.back(&chunk[2], Back::Unstarted);
        assert_eq!(seqs(&flow.take(1, u64::MAX)), [2]);
    }

    #[test]
    fn a_new_owner_learns_which_keys_wait_for_a_retry() {
        let mut flow = Flow::new(true);
        flow.note_due(Some(&Bytes::from("a")), 1);
        flow.admit(record(2, "a"));
        flow.admit(record(3, "b"));
        assert_eq!(seqs(&flow.take(9, u64::MAX)), [3]);
        flow.admit(record(1, "a"));
        assert_eq!(seqs(&flow.take(9, u64::MAX)), [1, 2]);
    }

    #[test]
    fn a_key_goes_on_when_what_held_it_back_is_settled_elsewhere() {
        let mut flow = Flow::new(true);
        flow.note_due(Some(&Bytes::from("a")), 1);
        flow.admit(record(2, "a"));
        assert_eq!(flow.ready(), 0);
        flow.clear_due(Some(&Bytes::from("a")), 1);
        assert_eq!(seqs(&flow.take(9, u64::MAX)), [2]);
    }

    proptest! {
        /// After any steps, no two records of a key are out in different chunks, each key goes in
        /// order, and every record gets done.
        #[test]
        fn keys_stay_in_order(
            keys in prop::collection::vec("[abc]?", 1..40),
            steps in prop::collection::vec((1_usize..4, 0_u8..4), 200),
        ) {
            let mut flow = Flow::new(true);
            let mut chunks = Vec::<Vec<SharedRecord>>::new();
            let mut done = Vec::<(u64, String)>::new();
            let mut due = Vec::new();
            for (seq, key) in keys.iter().enumerate() { flow.admit(record(seq as u64 + 1, key)); }
            for (size, dice) in steps {
                if dice == 0 && !due.is_empty() { flow.admit(due.remove(0)); }
                if dice < 2 {
                    let chunk = flow.take(size, u64::MAX);
                    for record in &chunk {
                        if let Some(key) = &record.content.key {
                            prop_assert!(!chunks.iter().flatten().any(|out| out.content.key.as_ref() == Some(key)));
                        }
                    }
                    if !chunk.is_empty() { chunks.push(chunk); }
                } else if let Some(chunk) = chunks.pop() {
                    let mut failed: HashSet<Bytes> = HashSet::new();
                    for (n, record) in chunk.iter().enumerate() {
                        let key = record.content.key.clone();
                        if key.as_ref().is_some_and(|key| failed.contains(key)) {
                            flow.back(record, Back::Unstarted);
                        } else if dice == 3 && n == 0 {
                            flow.back(record, Back::Postponed);
                            due.push(record.clone());
                            failed.extend(key);
                        } else {
                            flow.back(record, Back::Settled);
                            let key = key.map(|key| String::from_utf8(key.to_vec()).unwrap());
                            done.push((record.id.seq, key.unwrap_or_default()));
                        }
                    }
                }
            }
            for key in ["a", "b", "c"] {
                let order: Vec<_> = done.iter().filter(|(_, k)| k == key).map(|(seq, _)| *seq).collect();
                prop_assert!(order.is_sorted(), "{key}: {order:?}");
            }
            prop_assert_eq!(flow.out(), chunks.iter().flatten().count());
            prop_assert_eq!(done.len() + flow.out() + flow.ready() + flow.held_back() + due.len(), keys.len());
        }
    }
}
