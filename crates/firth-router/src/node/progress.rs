//! How far a partition was read, and when: what tells who has held something for how long. Pure.

use firth::Epoch;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Interval of the check whether a gateway holds up all others. The check runs only while a
/// partition has the maximum of open records.
pub(super) const STALL_CHECK: Duration = Duration::from_millis(10);
/// Minimum time for which a gateway may hold up all others.
const MIN_STALL: Duration = Duration::from_millis(50);

/// The reading of a partition under one ownership.
pub(super) struct Progress {
    pub(super) epoch: Epoch,
    pub(super) last: u64,
    /// Noted at every look, to find gateways that hold an event for longer than they may.
    read: Marks,
    /// Noted at every stall check while nothing more can be read, to find the gateways that idle
    /// gateways wait for.
    full: Marks,
}

impl Progress {
    /// Of an ownership that begins; `stall_timeout` and the time that events may wait for a batch
    /// are the configured ones.
    pub(super) fn new(epoch: Epoch, last: u64, stall_timeout: Duration, max_wait: Duration) -> Self {
        // Waiting for a batch is no sign of being slow.
        let stall_limit = MIN_STALL.max(max_wait * 2).min(stall_timeout);
        Self { epoch, last, read: Marks::new(stall_timeout), full: Marks::new(stall_limit) }
    }

    /// Notes, at a look, how far the partition is read. Returns the last event that was read so
    /// long ago that no gateway may still hold it.
    pub(super) fn look(&mut self, now: Instant) -> Option<u64> {
        self.read.note(now, self.last);
        self.read.old(now)
    }

    /// Notes, at a stall check, how far the partition is read if nothing more can be read. Returns
    /// the last event that was read so long ago that no gateway may still hold it while others
    /// wait.
    pub(super) fn stall_check(&mut self, now: Instant, is_full: bool) -> Option<u64> {
        if !is_full {
            self.full.marks.clear();
            return None;
        }
        self.full.note(now, self.last);
        self.full.old(now)
    }
}

/// What was read by when, as far back as matters.
struct Marks {
    age: Duration,
    marks: VecDeque<(Instant, u64)>,
}

impl Marks {
    fn new(age: Duration) -> Self {
        Self { age, marks: VecDeque::new() }
    }

    fn note(&mut self, now: Instant, last: u64) {
        self.marks.push_back((now, last));
        while self.marks.get(1).is_some_and(|(when, _)| *when + self.age <= now) {
            self.marks.pop_front();
        }
    }

    /// What was read so long ago.
    fn old(&self, now: Instant) -> Option<u64> {
        self.marks.front().filter(|(when, _)| *when + self.age <= now).map(|(_, last)| *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WAIT: Duration = Duration::from_millis(40);

    fn progress(last: u64) -> (Progress, Instant) {
        (Progress::new(Epoch(1), last, SECOND, WAIT), Instant::now())
    }

    #[test]
    fn a_look_tells_what_was_read_a_whole_patience_ago() {
        let (mut progress, start) = progress(5);
        assert_eq!(progress.look(start), None);
        progress.last = 9;
        assert_eq!(progress.look(start + SECOND / 2), None);
        assert_eq!(progress.look(start + SECOND), Some(5));
        assert_eq!(progress.look(start + SECOND * 3 / 2), Some(9));
        assert!(progress.read.marks.len() <= 3, "no older marks are kept");
    }

    #[test]
    fn a_glance_tells_what_was_read_before_it_was_full_for_a_while() {
        let (mut progress, start) = progress(5);
        let stall_limit = WAIT * 2;
        assert_eq!(progress.stall_check(start, true), None);
        progress.last = 7;
        assert_eq!(progress.stall_check(start + stall_limit / 2, true), None);
        assert_eq!(progress.stall_check(start + stall_limit, true), Some(5));
        assert_eq!(progress.stall_check(start + stall_limit * 3 / 2, true), Some(7));
        assert_eq!(progress.stall_check(start + stall_limit * 2, false), None, "more can be read");
        assert_eq!(progress.stall_check(start + stall_limit * 2, true), None, "it counts anew");
    }

    #[test]
    fn nobody_is_hurried_more_than_patience_says() {
        let mut progress = Progress::new(Epoch(1), 5, SECOND / 10, SECOND);
        let start = Instant::now();
        assert_eq!(progress.stall_check(start, true), None);
        assert_eq!(progress.stall_check(start + SECOND / 10, true), Some(5));
    }
}
