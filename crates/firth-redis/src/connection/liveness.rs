//! Whether the peer is alive, as pure arithmetic on milliseconds. After some silence a PING is due;
//! if the silence goes on, the connection is dead. Any byte from the peer is a sign of life.
//!
//! **Long commands.** A server that works on one command is silent to all its clients. While a
//! request waits that may take longer than usual, silence only starts a probe. The connection is
//! dead if the probe finds that the server serves, or is gone.

use super::pipeline::NEVER;
use super::probe::ProbeResult;
use super::shared::millis;
use crate::config::Liveness;
use std::time::Duration;

/// What the silence so far requires.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LivenessAction {
    Wait,
    Ping,
    /// Start a probe, and pass its result to [`LivenessDetector::probed`].
    Probe,
    Dead(Duration),
}

/// Request in flight that explains silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlowRequest {
    None,
    /// One without a limit, or with a longer one than usual.
    Long,
    /// One that the server may hold while it serves others (BLPOP).
    Blocking,
}

#[derive(Debug)]
pub(crate) struct LivenessDetector {
    ping_after: u64,
    dead_after: u64,
    last_traffic: u64,
    phase: LivenessPhase,
}

#[derive(Debug, Clone, Copy)]
enum LivenessPhase {
    Quiet,
    /// A PING went out.
    Pinged(u64),
    /// A probe is running.
    Probing,
    /// The server serves: a last moment for replies on their way.
    LastChance(u64),
}

impl LivenessDetector {
    pub(crate) fn new(liveness: Option<Liveness>, now: u64) -> Self {
        let (ping_after, dead_after) =
            liveness.map_or((NEVER, NEVER), |l| (millis(l.ping_after), millis(l.dead_after)));
        Self { ping_after, dead_after, last_traffic: now, phase: LivenessPhase::Quiet }
    }

    /// A byte came.
    pub(crate) fn saw_traffic(&mut self, now: u64) {
        self.last_traffic = now;
        self.phase = LivenessPhase::Quiet;
    }

    /// Time of the next [`check`](Self::check).
    pub(crate) fn due(&self) -> u64 {
        match self.phase {
            LivenessPhase::Quiet => self.last_traffic.saturating_add(self.ping_after),
            LivenessPhase::Pinged(at) => at.saturating_add(self.dead_after),
            LivenessPhase::Probing => NEVER,
            LivenessPhase::LastChance(at) => at.saturating_add(self.ping_after),
        }
    }

    /// Checks the silence at this time.
    pub(crate) fn check(&mut self, now: u64, slow: SlowRequest) -> LivenessAction {
        if now < self.due() {
            return LivenessAction::Wait;
        }
        if slow == SlowRequest::Blocking {
            self.saw_traffic(now);
            return LivenessAction::Wait;
        }
        match self.phase {
            LivenessPhase::Quiet => {
                self.phase = LivenessPhase::Pinged(now);
                LivenessAction::Ping
            }
            LivenessPhase::Pinged(_) if slow == SlowRequest::Long => {
                self.phase = LivenessPhase::Probing;
                LivenessAction::Probe
            }
            _ => LivenessAction::Dead(self.silence(now)),
        }
    }

    /// Whether a probe is running.
    pub(crate) fn is_probing(&self) -> bool {
        matches!(self.phase, LivenessPhase::Probing)
    }

    /// Result of the probe.
    pub(crate) fn probed(&mut self, now: u64, result: ProbeResult) -> LivenessAction {
        match result {
            ProbeResult::Serving { .. } => self.phase = LivenessPhase::LastChance(now),
            ProbeResult::Unknown => self.phase = LivenessPhase::Pinged(now),
            ProbeResult::Gone => return LivenessAction::Dead(self.silence(now)),
        }
        LivenessAction::Wait
    }

    fn silence(&self, now: u64) -> Duration {
        Duration::from_millis(now.saturating_sub(self.last_traffic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detector() -> LivenessDetector {
        let liveness = Liveness { ping_after: Duration::from_secs(1), dead_after: Duration::from_secs(5) };
        LivenessDetector::new(Some(liveness), 0)
    }

    const DEAD: LivenessAction = LivenessAction::Dead(Duration::from_secs(6));

    #[test]
    fn silence_asks_for_a_ping_and_then_means_death() {
        let mut p = detector();
        assert_eq!((p.check(999, SlowRequest::None), p.due()), (LivenessAction::Wait, 1000));
        assert_eq!((p.check(1000, SlowRequest::None), p.due()), (LivenessAction::Ping, 6000));
        assert_eq!(p.check(5999, SlowRequest::None), LivenessAction::Wait);
        assert_eq!(p.check(6000, SlowRequest::None), DEAD);
    }

    #[test]
    fn any_byte_is_a_sign_of_life() {
        let mut p = detector();
        assert_eq!(p.check(1000, SlowRequest::None), LivenessAction::Ping);
        p.saw_traffic(5000);
        assert_eq!((p.check(6000, SlowRequest::None), p.due()), (LivenessAction::Ping, 11_000));
    }

    #[test]
    fn a_blocking_request_makes_silence_innocent() {
        let mut p = detector();
        assert_eq!((p.check(50_000, SlowRequest::Blocking), p.due()), (LivenessAction::Wait, 51_000));
    }

    #[test]
    fn c11_a_long_request_asks_for_a_second_opinion() {
        let probing = || {
            let mut p = detector();
            assert_eq!(p.check(1000, SlowRequest::Long), LivenessAction::Ping);
            assert_eq!((p.check(6000, SlowRequest::Long), p.due()), (LivenessAction::Probe, NEVER));
            p
        };
        assert_eq!(probing().probed(6000, ProbeResult::Gone), DEAD);
        let mut busy = probing();
        assert_eq!((busy.probed(9000, ProbeResult::Unknown), busy.due()), (LivenessAction::Wait, 14_000));
        assert_eq!(
            busy.check(14_000, SlowRequest::Long),
            LivenessAction::Probe,
            "asked again for as long as it takes"
        );
        let mut lost = probing();
        assert_eq!(
            (lost.probed(7000, ProbeResult::Serving { master: true }), lost.due()),
            (LivenessAction::Wait, 8000)
        );
        assert_eq!(lost.check(8000, SlowRequest::Long), LivenessAction::Dead(Duration::from_secs(8)));
        let mut late = probing();
        late.probed(7000, ProbeResult::Serving { master: true });
        late.saw_traffic(7500);
        assert_eq!(late.check(8000, SlowRequest::Long), LivenessAction::Wait, "the answer was on its way");
    }

    #[test]
    fn without_liveness_nothing_is_ever_due() {
        let mut p = LivenessDetector::new(None, 0);
        assert_eq!((p.check(1 << 40, SlowRequest::None), p.due()), (LivenessAction::Wait, NEVER));
    }
}
