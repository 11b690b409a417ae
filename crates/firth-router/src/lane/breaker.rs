//! The breaker of one gateway.
//!
//! ```text
//! closed ──failures in a row──► open ──open_for──► half open ──success──► closed
//!    ▲                           ▲                     └──failure──► open
//! ```
//! A gateway whose breaker is open or half open is *ejected*, and holds a slot of the few that
//! there are. Without a free slot the breaker stays closed. After each failure but the first it
//! rests for a time that grows; batches that fail during the rest were on their way together, and
//! count as one.
//!
//! The first ejection is short, each further one lasts twice as long, up to the configured time: a
//! gateway that only restarted is soon found again. A sign of life from the gateway lets a probe
//! out at once.

use super::ejection::{EjectionPermit, Ejections};
use firth::Backoff;
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
    /// Failures in a row that open it.
    limit: u32,
    /// How long each ejection lasts.
    backoff: Backoff,
    state: Circuit,
    failures: u32,
    /// How often it opened without reaching the gateway in between.
    openings: u32,
    ejections: Ejections,
    permit: Option<EjectionPermit>,
    rest_until: Option<Instant>,
}

impl Breaker {
    pub(super) fn new(limit: u32, backoff: Backoff, ejections: Ejections) -> Self {
        Self {
            limit,
            backoff,
            state: Circuit::Closed,
            failures: 0,
            openings: 0,
            ejections,
            permit: None,
            rest_until: None,
        }
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

    /// Closes the circuit: the gateway answered. The content of the answer does not matter.
    pub(super) fn reached(&mut self) {
        self.failures = 0;
        self.openings = 0;
        self.state = Circuit::Closed;
        self.permit = None;
        self.rest_until = None;
    }

    /// The gateway gave a sign of life: a batch may go out at once.
    pub(super) fn sign_of_life(&mut self) {
        if let Circuit::Open { .. } = self.state {
            self.state = Circuit::HalfOpen { probing: false };
        }
        self.rest_until = None;
    }

    /// The gateway was not reached. `rest` is how long to wait after a number of failures in a row.
    pub(super) fn unreached(&mut self, now: Instant, rest: impl FnOnce(u32) -> Duration) {
        let is_resting = self.rest_until.is_some_and(|until| until > now);
        if is_resting || matches!(self.state, Circuit::Open { .. }) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.limit || self.permit.is_some() {
            self.permit = self.permit.take().or_else(|| self.ejections.take());
        }
        if self.permit.is_some() {
            self.openings = self.openings.saturating_add(1);
            self.state = Circuit::Open { until: now + self.backoff.delay(self.openings) };
            self.rest_until = None;
        } else if self.failures > 1 {
            self.rest_until = Some(now + rest(self.failures - 1));
        }
    }

    /// Whether nothing, or only a probe, goes out now.
    pub(super) fn holds_back(&self) -> bool {
        self.state != Circuit::Closed || self.rest_until.is_some()
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
        let backoff = Backoff::exponential(SECOND, SECOND * 30).with_jitter(0.0);
        Breaker::new(3, backoff, ejections.clone())
    }

    /// Fails so often, each time when it may send again; answers when that was.
    fn fail(breaker: &mut Breaker, times: u32, start: Instant) -> Instant {
        (0..times).fold(start, |mut now, _| {
            while !breaker.allows(now) {
                now = breaker.wake().expect("it will be allowed again");
            }
            breaker.sent();
            breaker.unreached(now, |times| SECOND * times / 10);
            now
        })
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let mut breaker = breaker(&Ejections::default());
        let start = Instant::now();
        let later = fail(&mut breaker, 2, start);
        breaker.reached();
        let opened = fail(&mut breaker, 3, later);
        assert!(!breaker.allows(opened + SECOND / 2));
        let probed = opened + SECOND;
        assert!(breaker.allows(probed));
        breaker.sent();
        assert!(!breaker.allows(probed), "only one probe");
        breaker.unreached(probed, |_| SECOND);
        assert_eq!(breaker.wake(), Some(probed + SECOND * 2), "it grows");
        let later = fail(&mut breaker, 6, probed);
        assert_eq!(breaker.wake(), Some(later + SECOND * 30), "up to the configured time");
        assert!(breaker.allows(later + SECOND * 30));
        breaker.sent();
        breaker.reached();
        assert_eq!(breaker.state(), Circuit::Closed);
        assert!(breaker.allows(later));
    }

    #[test]
    fn r04_batches_that_fail_together_count_once_and_a_sign_of_life_lets_a_probe_out() {
        let mut breaker = breaker(&Ejections::default());
        let now = Instant::now();
        (0..20).for_each(|_| breaker.unreached(now, |times| SECOND * times));
        assert_eq!(breaker.state(), Circuit::Closed, "one lost connection is no ejection");
        let opened = fail(&mut breaker, 3, now);
        assert!(!breaker.allows(opened));
        breaker.sign_of_life();
        assert!(breaker.allows(opened), "at once");
        breaker.sent();
        assert!(!breaker.allows(opened), "one");
    }

    #[test]
    fn without_a_seat_it_stays_closed_and_rests() {
        let ejections = Ejections::default();
        let now = Instant::now();
        let mut first = breaker(&ejections);
        let mut second = breaker(&ejections);
        fail(&mut first, 3, now);
        let now = fail(&mut second, 3, now);
        assert_eq!((second.state(), second.wake()), (Circuit::Closed, Some(now + SECOND / 5)));
        assert!(!second.allows(now) && second.allows(now + SECOND / 5));
        let now = fail(&mut second, 1, now);
        assert_eq!(second.wake(), Some(now + SECOND * 3 / 10), "the rest grows");
        first.reached();
        fail(&mut second, 1, now);
        assert!(matches!(second.state(), Circuit::Open { .. }), "the slot is free again");
        drop(second);
        assert_eq!(ejections.count(), (0, 1));
    }

    proptest! {
        /// At every moment at most a tenth of the gateways is ejected, but one gateway may always
        /// be. A gateway that failed often enough is ejected if a slot is free.
        #[test]
        fn at_most_a_tenth_is_ejected(
            gateways in 1_usize..45,
            steps in proptest::collection::vec((any::<proptest::sample::Index>(), 0_u8..8), 1..300),
        ) {
            let ejections = Ejections::default();
            let mut now = Instant::now();
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
                        let failures = one.failures;
                        let free = ejections.count().0 < limit;
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
