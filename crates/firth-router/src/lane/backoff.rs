//! How long a lane waits before it tries again. Pure.

use crate::config::Retry;
use std::time::Duration;

/// How long a gateway is left alone when it is ejected for the first time: ten times the first
/// wait, a second by default.
pub(super) fn first_ejection(retry: &Retry) -> Duration {
    retry.initial_delay.saturating_mul(10)
}

/// The wait before the next attempt: growing, capped, and shortened by up to a half at random.
pub(super) fn backoff(retry: &Retry, refusals: u32, jitter: f64) -> Duration {
    let exponent = i32::try_from(refusals.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = retry.initial_delay.as_secs_f64() * retry.multiplier.powi(exponent);
    let capped = grown.min(retry.max_delay.as_secs_f64());
    Duration::from_secs_f64(capped * (1.0 - jitter.clamp(0.0, 1.0) / 2.0))
}
