//! The engine's clock: wall time when the engine was opened, monotonic from there. It never goes back, not even over a
//! restart: opening starts it after everything that is stored.

use super::step::Now;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

pub(super) struct Clock {
    base_us: u64,
    start: Instant,
}

impl Clock {
    /// A clock that starts now, or right after `newest_us` if that is later.
    pub(super) fn start_after(newest_us: u64) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Self { base_us: wall_us.max(newest_us + 1), start: Instant::now() }
    }

    /// The time now. Reads tokio's clock, so call it from the caller's task.
    pub(super) fn now(&self) -> Now {
        let passed = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Now { us: self.base_us + passed }
    }
}
