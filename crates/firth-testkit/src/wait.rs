//! Waiting for a condition, never for a duration.
//!
//! Deadlines are measured on the real clock, so that they also hold in tests that pause tokio's.

use std::time::{Duration, Instant};

/// How long fixtures wait for servers to start, stop or agree before they give up.
pub const PATIENCE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(5);

/// Polls `condition` until it holds.
///
/// # Panics
/// When it does not hold within `limit`; the message names `what` was awaited.
pub async fn until(limit: Duration, what: impl AsRef<str>, mut condition: impl AsyncFnMut() -> bool) {
    let mut poll = Poll::new(limit);
    while !condition().await {
        poll.again_or_panic(what.as_ref()).await;
    }
}

/// Polls `attempt` until it returns a value; `None` when `limit` has passed.
pub async fn until_some<T>(limit: Duration, mut attempt: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let mut poll = Poll::new(limit);
    loop {
        if let Some(value) = attempt().await {
            return Some(value);
        }
        if !poll.again().await {
            return None;
        }
    }
}

/// The pace and the deadline of a polling loop, for loops whose future must be `Send` (async
/// closures cannot promise that).
#[derive(Debug)]
pub struct Poll {
    limit: Duration,
    deadline: Instant,
}

impl Poll {
    /// A loop that may run for this long.
    pub fn new(limit: Duration) -> Self {
        Self { limit, deadline: Instant::now() + limit }
    }

    /// Rests a moment; false when the time is up.
    pub async fn again(&mut self) -> bool {
        if Instant::now() >= self.deadline {
            return false;
        }
        tokio::time::sleep(POLL).await;
        true
    }

    /// Rests a moment.
    ///
    /// # Panics
    /// When the time is up; the message names `what` was awaited.
    pub async fn again_or_panic(&mut self, what: &str) {
        assert!(self.again().await, "gave up after {:?} waiting until {what}", self.limit);
    }
}
