//! [`Backoff`]: how long to wait before the next try. Pure. Every layer that retries on top of an
//! engine uses this one schedule.

use std::time::Duration;

/// A schedule of growing delays. Values out of range are brought into range when a delay is
/// computed, never refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// No delay is longer than this, jitter included.
    pub max: Duration,
    /// Each delay is this many times the one before, 1 to 100.
    pub factor: f64,
    /// Each delay is changed by up to this share, up or down: 0.2 is ±20 %.
    pub jitter: f64,
}

impl Default for Backoff {
    /// 1 s, doubling up to 60 s, ±20 %.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_secs(60))
    }
}

impl Backoff {
    /// Always the same delay.
    pub const fn fixed(delay: Duration) -> Self {
        Self { first: delay, max: delay, factor: 1.0, jitter: 0.0 }
    }

    /// Doubling from `first` up to `max`, ±20 %.
    pub const fn exponential(first: Duration, max: Duration) -> Self {
        Self { first, max, factor: 2.0, jitter: 0.2 }
    }

    /// The same schedule with another jitter.
    #[must_use]
    pub const fn with_jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// The delay after failure number `failures` (1 is the first).
    pub fn delay(&self, failures: u32) -> Duration {
        self.delay_with(failures, fastrand::f64())
    }

    /// As [`delay`](Self::delay), with the random number (0 to 1) given, so that tests are exact.
    pub fn delay_with(&self, failures: u32, random: f64) -> Duration {
        let finite =
            |value: f64, low, high, usual| if value.is_finite() { value.clamp(low, high) } else { usual };
        let factor = finite(self.factor, 1.0, 100.0, 2.0);
        let jitter = finite(self.jitter, 0.0, 1.0, 0.2);
        let steps = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let swing = 1.0 + jitter * (2.0 * random - 1.0);
        let max = self.max.as_secs_f64();
        let grown = (self.first.as_secs_f64() * factor.powi(steps)).min(max);
        Duration::from_secs_f64((grown * swing).clamp(0.0, max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(backoff: &Backoff, failures: u32, random: f64) -> u128 {
        backoff.delay_with(failures, random).as_millis()
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(1));
        let delays: Vec<_> = (1..=6).map(|n| ms(&backoff, n, 0.5)).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(ms(&backoff, u32::MAX, 0.5), 1000);
    }

    #[test]
    fn jitter_stays_within_its_share_and_the_cap() {
        let backoff = Backoff::default();
        assert_eq!((ms(&backoff, 1, 0.0), ms(&backoff, 1, 1.0)), (800, 1200));
        assert_eq!(ms(&backoff, 40, 1.0), 60_000);
        assert_eq!(ms(&backoff, 40, 0.0), 48_000, "waits at the cap differ, too");
    }

    #[test]
    fn a_fixed_schedule_never_changes_and_nonsense_is_harmless() {
        assert_eq!(ms(&Backoff::fixed(Duration::from_millis(7)), 9, 0.9), 7);
        let odd = Backoff { factor: f64::NAN, jitter: -3.0, ..Backoff::default() };
        assert_eq!(ms(&odd, 2, 0.0), 2000);
    }
}
