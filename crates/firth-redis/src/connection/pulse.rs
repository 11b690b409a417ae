//! Whether the peer is alive, as pure arithmetic on milliseconds: after some silence a PING is due, and if silence
//! goes on the connection is dead. Any byte from the peer is a sign of life.
//!
//! **Long commands.** A server that works on one command is silent to all its clients. So while a
//! request waits that may take longer than usual, silence only makes the connection doubtful, and a
//! second one is asked for its opinion: the connection is dead if the server serves others, or is
//! gone.

use std::time::Duration;

use super::{opinion::Opinion, pipeline::NEVER, shared::millis};
use crate::config::Liveness;

/// What the silence so far asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    Ping,
    /// Ask for a second opinion, and tell it to [`Pulse::opinion`].
    Doubt,
    Dead(Duration),
}

/// Whether a request under way excuses silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excuse {
    None,
    /// One that waits for as long as it takes, or longer than usual.
    Long,
    /// One that the server may rightly sit on while it serves others (BLPOP).
    Blocking,
}

#[derive(Debug)]
pub(crate) struct Pulse {
    ping_after: u64,
    dead_after: u64,
    heard: u64,
    phase: Phase,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Calm,
    /// A PING went out.
    Pinged(u64),
    /// A second opinion is awaited.
    Doubtful,
    /// The server serves others: one last moment for what is on its way.
    Condemned(u64),
}

impl Pulse {
    pub(crate) fn new(liveness: Option<Liveness>, now: u64) -> Self {
        let (ping_after, dead_after) =
            liveness.map_or((NEVER, NEVER), |l| (millis(l.ping_after), millis(l.dead_after)));
        Self { ping_after, dead_after, heard: now, phase: Phase::Calm }
    }

    /// A byte came.
    pub(crate) fn heard(&mut self, now: u64) {
        self.heard = now;
        self.phase = Phase::Calm;
    }

    /// When [`check`](Self::check) has something to say.
    pub(crate) fn due(&self) -> u64 {
        match self.phase {
            Phase::Calm => self.heard.saturating_add(self.ping_after),
            Phase::Pinged(at) => at.saturating_add(self.dead_after),
            Phase::Doubtful => NEVER,
            Phase::Condemned(at) => at.saturating_add(self.ping_after),
        }
    }

    /// Looks at the clock.
    pub(crate) fn check(&mut self, now: u64, excuse: Excuse) -> Verdict {
        if now < self.due() {
            return Verdict::Fine;
        }
        if excuse == Excuse::Blocking {
            self.heard(now);
            return Verdict::Fine;
        }
        match self.phase {
            Phase::Calm => {
                self.phase = Phase::Pinged(now);
                Verdict::Ping
            }
            Phase::Pinged(_) if excuse == Excuse::Long => {
                self.phase = Phase::Doubtful;
                Verdict::Doubt
            }
            _ => Verdict::Dead(self.silence(now)),
        }
    }

    /// Whether a second opinion is awaited.
    pub(crate) fn is_doubtful(&self) -> bool {
        matches!(self.phase, Phase::Doubtful)
    }

    /// What the second opinion was.
    pub(crate) fn opinion(&mut self, now: u64, opinion: Opinion) -> Verdict {
        match opinion {
            Opinion::Serves { .. } => self.phase = Phase::Condemned(now),
            Opinion::Unknown => self.phase = Phase::Pinged(now),
            Opinion::Gone => return Verdict::Dead(self.silence(now)),
        }
        Verdict::Fine
    }

    fn silence(&self, now: u64) -> Duration {
        Duration::from_millis(now.saturating_sub(self.heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse() -> Pulse {
        let liveness = Liveness { ping_after: Duration::from_secs(1), dead_after: Duration::from_secs(5) };
        Pulse::new(Some(liveness), 0)
    }

    const DEAD: Verdict = Verdict::Dead(Duration::from_secs(6));

    #[test]
    fn silence_asks_for_a_ping_and_then_means_death() {
        let mut p = pulse();
        assert_eq!((p.check(999, Excuse::None), p.due()), (Verdict::Fine, 1000));
        assert_eq!((p.check(1000, Excuse::None), p.due()), (Verdict::Ping, 6000));
        assert_eq!(p.check(5999, Excuse::None), Verdict::Fine);
        assert_eq!(p.check(6000, Excuse::None), DEAD);
    }

    #[test]
    fn any_byte_is_a_sign_of_life() {
        let mut p = pulse();
        assert_eq!(p.check(1000, Excuse::None), Verdict::Ping);
        p.heard(5000);
        assert_eq!((p.check(6000, Excuse::None), p.due()), (Verdict::Ping, 11_000));
    }

    #[test]
    fn a_blocking_request_makes_silence_innocent() {
        let mut p = pulse();
        assert_eq!((p.check(50_000, Excuse::Blocking), p.due()), (Verdict::Fine, 51_000));
    }

    #[test]
    fn c11_a_long_request_asks_for_a_second_opinion() {
        let doubtful = || {
            let mut p = pulse();
            assert_eq!(p.check(1000, Excuse::Long), Verdict::Ping);
            assert_eq!((p.check(6000, Excuse::Long), p.due()), (Verdict::Doubt, NEVER));
            p
        };
        assert_eq!(doubtful().opinion(6000, Opinion::Gone), DEAD);
        let mut busy = doubtful();
        assert_eq!((busy.opinion(9000, Opinion::Unknown), busy.due()), (Verdict::Fine, 14_000));
        assert_eq!(busy.check(14_000, Excuse::Long), Verdict::Doubt, "asked again for as long as it takes");
        let mut lost = doubtful();
        assert_eq!((lost.opinion(7000, Opinion::Serves { master: true }), lost.due()), (Verdict::Fine, 8000));
        assert_eq!(lost.check(8000, Excuse::Long), Verdict::Dead(Duration::from_secs(8)));
        let mut late = doubtful();
        late.opinion(7000, Opinion::Serves { master: true });
        late.heard(7500);
        assert_eq!(late.check(8000, Excuse::Long), Verdict::Fine, "the answer was on its way");
    }

    #[test]
    fn without_liveness_nothing_is_ever_due() {
        let mut p = Pulse::new(None, 0);
        assert_eq!((p.check(1 << 40, Excuse::None), p.due()), (Verdict::Fine, NEVER));
    }
}
