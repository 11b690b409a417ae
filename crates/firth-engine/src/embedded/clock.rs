//! The engine's clock: wall time when the engine was opened, monotonic from there, moved on when
//! the wall clock has leapt.
//!
//! It never goes back, not even over a restart: opening starts it after everything that is stored.
//!
//! **Why it follows leaps.** The monotonic clock stands still while the machine sleeps, so what was
//! to come at a certain time would come late by the sleep. And a machine that starts without the
//! right time gets it a moment later. A leap back is not followed: times that were given out stay
//! in the past.

use super::step::Now;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as RealInstant, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// How far the wall clock may be ahead before it counts as a leap, in µs.
const LEAP: u64 = 1_000_000;
/// Tokio's clock is paused if it differs from the real one by more than this: then the wall clock
/// says nothing.
const PAUSED: Duration = Duration::from_millis(20);

pub(super) struct Clock {
    base_us: AtomicU64,
    start: Instant,
    real_start: RealInstant,
}

impl Clock {
    /// A clock that starts now, or right after `newest_us` if that is later.
    pub(super) fn start_after(newest_us: u64) -> Self {
        let base_us = AtomicU64::new(wall_us().max(newest_us + 1));
        Self { base_us, start: Instant::now(), real_start: RealInstant::now() }
    }

    /// The time now. Reads tokio's clock, so call it from the caller's task.
    pub(super) fn now(&self) -> Now {
        let (passed, really) = (self.start.elapsed(), self.real_start.elapsed());
        let wall = if passed.abs_diff(really) > PAUSED { 0 } else { wall_us() };
        Now { us: self.at(passed, wall) }
    }

    /// The time after `passed` since the start, when the wall clock shows `wall`.
    fn at(&self, passed: Duration, wall: u64) -> u64 {
        let passed = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        let us = self.base_us.load(Ordering::Acquire) + passed;
        if wall <= us.saturating_add(LEAP) {
            return us;
        }
        let base = wall - passed.min(wall);
        let former = self.base_us.fetch_max(base, Ordering::AcqRel);
        tracing::warn!(
            ms = (wall - us) / 1000,
            "the clock has leapt: the machine slept, or its time was corrected"
        );
        former.max(base) + passed
    }
}

fn wall_us() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    #[test]
    fn q21_a_sleep_and_a_corrected_clock_are_made_up_for() {
        let clock = Clock::start_after(0);
        let start = clock.at(Duration::ZERO, 0);
        let after = |seconds, wall| clock.at(Duration::from_secs(seconds), wall) - start;
        assert_eq!(after(10, start + 10_000_000), 10_000_000);
        assert_eq!(after(11, start + 11_900_000), 11_000_000, "a clock that is a little off is left alone");
        assert_eq!(after(12, start + 8 * HOUR), 8 * HOUR, "it slept for eight hours");
        assert_eq!(after(13, start + 8 * HOUR + 1_000_000), 8 * HOUR + 1_000_000);
        assert_eq!(after(14, start), 8 * HOUR + 2_000_000, "it never goes back");
        assert_eq!(after(15, start + 20 * HOUR), 20 * HOUR, "and was corrected");
        assert_eq!(after(16, 0), 20 * HOUR + 1_000_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_follows_no_wall_clock() {
        let clock = Clock::start_after(0);
        let start = clock.now().us;
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(clock.now().us - start, 60_000_000);
    }
}
