//! The breaker of one gateway.
//!
//! ```text
//! closed ──failures in a row──► open ──open_for──► half open ──success──► closed
//!    ▲                           ▲                     └──failure──► open
//! ```
//! A gateway whose breaker is open or half open is *ejected*, and holds a seat of the few that there are. Without a free seat the breaker stays
//! closed, and rests after each failure for a time that grows.

use super::ejection::{Ejections, Seat};
use crate::config;
use std::time::Duration;
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
    ejections: Ejections,
    seat: Option<Seat>,
    rest_until: Option<Instant>,
}

impl Breaker {
    pub(super) fn new(config: config::Breaker, ejections: Ejections) -> Self {
        Self { config, state: Circuit::Closed, failures: 0, ejections, seat: None, rest_until: None }
    }

    /// Whether a batch may go out now. In the half-open state only one may.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if let Circuit::Open { until } = self.state
            && until <= now
        {
            self.state = Circuit::HalfOpen { probing: false };
        }
        let is_resting = self.rest_until.is_some_and(|until| until > now);
        !is_resting && !matches!(self.state, Circuit::Open { .. } | Circuit::HalfOpen { probing: true })
    }

    pub(super) fn sent(&mut self) {
        if let Circuit::HalfOpen { probing } = &mut self.state {
            *probing = true;
        }
    }

    /// The gateway answered, whatever it said.
    pub(super) fn reached(&mut self) {
        (self.failures, self.state) = (0, Circuit::Closed);
        (self.seat, self.rest_until) = (None, None);
    }

    /// The gateway was not reached. `rest` is how long to wait after so many failures in a row, if it may not be ejected.
    pub(super) fn unreached(&mut self, now: Instant, rest: impl FnOnce(u32) -> Duration) {
        self.failures = self.failures.saturating_add(1);
        if self.failures < self.config.failures && self.seat.is_none() {
            return;
        }
        self.seat = self.seat.take().or_else(|| self.ejections.take());
        match self.seat {
            Some(_) => {
                self.state = Circuit::Open { until: now + self.config.open_for };
                self.rest_until = None;
            }
            None => {
                let times = 1 + self.failures.saturating_sub(self.config.failures);
                self.rest_until = Some(now + rest(times));
            }
        }
    }

    /// When it is worth asking again.
    pub(super) fn wake(&self) -> Option<Instant> {
        match self.state {
            Circuit::Open { until } => Some(until),
            _ => self.rest_until,
        }
    }

    pub(super) fn state(&self) -> Circuit {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn breaker(ejections: &Ejections) -> Breaker {
        let config = config::Breaker { failures: 3, open_for: SECOND * 30, max_ejected: 10 };
        Breaker::new(config, ejections.clone())
    }

    fn no_rest(_: u32) -> Duration {
        unreachable!("there is a seat")
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let (mut breaker, start) = (breaker(&Ejections::default()), Instant::now());
        breaker.unreached(start, no_rest);
        breaker.unreached(start, no_rest);
        breaker.reached();
        (0..3).for_each(|_| {
            assert!(breaker.allows(start));
            breaker.unreached(start, no_rest);
        });
        assert!(!breaker.allows(start + SECOND * 29));
        let later = start + SECOND * 30;
        assert!(breaker.allows(later));
        breaker.sent();
        assert!(!breaker.allows(later), "only one probe");
        breaker.unreached(later, no_rest);
        assert_eq!(breaker.wake(), Some(later + SECOND * 30));
        assert!(breaker.allows(later + SECOND * 30));
        breaker.sent();
        breaker.reached();
        assert_eq!(breaker.state(), Circuit::Closed);
        assert!(breaker.allows(later));
    }

    #[test]
    fn without_a_seat_it_stays_closed_and_rests() {
        let (ejections, now) = (Ejections::default(), Instant::now());
        let (mut first, mut second) = (breaker(&ejections), breaker(&ejections));
        (0..3).for_each(|_| first.unreached(now, no_rest));
        (0..3).for_each(|_| second.unreached(now, |times| SECOND * times));
        assert_eq!((second.state(), second.wake()), (Circuit::Closed, Some(now + SECOND)));
        assert!(!second.allows(now) && second.allows(now + SECOND));
        second.unreached(now, |times| SECOND * times);
        assert_eq!(second.wake(), Some(now + SECOND * 2), "the rest grows");
        first.reached();
        second.unreached(now, no_rest);
        assert!(matches!(second.state(), Circuit::Open { .. }), "the seat is free again");
        drop(second);
        assert_eq!(ejections.count(), (0, 1));
    }

    proptest! {
        /// At every moment at most a tenth of the gateways is ejected, but one may always be; and whoever failed often enough is ejected
        /// if there is a seat.
        #[test]
        fn at_most_a_tenth_is_ejected(
            gateways in 1_usize..45,
            steps in proptest::collection::vec((any::<proptest::sample::Index>(), 0_u8..8), 1..300),
        ) {
            let (ejections, mut now) = (Ejections::default(), Instant::now());
            ejections.resize(gateways, 10);
            let limit = (gateways / 10).max(1);
            let mut breakers: Vec<_> = (0..gateways).map(|_| breaker(&ejections)).collect();
            for (whose, what) in steps {
                let one = whose.get_mut(&mut breakers);
                match what {
                    0 => one.reached(),
                    1 => *one = breaker(&ejections),
                    2 => now += SECOND * 10,
                    _ if one.allows(now) => {
                        one.sent();
                        one.unreached(now, |_| SECOND);
                        let is_ejected = one.state() != Circuit::Closed;
                        let (failures, free) = (one.failures, ejections.count().0 < limit);
                        prop_assert!(is_ejected || failures < 3 || !free);
                    }
                    _ => {}
                }
                let ejected = breakers.iter().filter(|one| one.state() != Circuit::Closed).count();
                prop_assert!(ejected <= limit, "{} of {}", ejected, gateways);
                prop_assert_eq!(ejections.count(), (ejected, limit));
            }
        }
    }
}
