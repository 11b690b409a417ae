//! The breaker of one gateway.
//!
//! ```text
//! closed ──failures in a row──► open ──open_for──► half open ──success──► closed
//!    ▲                           ▲                     └──failure──► open
//! ```

use crate::config;
use tokio::time::Instant;

/// Whether a gateway counts as reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// It is.
    Closed,
    /// It is not; nothing is sent until then.
    Open {
        /// When a probe may go out.
        until: Instant,
    },
    /// One batch is on its way as a probe, or may be.
    HalfOpen {
        /// Whether it is on its way.
        probing: bool,
    },
}

#[derive(Debug)]
pub(super) struct Breaker {
    config: config::Breaker,
    state: Circuit,
    failures: u32,
}

impl Breaker {
    pub(super) fn new(config: config::Breaker) -> Self {
        Self { config, state: Circuit::Closed, failures: 0 }
    }

    /// Whether a batch may go out now. In the half-open state only one may.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if let Circuit::Open { until } = self.state
            && until <= now
        {
            self.state = Circuit::HalfOpen { probing: false };
        }
        !matches!(self.state, Circuit::Open { .. } | Circuit::HalfOpen { probing: true })
    }

    pub(super) fn sent(&mut self) {
        if let Circuit::HalfOpen { probing } = &mut self.state {
            *probing = true;
        }
    }

    /// The gateway answered, whatever it said.
    pub(super) fn reached(&mut self) {
        (self.failures, self.state) = (0, Circuit::Closed);
    }

    pub(super) fn unreached(&mut self, now: Instant) {
        self.failures += 1;
        let was_probe = matches!(self.state, Circuit::HalfOpen { .. });
        if was_probe || self.failures >= self.config.failures {
            self.state = Circuit::Open { until: now + self.config.open_for };
        }
    }

    /// When it is worth asking again.
    pub(super) fn wake(&self) -> Option<Instant> {
        match self.state {
            Circuit::Open { until } => Some(until),
            _ => None,
        }
    }

    pub(super) fn state(&self) -> Circuit {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let config = config::Breaker { failures: 3, open_for: Duration::from_secs(30) };
        let (mut breaker, start) = (Breaker::new(config), Instant::now());
        breaker.unreached(start);
        breaker.unreached(start);
        breaker.reached();
        (0..3).for_each(|_| {
            assert!(breaker.allows(start));
            breaker.unreached(start);
        });
        assert!(!breaker.allows(start + Duration::from_secs(29)));
        let later = start + Duration::from_secs(30);
        assert!(breaker.allows(later));
        breaker.sent();
        assert!(!breaker.allows(later), "only one probe");
        breaker.unreached(later);
        assert_eq!(breaker.wake(), Some(later + Duration::from_secs(30)));
        assert!(breaker.allows(later + Duration::from_secs(30)));
        breaker.sent();
        breaker.reached();
        assert_eq!(breaker.state(), Circuit::Closed);
        assert!(breaker.allows(later));
    }
}
