//! A group in one partition, as naively as it can be written.

use bytes::Bytes;
use firth_engine::facet::{Committed, Due, DueRecord};
use firth_engine::{Commit, Content, Progress, Record, RecordId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct ModelGroup {
    pub(super) log: Vec<Record>,
    /// Numbers that have left the log's side: done, due or dead.
    pub(super) settled: BTreeSet<u64>,
    pub(super) due: BTreeMap<u64, DueAgain>,
    pub(super) done: BTreeSet<u64>,
    pub(super) dead: BTreeSet<u64>,
    pub(super) reach: u64,
    pub(super) crashes: u32,
}

pub(super) struct DueAgain {
    pub(super) attempt: u32,
    at: Instant,
    is_taken: bool,
}

impl ModelGroup {
    pub(super) fn append(&mut self, key: Option<Bytes>) {
        let seq = self.log.len() as u64 + 1;
        let content = Content::new("x");
        let content = match key {
            Some(key) => content.with_key(key),
            None => content,
        };
        self.log.push(Record { id: RecordId::new(7, seq), attempt: 1, crashes: 0, content });
    }

    pub(super) fn record(&self, seq: u64) -> &Record {
        &self.log[seq as usize - 1]
    }

    pub(super) fn key(&self, seq: u64) -> Option<&Bytes> {
        self.record(seq).content.key.as_ref()
    }

    pub(super) fn is_finished(&self, seq: u64) -> bool {
        self.done.contains(&seq) || self.dead.contains(&seq)
    }

    /// Opening lets go of the due records that the session before had taken.
    pub(super) fn open(&mut self, now: Instant) -> Progress {
        self.due.values_mut().for_each(|due| due.is_taken = false);
        let frontier = (1..).take_while(|seq| self.settled.contains(seq)).last().unwrap_or(0);
        Progress {
            frontier: id(frontier),
            ahead: self.settled.range(frontier + 1..).copied().collect(),
            crashes: std::mem::take(&mut self.crashes),
            due: self.due.len() as u64,
            next_due: self.next_due(now),
            last: id(self.log.len() as u64),
            reach: (self.reach > 0).then_some(self.reach),
        }
    }

    pub(super) fn read(&self, after: RecordId, max: usize) -> Vec<Record> {
        self.log.iter().skip(after.seq as usize).take(max).cloned().collect()
    }

    pub(super) fn take_due(&mut self, now: Instant, max: usize, known: &[RecordId]) -> Due {
        let ripe = self.due.iter_mut().filter(|(_, due)| !due.is_taken && due.at <= now).take(max);
        let log = &self.log;
        let records = ripe.map(|(seq, due)| {
            due.is_taken = true;
            let content = (!known.contains(&id(*seq))).then(|| log[*seq as usize - 1].content.clone());
            DueRecord { id: id(*seq), attempt: due.attempt, crashes: 0, content }
        });
        Due { records: records.collect(), lost: 0, next: self.next_due(now) }
    }

    /// Applies a commit, and checks that it settles only open records, each once.
    pub(super) fn commit(&mut self, now: Instant, commit: &Commit) -> Committed {
        commit.check().unwrap();
        let last = self.log.len() as u64;
        let covered = (1..=last).filter(|seq| *seq <= commit.frontier.seq || commit.ahead.contains(*seq));
        let covered: BTreeSet<u64> = covered.collect();
        assert!(self.settled.is_subset(&covered), "a commit takes back what was settled");
        let mut fresh: BTreeSet<u64> = covered.difference(&self.settled).copied().collect();
        for seq in commit.done.iter().map(|id| id.seq) {
            assert!(self.due.remove(&seq).is_some_and(|due| due.is_taken), "{seq} was not taken");
            assert!(self.done.insert(seq), "{seq} is done twice");
        }
        for retry in &commit.retries {
            let seq = retry.id.seq;
            let before = self.due.remove(&seq);
            assert!(before.is_some() || fresh.remove(&seq), "{seq} is not open");
            let attempt = before.map_or(1, |due| due.attempt) + 1;
            self.due.insert(seq, DueAgain { attempt, at: now + retry.after, is_taken: false });
        }
        for seq in commit.dead.iter().map(|dead| dead.record.id.seq) {
            assert!(self.due.remove(&seq).is_some() || fresh.remove(&seq), "{seq} is not open");
            assert!(self.dead.insert(seq), "{seq} is dead twice");
        }
        self.done.extend(fresh);
        self.settled = covered;
        self.reach = commit.reach;
        assert!(self.settled.iter().all(|seq| {
            let places = [self.done.contains(seq), self.dead.contains(seq), self.due.contains_key(seq)];
            places.into_iter().filter(|is_there| *is_there).count() == 1
        }));
        Committed { due: self.due.len() as u64, next_due: self.next_due(now) }
    }

    fn next_due(&self, now: Instant) -> Option<Duration> {
        let waiting = self.due.values().filter(|due| !due.is_taken).map(|due| due.at);
        waiting.min().map(|at| at.saturating_duration_since(now))
    }
}

fn id(seq: u64) -> RecordId {
    if seq == 0 { RecordId::ZERO } else { RecordId::new(7, seq) }
}
