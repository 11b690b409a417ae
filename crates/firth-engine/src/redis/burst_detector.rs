//! Tells whether a partition has a burst of appends, and whether optimistic appends
//! ([`super::optimistic_append`]) worked for it lately. Pure but for its clock.

use crate::backoff::Backoff;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Appends follow each other closely if none of them comes later than this after the one before.
const CLOSE: Duration = Duration::from_secs(1);
/// Appends in a row that show that more will come.
const STEADY: u32 = 4;
/// Successes that make up for earlier failures.
const FORGIVEN: u32 = 64;
/// After each failure in a row appends go by script for longer.
const COOLDOWN: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(10));

/// Times are milliseconds since the birth of this value.
#[derive(Debug)]
pub(super) struct BurstDetector {
    born: Instant,
    last: AtomicU64,
    in_a_row: AtomicU32,
    failures: AtomicU32,
    successes: AtomicU32,
    not_before: AtomicU64,
}

impl Default for BurstDetector {
    fn default() -> Self {
        let (last, in_a_row, failures, successes, not_before) = Default::default();
        Self { born: Instant::now(), last, in_a_row, failures, successes, not_before }
    }
}

impl BurstDetector {
    /// Notes an append. Returns whether it is part of a burst and no cooldown runs.
    pub(super) fn is_burst(&self) -> bool {
        let now = self.now();
        let is_close = now <= self.last.swap(now, Ordering::Relaxed) + millis(CLOSE);
        let in_a_row = if is_close { self.in_a_row.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.in_a_row.store(in_a_row, Ordering::Relaxed);
        in_a_row >= STEADY && now >= self.not_before.load(Ordering::Relaxed)
    }

    /// Whether the last append was this long ago.
    pub(super) fn rests(&self, limit: Duration) -> bool {
        self.now() > self.last.load(Ordering::Relaxed) + millis(limit)
    }

    pub(super) fn went_well(&self) {
        if self.failures.load(Ordering::Relaxed) > 0
            && self.successes.fetch_add(1, Ordering::Relaxed) >= FORGIVEN
        {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn went_wrong(&self) {
        self.successes.store(0, Ordering::Relaxed);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.not_before.store(self.now() + millis(COOLDOWN.delay(failures)), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        millis(self.born.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_appends_in_a_row_are_a_steady_pace() {
        let bursts = BurstDetector::default();
        let steady: Vec<bool> = (0..6).map(|_| bursts.is_burst()).collect();
        assert_eq!(steady, [false, false, false, true, true, true]);
        assert!(!bursts.rests(Duration::from_secs(3600)));
    }

    #[test]
    fn a_pause_breaks_it() {
        let born = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let bursts = BurstDetector { born, in_a_row: 9.into(), ..BurstDetector::default() };
        assert!(!bursts.is_burst(), "the last one was ten seconds ago");
    }

    #[test]
    fn each_failure_in_a_row_closes_the_quick_way_for_longer() {
        let bursts = BurstDetector { in_a_row: 9.into(), ..BurstDetector::default() };
        let closed =
            |bursts: &BurstDetector| bursts.not_before.load(Ordering::Relaxed).saturating_sub(bursts.now());
        bursts.went_wrong();
        assert!(!bursts.is_burst());
        let first = closed(&bursts);
        (0..4).for_each(|_| bursts.went_wrong());
        assert!(closed(&bursts) > 4 * first, "{first}, then {}", closed(&bursts));
        (0..=FORGIVEN).for_each(|_| bursts.went_well());
        bursts.went_wrong();
        assert!(closed(&bursts) < 100);
    }
}
