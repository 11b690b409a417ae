//! Whether the peer is alive, as pure arithmetic on milliseconds: after some silence a PING is due, and if silence
//! goes on the connection is dead. Any byte from the peer is a sign of life.

use std::time::Duration;

use super::{pipeline::NEVER, shared::millis};
use crate::config::Liveness;

/// What the silence so far asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    Ping,
    Dead(Duration),
}

#[derive(Debug)]
pub(crate) struct Pulse {
    ping_after: u64,
    dead_after: u64,
    heard: u64,
    pinged: Option<u64>,
}

impl Pulse {
    pub(crate) fn new(liveness: Option<Liveness>, now: u64) -> Self {
        let (ping_after, dead_after) =
            liveness.map_or((NEVER, NEVER), |l| (millis(l.ping_after), millis(l.dead_after)));
        Self { ping_after, dead_after, heard: now, pinged: None }
    }

    /// A byte came.
    pub(crate) fn heard(&mut self, now: u64) {
        self.heard = now;
        self.pinged = None;
    }

    /// When [`check`](Self::check) has something to say.
    pub(crate) fn due(&self) -> u64 {
        match self.pinged {
            Some(at) => at.saturating_add(self.dead_after),
            None => self.heard.saturating_add(self.ping_after),
        }
    }

    /// Looks at the clock. `patient`: a request is under way that may rightly take long, so silence says nothing.
    pub(crate) fn check(&mut self, now: u64, patient: bool) -> Verdict {
        if now < self.due() {
            return Verdict::Fine;
        }
        if patient {
            self.heard(now);
            return Verdict::Fine;
        }
        match self.pinged {
            Some(_) => Verdict::Dead(Duration::from_millis(now - self.heard)),
            None => {
                self.pinged = Some(now);
                Verdict::Ping
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse() -> Pulse {
        let liveness = Liveness { ping_after: Duration::from_secs(1), dead_after: Duration::from_secs(5) };
        Pulse::new(Some(liveness), 0)
    }

    #[test]
    fn silence_asks_for_a_ping_and_then_means_death() {
        let mut p = pulse();
        assert_eq!((p.check(999, false), p.due()), (Verdict::Fine, 1000));
        assert_eq!((p.check(1000, false), p.due()), (Verdict::Ping, 6000));
        assert_eq!(p.check(5999, false), Verdict::Fine);
        assert_eq!(p.check(6000, false), Verdict::Dead(Duration::from_secs(6)));
    }

    #[test]
    fn any_byte_is_a_sign_of_life() {
        let mut p = pulse();
        assert_eq!(p.check(1000, false), Verdict::Ping);
        p.heard(5000);
        assert_eq!((p.check(6000, false), p.due()), (Verdict::Ping, 11_000));
    }

    #[test]
    fn a_patient_request_makes_silence_innocent() {
        let mut p = pulse();
        assert_eq!((p.check(50_000, true), p.due()), (Verdict::Fine, 51_000));
    }

    #[test]
    fn without_liveness_nothing_is_ever_due() {
        let mut p = Pulse::new(None, 0);
        assert_eq!((p.check(1 << 40, false), p.due()), (Verdict::Fine, NEVER));
    }
}
