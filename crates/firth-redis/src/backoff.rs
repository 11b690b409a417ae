//! Delay before the next attempt: a few immediate attempts, then exponential delays with jitter up
//! to a cap. Pure. The connection task and everything above that retries use this one policy.

use std::time::Duration;

/// A retry schedule. Values out of range are brought into range by [`Backoff::sanitised`], never
/// refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    /// Tries that follow each other without a delay.
    pub immediate: u32,
    /// The first real delay.
    pub first: Duration,
    /// No delay is longer than this, jitter included.
    pub max: Duration,
    /// Each delay is this many times the one before.
    pub factor: f64,
    /// Each delay is changed by up to this share, up or down (0.2 = ±20 %).
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            immediate: 5,
            first: Duration::from_millis(100),
            max: Duration::from_secs(30),
            factor: 2.0,
            jitter: 0.2,
        }
    }
}

impl Backoff {
    /// A schedule that always waits the same time.
    pub fn fixed(delay: Duration) -> Self {
        Self { immediate: 0, first: delay, max: delay, factor: 1.0, jitter: 0.0 }
    }

    /// The same schedule with every value in its range: `first ≥ 1 ms`, `max ≥ first`, `factor` in
    /// 1…100, `jitter` in 0…1.
    pub fn sanitised(mut self) -> Self {
        self.first = self.first.max(Duration::from_millis(1));
        self.max = self.max.max(self.first);
        self.factor = if self.factor.is_finite() { self.factor.clamp(1.0, 100.0) } else { 2.0 };
        self.jitter = if self.jitter.is_finite() { self.jitter.clamp(0.0, 1.0) } else { 0.2 };
        self
    }

    /// The delay before try number `attempt` (0 is the first retry).
    pub fn delay(&self, attempt: u32) -> Duration {
        self.delay_with(attempt, fastrand::f64())
    }

    /// As [`delay`](Self::delay), with the random number (0…1) given, so that tests are exact.
    pub fn delay_with(&self, attempt: u32, random: f64) -> Duration {
        if attempt < self.immediate {
            return Duration::ZERO;
        }
        let steps = i32::try_from(attempt - self.immediate).unwrap_or(i32::MAX);
        let max = self.max.as_secs_f64();
        let grown = (self.first.as_secs_f64() * self.factor.powi(steps)).min(max);
        let swing = 1.0 + self.jitter * (2.0 * random - 1.0);
        Duration::from_secs_f64((grown * swing).clamp(0.0, max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_after_the_immediate_tries() {
        let b = Backoff { immediate: 2, jitter: 0.0, ..Backoff::default() };
        let ms: Vec<u128> = (0..13).map(|n| b.delay_with(n, 0.5).as_millis()).collect();
        assert_eq!(ms, [0, 0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        assert_eq!(b.delay_with(u32::MAX, 0.5), b.max);
    }

    #[test]
    fn jitter_stays_within_its_share_and_the_cap() {
        let b = Backoff { immediate: 0, ..Backoff::default() };
        assert_eq!(b.delay_with(0, 0.0).as_millis(), 80);
        assert_eq!(b.delay_with(0, 1.0).as_millis(), 120);
        assert_eq!(b.delay_with(40, 1.0), b.max);
        assert_eq!(b.delay_with(40, 0.0), b.max.mul_f64(0.8), "delays at the cap differ, too");
    }

    #[test]
    fn nonsense_is_brought_into_range() {
        let b = Backoff {
            immediate: 0,
            first: Duration::ZERO,
            max: Duration::ZERO,
            factor: f64::NAN,
            jitter: 9.0,
        };
        let b = b.sanitised();
        assert_eq!((b.first.as_millis(), b.max.as_millis(), b.factor, b.jitter), (1, 1, 2.0, 1.0));
    }
}
