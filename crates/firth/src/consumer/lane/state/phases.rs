//! Phases of a lane outside of its daily work: opening, draining, recovery after an error, loss.

use super::intake::{Intake, Schedule};
use super::verdicts::PendingVerdicts;
use super::{LaneAction, LaneEnd, LaneState, Next, Phase, Wants};
use crate::consumer::lane::crash_isolation::{StartLimit, Suspects};
use crate::consumer::lane::flow::Flow;
use crate::consumer::lane::handed_out::HandedOut;
use crate::consumer::lane::requests::{OpenRequest, OpenedGroup};
use crate::consumer::lane::retry_cache::RetryCache;
use crate::error::{Error, ErrorKind, Result};
use firth_engine::{Backoff, Window};
use std::time::Duration;
use tokio::time::Instant;

/// How long verdicts with an unknown outcome wait for their records to come again.
const CARRY: Duration = Duration::from_secs(10);
/// How long a lane that lost its partition waits for the answer to the commit on its way.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// While the server is away, so that the lane resumes soon after its return.
const AWAY: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_millis(500));
/// While the server answers and refuses.
const REFUSED: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(5));

impl LaneState {
    /// One turn of a lane that does not run.
    pub(super) fn wind_down(&mut self, now: Instant, actions: &mut Vec<LaneAction>) -> Next {
        let timer = match &mut self.phase {
            Phase::Resting { until } if now < *until && !self.is_stopping => Some(*until),
            Phase::Resting { .. } => {
                self.open(actions);
                None
            }
            Phase::Opening | Phase::Running => None,
            Phase::Draining { until } => {
                let until = *until;
                if now < until {
                    self.commit_if_wanted(now, false, actions);
                }
                let is_idle = self.chunks_out == 0 && self.verdicts.is_empty();
                if is_idle || now >= until {
                    // The next owner handles again what still runs.
                    actions.push(LaneAction::Abandon);
                    return Next::End(LaneEnd::Stopped);
                }
                Some(until)
            }
            Phase::Recovering { until, .. } => {
                let until = *until;
                let is_idle = self.chunks_out == 0 && !self.verdicts.is_committing();
                if is_idle || now >= until {
                    actions.push(LaneAction::Abandon);
                    self.recovered(now);
                    return self.wind_down(now, actions);
                }
                Some(until)
            }
            Phase::Losing { until } if now < *until && self.verdicts.is_committing() => Some(*until),
            Phase::Losing { .. } => return Next::End(LaneEnd::Lost),
            Phase::Over(end) => return Next::End(std::mem::replace(end, LaneEnd::Stopped)),
        };
        Next::Wait(Wants { timer, hint: false, stream: false })
    }

    fn open(&mut self, actions: &mut Vec<LaneAction>) {
        if !self.inputs.has_lease {
            // Another owner may have settled these records by now: their outcome stays unknown.
            self.carried.waiters.clear();
        }
        self.phase = Phase::Opening;
        actions
            .push(LaneAction::Open(OpenRequest { unknown: self.carried.waiters.keys().copied().collect() }));
    }

    pub(super) fn opened(
        &mut self,
        now: Instant,
        answer: Result<OpenedGroup>,
        actions: &mut Vec<LaneAction>,
    ) {
        if !matches!(self.phase, Phase::Opening) {
            return;
        }
        match answer {
            Err(error) => self.start_over(now, error),
            Ok(opened) => {
                self.begin(now, opened);
                if self.is_stopping {
                    self.drain(now, actions);
                }
            }
        }
    }

    /// Begins a session: a new window over the group's progress.
    fn begin(&mut self, now: Instant, opened: OpenedGroup) {
        let progress = &opened.progress;
        let config = &self.rules.config;
        self.phase = Phase::Running;
        self.worked = false;
        self.rules.meter.in_flight.decrement(self.flow.out() as f64);
        self.flow = Flow::new(config.is_strict()).minding_keys(config.minds_keys());
        self.handed_out = HandedOut::default();
        self.chunks_out = 0;
        self.window = Window::new(progress, config.window());
        self.intake = Intake::new(progress);
        self.schedule = Schedule::new(progress, now);
        self.retry_cache = RetryCache::default();
        self.suspects = match config.retry.isolates(progress.crashes) {
            true => Suspects::after(progress, config.window()),
            false => Suspects::default(),
        };
        self.start_limit = StartLimit::new(progress, self.inputs.at_once, now);
        self.poison = config.retry.poison_reason(progress.crashes);
        self.verdicts = PendingVerdicts::default();
        self.jitter = self.random.f64();
        self.carried.until = Some(now + CARRY);
        for key in &opened.stored {
            self.carried.verdicts.remove(key);
            if let Some(waiter) = self.carried.waiters.remove(key) {
                waiter.stored();
            }
        }
        self.suspects.add_due(opened.suspects);
        opened.due.iter().for_each(|(key, seq)| self.flow.note_due(Some(key), *seq));
    }

    pub(super) fn stop(&mut self, now: Instant, actions: &mut Vec<LaneAction>) {
        self.is_stopping = true;
        if matches!(self.phase, Phase::Running) {
            self.drain(now, actions);
        }
    }

    fn drain(&mut self, now: Instant, actions: &mut Vec<LaneAction>) {
        self.phase = Phase::Draining { until: now + self.rules.config.drain };
        actions.extend([LaneAction::StopStarts, LaneAction::Recall]);
    }

    /// Drops everything. Verdicts that were not sent are refused for good; for those on their way
    /// the engine's answer says.
    pub(super) fn lose(&mut self, now: Instant, actions: &mut Vec<LaneAction>) {
        self.phase = Phase::Losing { until: now + LAST_ANSWER };
        actions.extend([LaneAction::Abandon, LaneAction::Recall]);
        self.verdicts.refuse_unsent();
    }

    /// Ends a session with an error; the lane waits until no record is out, and keeps the verdicts
    /// that come until then.
    pub(super) fn fail(&mut self, now: Instant, error: Error, actions: &mut Vec<LaneAction>) {
        match self.phase {
            Phase::Losing { .. } | Phase::Over(_) => {}
            _ if error.kind() == ErrorKind::Fenced => self.lose(now, actions),
            Phase::Recovering { .. } => {}
            _ => {
                self.phase = Phase::Recovering { until: now + self.rules.config.drain, error };
                actions.extend([LaneAction::StopStarts, LaneAction::Recall]);
            }
        }
    }

    /// Carries what is not confirmed over to the next session.
    fn recovered(&mut self, now: Instant) {
        let (verdicts, waiters) = self.verdicts.take_unconfirmed();
        self.carried.verdicts.extend(verdicts);
        self.carried.waiters.extend(waiters.map(|waiter| (waiter.key, waiter)));
        if self.worked {
            self.failures = 0;
        }
        if let Phase::Recovering { error, .. } = std::mem::replace(&mut self.phase, Phase::Opening) {
            self.start_over(now, error);
        }
    }

    /// Rests before the next session, or ends if another one is no use.
    fn start_over(&mut self, now: Instant, error: Error) {
        self.phase = match error.kind() {
            ErrorKind::Fenced => Phase::Over(LaneEnd::Lost),
            _ if self.is_stopping => Phase::Over(LaneEnd::Stopped),
            ErrorKind::NotFound | ErrorKind::Closed | ErrorKind::Corrupt | ErrorKind::Unauthorized => {
                Phase::Over(LaneEnd::Failed(error))
            }
            kind => {
                self.failures += 1;
                self.rules.meter.reopened.increment(1);
                if self.failures.is_power_of_two() {
                    let at = &self.rules.at;
                    let failures = self.failures;
                    tracing::warn!(%error, partition = %at, failures, "the lane starts over");
                }
                let is_away = matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
                let backoff = if is_away { AWAY } else { REFUSED };
                Phase::Resting { until: now + backoff.delay_with(self.failures, self.random.f64()) }
            }
        };
    }

    pub(super) fn timer(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        if self.carried.until.take_if(|until| now >= *until).is_some() {
            self.carried.verdicts.clear();
            self.carried.waiters.clear();
        }
        self.schedule.timer(now, &mut self.intake.more);
    }
}
