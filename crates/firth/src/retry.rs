//! [`RetryPolicy`]: when to try again and when to give up. Pure.

use crate::consumer::{Nack, Then};
use firth_engine::limits::MAX_DELAY;
use firth_engine::{Backoff, Record, Verdict};
use std::time::Duration;

/// A retry that is this far away is copied aside, so that it does not hold back retention.
const KEEP_ASIDE: Duration = Duration::from_secs(60);

/// How often and how fast a failed record is tried again before it becomes a dead letter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, the first delivery included; at least 1.
    pub max_attempts: u32,
    /// How long to wait between them. Records of a partition that fail within one commit share
    /// their draw of jitter and are tried again together; others are spread.
    pub backoff: Backoff,
    /// How many owners may vanish with the record in their hands before it is given up: such a
    /// record may be what kills them.
    pub max_crashes: u32,
}

impl Default for RetryPolicy {
    /// Five attempts, 1 s doubling up to 60 s with jitter, five crashes.
    fn default() -> Self {
        Self { max_attempts: 5, backoff: Backoff::default(), max_crashes: 5 }
    }
}

impl RetryPolicy {
    /// No second attempt: a failed record is a dead letter at once.
    pub fn never() -> Self {
        Self { max_attempts: 1, ..Self::default() }
    }

    /// `attempts` in all, always `delay` apart.
    pub fn fixed(attempts: u32, delay: Duration) -> Self {
        Self { max_attempts: attempts, backoff: Backoff::fixed(delay), ..Self::default() }
    }

    /// The verdict on a failed delivery. With `in_order` the record must stay in the log, because
    /// later ones wait for it. `jitter` (0 to 1) is the draw for the jitter.
    pub(crate) fn judge(&self, record: &Record, nack: Nack, in_order: bool, jitter: f64) -> Verdict {
        let Then::Retry(wanted) = nack.then else {
            return Verdict::Dead { reason: nack.reason, note: nack.note };
        };
        if record.attempt >= self.max_attempts.max(1) {
            return Verdict::Dead { reason: nack.reason, note: nack.note };
        }
        let after = wanted.unwrap_or_else(|| self.backoff.delay_with(record.attempt, jitter)).min(MAX_DELAY);
        Verdict::Retry { after, reason: nack.reason, keep: !in_order && after > KEEP_ASIDE }
    }

    /// Whether records are handed out one at a time after `crashes` owners vanished, to find the
    /// one that takes them down. There is no point in it if no record is ever given up for that.
    pub(crate) fn isolates(&self, crashes: u32) -> bool {
        self.max_crashes > 0 && crashes > 0
    }

    /// Why a record must not be tried again, if too many owners vanished with it.
    pub(crate) fn poison_reason(&self, crashes: u32) -> Option<String> {
        (self.max_crashes > 0 && crashes >= self.max_crashes)
            .then(|| format!("{crashes} consumers in a row vanished while they had it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::{Content, RecordId};

    fn record(attempt: u32) -> Record {
        Record { id: RecordId::new(1, 1), attempt, crashes: 0, content: Content::new("x") }
    }

    #[test]
    fn the_last_attempt_ends_in_a_dead_letter() {
        let policy = RetryPolicy::fixed(3, Duration::from_secs(2));
        let retry = |attempt| policy.judge(&record(attempt), Nack::retry("no"), false, 0.5);
        let again = Verdict::Retry { after: Duration::from_secs(2), reason: "no".into(), keep: false };
        assert_eq!((retry(1), retry(2)), (again.clone(), again));
        assert_eq!(retry(3), Verdict::dead("no"));
        assert_eq!(policy.judge(&record(1), Nack::reject("no"), false, 0.5), Verdict::dead("no"));
    }

    #[test]
    fn a_far_retry_is_kept_aside_unless_order_needs_it_in_place() {
        let policy = RetryPolicy::default();
        let hour = Nack::retry_after(Duration::from_secs(3600), "no");
        let kept = |in_order| {
            matches!(policy.judge(&record(1), hour.clone(), in_order, 0.5), Verdict::Retry { keep: true, .. })
        };
        assert_eq!((kept(false), kept(true)), (true, false));
    }

    #[test]
    fn a_record_that_kills_its_owners_is_given_up() {
        let policy = RetryPolicy { max_crashes: 2, ..RetryPolicy::default() };
        assert_eq!((policy.poison_reason(1).is_some(), policy.poison_reason(2).is_some()), (false, true));
        assert!(policy.isolates(1) && !policy.isolates(0));
        let trusting = RetryPolicy { max_crashes: 0, ..policy };
        assert!(trusting.poison_reason(99).is_none() && !trusting.isolates(99));
    }
}
