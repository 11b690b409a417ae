//! The owner's view of one group in one partition: what was handed out, what is settled, what to
//! commit next.
//!
//! Pure arithmetic, shared by every engine's users: no clock, no I/O. [`Window`] is the only place
//! that computes a frontier. Bounded: at most `capacity` records are in flight or waiting for their
//! commit, which also bounds the runs ahead of the frontier and the verdicts of one commit.
//!
//! After a failed commit or a lost connection the window is worthless: open the group again and
//! start a new one.

use crate::ahead::Ahead;
use crate::commit::{Commit, Dead, DeadNote, Retry, Verdict, cut_reason};
use crate::error::{Error, Result};
use crate::id::RecordId;
use crate::limits::MAX_VERDICTS;
use crate::record::Record;
use foldhash::fast::RandomState;
use smol_str::SmolStr;
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// Where a group stands in a partition, as the engine hands it to a new owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to here has left the log's side: done, due or dead.
    pub frontier: RecordId,
    /// What has left it beyond the frontier.
    pub ahead: Ahead,
    /// How many owners in a row vanished without moving the frontier: above zero, hand out one
    /// record at a time.
    pub crashes: u32,
    /// How many records wait for a retry.
    pub due: u64,
    /// When the first of them is due.
    pub next_due: Option<Duration>,
    /// The newest record of the partition.
    pub last: RecordId,
    /// No owner started a record of the log with a larger number, by the last commit's word
    /// ([`Commit::reach`]); the frontier of a group that is new or was reset. `None` if an older
    /// version wrote the group, which gave no word.
    pub reach: Option<u64>,
}

/// How far the newest record read may be from the oldest unsettled one.
pub const MAX_SPAN: usize = 100_000;

/// What to do with a record read from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Hand it out.
    Deliver,
    /// It was settled before a takeover: skip it.
    Skip,
}

/// The in-flight window of one owner.
#[derive(Clone, Debug)]
pub struct Window {
    frontier: RecordId,
    slots: VecDeque<Slot>,
    position: RecordId,
    ahead: Ahead,
    due: HashSet<RecordId, RandomState>,
    verdicts: Commit,
    open: usize,
    lost: u64,
    capacity: usize,
    committed: (RecordId, Ahead),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: RecordId,
    settled: bool,
}

impl Window {
    /// A window over freshly opened progress, for at most `capacity` records (1 to
    /// [`MAX_VERDICTS`]).
    pub fn new(progress: &Progress, capacity: usize) -> Self {
        Self {
            frontier: progress.frontier,
            slots: VecDeque::new(),
            position: progress.frontier,
            ahead: progress.ahead.clone(),
            due: HashSet::default(),
            verdicts: Commit::default(),
            open: 0,
            lost: 0,
            capacity: capacity.clamp(1, MAX_VERDICTS),
            committed: (progress.frontier, progress.ahead.clone()),
        }
    }

    /// The number of the first record without a verdict.
    pub fn open(&self) -> u64 {
        self.ahead.first_missing_after(self.frontier.seq)
    }

    /// Read the log after this id.
    pub fn position(&self) -> RecordId {
        self.position
    }

    /// How many more records may be taken in now. Zero also when one stuck record holds the
    /// frontier back by [`MAX_SPAN`]: memory stays bounded, and the stuck record is worth looking
    /// at.
    pub fn room(&self) -> usize {
        let free = self.capacity.saturating_sub(self.in_flight() + self.verdicts.verdicts());
        free.min(MAX_SPAN.saturating_sub(self.slots.len()))
    }

    /// How many records are handed out and not settled.
    pub fn in_flight(&self) -> usize {
        self.open + self.due.len()
    }

    /// Whether a record is taken in and has no verdict yet. It costs a search: for tests and for
    /// errors.
    pub fn is_open(&self, seq: u64) -> bool {
        let at = self.slots.binary_search_by_key(&seq, |slot| slot.id.seq);
        at.is_ok_and(|at| !self.slots[at].settled) || self.due.iter().any(|id| id.seq == seq)
    }

    /// Whether a record is taken in and has no verdict yet; a look at one place.
    pub fn has(&self, id: RecordId) -> bool {
        self.slot_of(id).is_some_and(|at| !self.slots[at].settled) || self.due.contains(&id)
    }

    /// How many records a lossy trim removed before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes in the next record of the log. Records must come in order, each once.
    pub fn offer(&mut self, record: &Record) -> Offer {
        let id = record.id;
        let in_order = id > self.position && id.seq > self.position.seq;
        assert!(in_order, "records are offered in order: {id} after {}", self.position);
        let skipped = id.seq - self.position.seq - 1;
        self.lost += skipped - self.ahead.count_between(self.position.seq + 1, id.seq);
        self.position = id;
        let settled = self.ahead.contains(id.seq);
        self.slots.push_back(Slot { id, settled });
        if settled {
            return Offer::Skip;
        }
        self.open += 1;
        Offer::Deliver
    }

    /// Takes in a due record; false if it is in flight already.
    pub fn offer_due(&mut self, record: &Record) -> bool {
        self.due.insert(record.id)
    }

    /// Notes the verdict on a delivery. An unknown or already settled record is an error of the
    /// caller.
    pub fn settle(&mut self, record: &Record, verdict: Verdict) -> Result<()> {
        let id = record.id;
        // What is open in the log is not due: most records are found without a look at those that
        // are.
        let was_due = !self.settle_slot(id);
        if was_due && !self.due.remove(&id) {
            return Err(Error::invalid(format!("record {id} is not in flight")));
        }
        match verdict {
            Verdict::Ack if was_due => self.verdicts.done.push(id),
            Verdict::Ack => {}
            Verdict::Retry { after, reason, keep } => {
                let kept = keep.then(|| Box::new(record.content.clone()));
                let reason = cut(reason);
                self.verdicts.retries.push(Retry { id, after, reason, kept });
            }
            Verdict::Dead { reason, note } => {
                let mut record = record.clone();
                let reason = cut(reason);
                if let Some(DeadNote { name, value }) = note.map(|note| *note)
                    && let Ok(headers) = record.content.headers.with(&name, &value)
                {
                    record.content.headers = headers;
                }
                self.verdicts.dead.push(Dead { record, reason });
            }
        }
        Ok(())
    }

    fn slot_of(&self, id: RecordId) -> Option<usize> {
        // Most logs have no holes, and then the place follows from the number.
        let guess =
            self.slots.front().and_then(|first| usize::try_from(id.seq.checked_sub(first.id.seq)?).ok());
        let found = guess.filter(|at| self.slots.get(*at).is_some_and(|slot| slot.id == id));
        found.or_else(|| self.slots.binary_search_by_key(&id, |slot| slot.id).ok())
    }

    /// False if it is not open in the log.
    fn settle_slot(&mut self, id: RecordId) -> bool {
        match self.slot_of(id).map(|at| &mut self.slots[at]) {
            Some(slot) if !slot.settled => {
                slot.settled = true;
                self.open -= 1;
                self.ahead.insert(id.seq);
                true
            }
            _ => false,
        }
    }

    /// The commit for everything settled since the last call; `None` when there is nothing new.
    pub fn take_commit(&mut self) -> Option<Commit> {
        while let Some(slot) = self.slots.front().filter(|slot| slot.settled) {
            self.frontier = slot.id;
            self.slots.pop_front();
        }
        self.ahead.remove_up_to(self.frontier.seq);
        let mut commit = std::mem::take(&mut self.verdicts);
        if commit.verdicts() == 0 && self.committed.0 == self.frontier && self.committed.1 == self.ahead {
            return None;
        }
        self.committed = (self.frontier, self.ahead.clone());
        commit.frontier = self.frontier;
        commit.ahead = self.ahead.clone();
        commit.seen = self.position;
        Some(commit)
    }

    /// A commit that settles nothing more, for an owner that only moves its [reach](Commit::reach).
    pub fn unchanged(&self) -> Commit {
        let (frontier, ahead) = self.committed.clone();
        Commit { frontier, ahead, seen: self.position, ..Commit::default() }
    }
}

fn cut(reason: SmolStr) -> SmolStr {
    match cut_reason(&reason) {
        short if short.len() < reason.len() => short.into(),
        _ => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Content;
    use proptest::prelude::*;

    fn record(seq: u64) -> Record {
        Record { id: RecordId::new(7, seq), attempt: 1, crashes: 0, content: Content::new("x") }
    }

    fn retry() -> Verdict {
        Verdict::Retry { after: Duration::from_secs(1), reason: "no".into(), keep: false }
    }

    #[test]
    fn the_frontier_stops_at_the_oldest_open_record() {
        let mut window = Window::new(&Progress::default(), 10);
        (1..=4).for_each(|seq| assert_eq!(window.offer(&record(seq)), Offer::Deliver));
        for seq in [1, 3, 4] {
            window.settle(&record(seq), Verdict::Ack).unwrap();
        }
        let commit = window.take_commit().unwrap();
        assert_eq!((commit.frontier.seq, commit.ahead.runs()), (1, &[(3, 4)][..]));
        assert_eq!(window.take_commit(), None);
        window.settle(&record(2), retry()).unwrap();
        let commit = window.take_commit().unwrap();
        assert_eq!((commit.frontier.seq, commit.ahead.len(), commit.retries.len()), (4, 0, 1));
    }

    #[test]
    fn a_new_owner_skips_what_is_ahead_and_carries_it_along() {
        let progress = Progress {
            frontier: RecordId::new(7, 2),
            ahead: [4, 9].into_iter().collect(),
            ..Progress::default()
        };
        let mut window = Window::new(&progress, 10);
        assert_eq!(window.offer(&record(3)), Offer::Deliver);
        assert_eq!(window.offer(&record(4)), Offer::Skip);
        window.settle(&record(3), Verdict::Ack).unwrap();
        let commit = window.take_commit().unwrap();
        assert_eq!((commit.frontier.seq, commit.ahead.runs()), (4, &[(9, 9)][..]));
    }

    #[test]
    fn a_record_is_settled_once() {
        let mut window = Window::new(&Progress::default(), 10);
        window.offer(&record(1));
        window.settle(&record(1), Verdict::Ack).unwrap();
        assert!(window.settle(&record(1), Verdict::Ack).is_err());
        assert!(window.settle(&record(2), Verdict::Ack).is_err());
    }

    #[test]
    fn a_due_record_is_done_without_moving_the_frontier() {
        let mut window = Window::new(&Progress::default(), 10);
        assert!(window.offer_due(&record(5)));
        assert!(!window.offer_due(&record(5)));
        window.settle(&record(5), Verdict::Ack).unwrap();
        let commit = window.take_commit().unwrap();
        assert_eq!((commit.frontier, commit.done), (RecordId::ZERO, vec![RecordId::new(7, 5)]));
    }

    #[test]
    fn records_removed_by_a_lossy_trim_are_counted() {
        let mut window = Window::new(&Progress::default(), 10);
        window.offer(&record(4));
        assert_eq!(window.lost(), 3);
    }

    proptest! {
        /// However records are settled and however often commits are taken, each commit is valid,
        /// keeps what earlier ones had settled, and the last one covers everything.
        #[test]
        fn commits_only_ever_add(order in Just((1..=40u64).collect::<Vec<_>>()).prop_shuffle(), cut in 1usize..9) {
            let mut window = Window::new(&Progress::default(), 40);
            (1..=40).for_each(|seq| { window.offer(&record(seq)); });
            let mut before = Commit::default();
            for (done, seq) in order.iter().enumerate() {
                window.settle(&record(*seq), Verdict::Ack).unwrap();
                if done % cut != 0 { continue; }
                let commit = window.take_commit().unwrap();
                commit.check().unwrap();
                prop_assert!(commit.frontier >= before.frontier);
                prop_assert!(commit.ahead.covers(&before.ahead, commit.frontier.seq));
                prop_assert_eq!(commit.frontier.seq + commit.ahead.len(), done as u64 + 1);
                before = commit;
            }
            if let Some(last) = window.take_commit() { before = last; }
            prop_assert_eq!((before.frontier.seq, before.ahead.len()), (40, 0));
            prop_assert_eq!(window.room(), 40);
        }
    }
}
