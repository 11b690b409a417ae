//! When a lane waits at the end of the log instead of for a hint. Pure.
//!
//! A hint costs the reader nothing until it comes, but the record must then be fetched; a waiting
//! read brings it at once, and holds a connection. So a lane waits while records trickle in, and
//! rests with its hint when they stop. What a hint would say of the log, the waiting read says;
//! should it be stuck, it ends with its own limit of time, and the lane looks for itself.

use std::time::Duration;
use tokio::time::Instant;

/// A lane waits for the next record this long after the last one.
const TRICKLE: Duration = Duration::from_secs(1);
/// After a wait that was refused or failed, the lane keeps to its hint this long.
const COOLDOWN: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct LogTail {
    last_record: Option<Instant>,
    not_before: Option<Instant>,
    /// A wait ended, and the lane has not looked at the log since.
    has_ended: bool,
}

impl LogTail {
    /// Whether to wait for the next record.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        self.last_record.is_some_and(|last| now < last + TRICKLE)
            && self.not_before.is_none_or(|time| now >= time)
    }

    /// Whether something may have come since a wait that is over.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// A look at the log begins.
    pub(super) fn begin(&mut self) {
        self.has_ended = false;
    }

    /// A look at the log found something.
    pub(super) fn came(&mut self, now: Instant) {
        self.last_record = Some(now);
    }

    /// A wait is over; `could` says whether the engine was able to.
    pub(super) fn end(&mut self, could: bool, now: Instant) {
        self.has_ended = true;
        if !could {
            self.not_before = Some(now + COOLDOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_waits_while_records_trickle_in() {
        let mut tail = LogTail::default();
        let now = Instant::now();
        assert!(!tail.is_wanted(now), "nothing came yet");
        tail.came(now);
        assert!(tail.is_wanted(now));
        assert!(!tail.is_wanted(now + TRICKLE), "the trickle has stopped");
    }

    #[test]
    fn after_a_refusal_the_hint_serves_for_a_while() {
        let mut tail = LogTail::default();
        let now = Instant::now();
        tail.came(now);
        tail.end(false, now);
        assert!(!tail.is_wanted(now) && tail.has_ended(), "somebody must look in the common way");
        tail.came(now + COOLDOWN);
        assert!(tail.is_wanted(now + COOLDOWN));
    }
}
