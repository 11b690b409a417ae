//! How far a partition was read, and when: what tells who has held something for how long. Pure.

use firth::Epoch;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// How often is looked whether somebody holds up all others. Only while a partition has as much open as it may.
pub(super) const GLANCE: Duration = Duration::from_millis(10);
/// How long somebody may hold up all others, at least.
const HURRY: Duration = Duration::from_millis(50);

/// The reading of a partition under one ownership.
pub(super) struct Progress {
    pub(super) epoch: Epoch,
    pub(super) last: u64,
    /// Noted at every look, for whoever holds something for longer than it may.
    read: Marks,
    /// Noted at every glance while nothing more can be read, for whoever is waited for by others that have nothing to do.
    full: Marks,
}

impl Progress {
    /// Of an ownership that begins; `patience` and the time that events may wait for a batch are the configured ones.
    pub(super) fn new(epoch: Epoch, last: u64, patience: Duration, max_wait: Duration) -> Self {
        // Waiting for a batch is no sign of being slow.
        let hurry = HURRY.max(max_wait * 2).min(patience);
        Self { epoch, last, read: Marks::new(patience), full: Marks::new(hurry) }
    }

    /// Notes, at a look, how far it is; answers what was read so long ago that nobody may still hold it.
    pub(super) fn look(&mut self, now: Instant) -> Option<u64> {
        self.read.note(now, self.last);
        self.read.old(now)
    }

    /// Notes, at a glance, whether anything more can be read; answers what was read so long ago that nobody may still hold it while others wait.
    pub(super) fn glance(&mut self, now: Instant, is_full: bool) -> Option<u64> {
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
        let hurry = WAIT * 2;
        assert_eq!(progress.glance(start, true), None);
        progress.last = 7;
        assert_eq!(progress.glance(start + hurry / 2, true), None);
        assert_eq!(progress.glance(start + hurry, true), Some(5));
        assert_eq!(progress.glance(start + hurry * 3 / 2, true), Some(7));
        assert_eq!(progress.glance(start + hurry * 2, false), None, "more can be read");
        assert_eq!(progress.glance(start + hurry * 2, true), None, "it counts anew");
    }

    #[test]
    fn nobody_is_hurried_more_than_patience_says() {
        let mut progress = Progress::new(Epoch(1), 5, SECOND / 10, SECOND);
        let start = Instant::now();
        assert_eq!(progress.glance(start, true), None);
        assert_eq!(progress.glance(start + SECOND / 10, true), Some(5));
    }
}
