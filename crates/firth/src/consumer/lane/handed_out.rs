//! When the lane handed out which record: for operators who ask what is in flight. Pure.
//!
//! **Why a list and no map.** A record costs one push here, and its end costs nothing. What has
//! ended is removed when the list has doubled since the last time.
//!
//! Bounded: twice the records that were in flight at the last removal, and at least [`LEAST`].

use crate::shared_record::SharedRecord;
use firth_engine::RecordId;
use std::collections::{HashSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Entries below which nothing is removed.
const LEAST: usize = 1024;

/// A record that a handler or a caller of `next` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Out {
    pub(crate) id: RecordId,
    pub(crate) attempt: u32,
    /// How long ago it was handed out.
    pub(crate) age: Duration,
}

/// What was handed out, in this order.
pub(super) struct HandedOut {
    entries: VecDeque<(RecordId, u32, Instant)>,
    limit: usize,
}

impl Default for HandedOut {
    fn default() -> Self {
        Self { entries: VecDeque::new(), limit: LEAST }
    }
}

impl HandedOut {
    /// These records are handed out now.
    pub(super) fn note(&mut self, records: &[SharedRecord], now: Instant) {
        self.entries.extend(records.iter().map(|record| (record.id, record.attempt, now)));
    }

    /// Removes what has ended, if that is worth it.
    pub(super) fn tidy(&mut self, is_open: impl Fn(RecordId) -> bool) {
        if self.entries.len() >= self.limit {
            self.entries.retain(|(id, ..)| is_open(*id));
            self.limit = (2 * self.entries.len()).max(LEAST);
        }
    }

    /// The records that are out, the newest first; of a record that went out twice the last time.
    pub(super) fn list(&self, now: Instant, is_out: impl Fn(RecordId) -> bool) -> Vec<Out> {
        let mut seen = HashSet::new();
        let newest = self.entries.iter().rev().filter(|(id, ..)| seen.insert(*id) && is_out(*id));
        newest
            .map(|(id, attempt, at)| Out { id: *id, attempt: *attempt, age: now.duration_since(*at) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::{Content, Record};

    fn record(seq: u64, attempt: u32) -> SharedRecord {
        let id = RecordId::new(1, seq);
        let content = Content::new("x");
        SharedRecord::alone(Record { id, attempt, crashes: 0, content })
    }

    #[test]
    fn mq46_a_record_that_went_out_twice_counts_from_the_last_time() {
        let start = Instant::now();
        let mut handed = HandedOut::default();
        handed.note(&[record(1, 1), record(2, 1)], start);
        let later = start + Duration::from_secs(5);
        handed.note(&[record(1, 2)], later);
        let listed = handed.list(later, |id| id.seq < 3);
        let told: Vec<_> = listed.iter().map(|out| (out.id.seq, out.attempt, out.age.as_secs())).collect();
        assert_eq!(told, [(1, 2, 0), (2, 1, 5)]);
        assert!(handed.list(later, |_| false).is_empty());
    }

    #[test]
    fn mq46_the_list_stays_bounded_while_one_record_is_stuck() {
        let now = Instant::now();
        let mut handed = HandedOut::default();
        handed.note(&[record(1, 1)], now);
        for seq in 2..100_000 {
            handed.note(&[record(seq, 1)], now);
            handed.tidy(|id| id.seq == 1 || id.seq == seq);
        }
        assert!(handed.entries.len() <= LEAST, "{}", handed.entries.len());
        assert_eq!(handed.list(now, |id| id.seq == 1).len(), 1);
    }
}
