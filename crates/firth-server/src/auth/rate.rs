//! How often a caller may ask: a bucket of tokens per caller that fills at a rate. Time is a
//! parameter.
//!
//! At most [`MAX_BUCKETS`] callers are told apart. Full buckets say nothing, so they are forgotten
//! first; if that is not enough, newcomers share one bucket.

pub(crate) use firth_edge::Pace;
use firth_edge::TokenBucket;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const MAX_BUCKETS: usize = 10_000;

/// Buckets by caller.
pub(crate) struct Buckets<K>(Mutex<Pool<K>>);

struct Pool<K> {
    known: HashMap<K, TokenBucket>,
    others: Option<TokenBucket>,
}

impl<K: Eq + Hash> Buckets<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Pool { known: HashMap::new(), others: None }))
    }

    /// Takes one from the caller's bucket, or says how long until there is one.
    pub(crate) fn take(&self, caller: K, pace: Pace, now: Instant) -> Result<(), Duration> {
        let mut pool = self.0.lock().expect("nothing panics under this lock");
        let full = TokenBucket::full(pace, now);
        if pool.known.len() >= MAX_BUCKETS && !pool.known.contains_key(&caller) {
            pool.known.retain(|_, bucket| !bucket.is_full(pace, now));
        }
        let bucket = match pool.known.len() >= MAX_BUCKETS && !pool.known.contains_key(&caller) {
            true => pool.others.get_or_insert(full),
            false => pool.known.entry(caller).or_insert(full),
        };
        bucket.take(pace, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Pace = Pace { rate: 2.0, burst: 3.0 };
    const SLOW: Pace = Pace { rate: 1.0, burst: 2.0 };

    #[test]
    fn a_burst_passes_and_then_the_rate_counts() {
        let buckets = Buckets::new();
        let start = Instant::now();
        for _ in 0..3 {
            assert!(buckets.take("a", FAST, start).is_ok());
        }
        assert_eq!(buckets.take("a", FAST, start), Err(Duration::from_millis(500)));
        assert!(buckets.take("b", FAST, start).is_ok());
        let later = start + Duration::from_millis(500);
        assert!(buckets.take("a", FAST, later).is_ok());
        assert!(buckets.take("a", FAST, later).is_err());
    }

    #[test]
    fn strangers_beyond_the_bound_share_one_bucket() {
        let buckets = Buckets::new();
        let now = Instant::now();
        for caller in 0..MAX_BUCKETS {
            assert!(buckets.take(caller, SLOW, now).is_ok());
        }
        for _ in 0..2 {
            assert!(buckets.take(MAX_BUCKETS + 1, SLOW, now).is_ok());
        }
        assert!(buckets.take(MAX_BUCKETS + 2, SLOW, now).is_err());
        let rested = now + Duration::from_secs(5);
        assert!(buckets.take(MAX_BUCKETS + 2, SLOW, rested).is_ok());
    }
}
