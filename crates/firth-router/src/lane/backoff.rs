//! Waits of a lane before it tries again. Pure.

use crate::config::{Breaker, Retry};
use firth::Backoff;
use std::time::Duration;

/// Wait before the next attempt after `refusals`, shortened by up to a half at `jitter` 1.
pub(super) fn retry_delay(retry: &Retry, refusals: u32, jitter: f64) -> Duration {
    let Retry { initial_delay: first, max_delay: max, multiplier: factor, .. } = *retry;
    let backoff = Backoff { first, max, factor, jitter: 0.5 };
    backoff.delay_with(refusals, 0.5 - jitter.clamp(0.0, 1.0) / 2.0)
}

/// How long a gateway is left alone. The first ejection lasts ten times the first wait, a second by
/// default; each further one lasts twice as long.
pub(super) fn ejection_backoff(retry: &Retry, breaker: &Breaker) -> Backoff {
    Backoff::exponential(retry.initial_delay.saturating_mul(10), breaker.open_for).with_jitter(0.0)
}
