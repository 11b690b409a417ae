//! Detects holders that no longer renew although they are valid by the engine's clock (that clock
//! may have gone back). Pure.
//!
//! Every renewal changes the holder's beats. An observer that sees the same beats for one and a
//! half times the holder's TTL, on its own monotonic clock, counts the holder as stalled. Fencing
//! keeps a takeover safe even if the holder is alive. Consumer groups watch leases, claims watch
//! members.

use firth_engine::Epoch;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// Beats of holders and when they changed last. Bounded by the holders that
/// [`retain`](Self::retain) keeps.
pub(crate) struct FailureDetector<K> {
    seen: HashMap<K, LastBeat>,
}

struct LastBeat {
    beats: (Epoch, u64),
    since: Instant,
}

impl<K> Default for FailureDetector<K> {
    fn default() -> Self {
        Self { seen: HashMap::new() }
    }
}

impl<K: Eq + Hash> FailureDetector<K> {
    /// Notes the beats of a holder under its epoch; true if the holder is stalled.
    pub(crate) fn is_stalled(&mut self, holder: K, beats: (Epoch, u64), ttl: Duration, now: Instant) -> bool {
        let seen = self.seen.entry(holder).or_insert(LastBeat { beats, since: now });
        if seen.beats != beats {
            *seen = LastBeat { beats, since: now };
        }
        !ttl.is_zero() && now.duration_since(seen.since) > ttl + ttl / 2
    }

    /// Forgets holders that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        self.seen.retain(|holder, _| is_there(holder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_whose_beats_stand_still_for_one_and_a_half_ttl_is_stalled() {
        let start = Instant::now();
        let mut detector = FailureDetector::default();
        let mut look = |beats, ms| {
            let now = start + Duration::from_millis(ms);
            detector.is_stalled("a", (Epoch(1), beats), Duration::from_secs(1), now)
        };
        assert!(!look(1, 0));
        assert!(!look(1, 1500));
        assert!(look(1, 1600));
        assert!(!look(2, 1700), "it beats again");
        assert!(look(2, 3300));
    }

    #[test]
    fn a_new_epoch_or_a_holder_without_ttl_is_not_stalled() {
        let start = Instant::now();
        let late = start + Duration::from_secs(60);
        let second = Duration::from_secs(1);
        let mut detector = FailureDetector::default();
        assert!(!detector.is_stalled("a", (Epoch(1), 5), second, start));
        assert!(!detector.is_stalled("a", (Epoch(2), 5), second, late));
        assert!(!detector.is_stalled("b", (Epoch(1), 5), Duration::ZERO, start));
        assert!(!detector.is_stalled("b", (Epoch(1), 5), Duration::ZERO, late));
    }

    #[test]
    fn a_forgotten_holder_begins_anew() {
        let start = Instant::now();
        let late = start + Duration::from_secs(60);
        let mut detector = FailureDetector::default();
        assert!(!detector.is_stalled("a", (Epoch(1), 5), Duration::from_secs(1), start));
        detector.retain(|_| false);
        assert!(!detector.is_stalled("a", (Epoch(1), 5), Duration::from_secs(1), late));
    }
}
