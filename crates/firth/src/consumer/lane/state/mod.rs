//! The lane as one pure machine: it takes events and the time, and returns actions.
//!
//! [`LaneState::handle`] takes in one event. [`LaneState::turn`] then decides everything that can
//! be done now. Neither reads a clock nor waits; the driver (`driver.rs`) performs the actions and
//! brings their answers back as events. Everything here is bounded by the engine's window.
//!
//! ```text
//!           ┌──────────── error that can pass ───────────┐
//!           ▼                                            │
//! Resting ─► Opening ─► Running ── stop ─► Draining ─► Recovering ─► End
//!                          └── lease lost ─► Losing ─► End
//! ```
//!
//! - `intake`: reads, due records, delayed messages; how much room there is.
//! - `verdicts`: verdicts on their way into the engine.
//! - `phases`: opening, draining, recovery and loss.
//! - `places`: where a record is.

mod intake;
mod phases;
mod places;
mod verdicts;

#[cfg(test)]
mod model;

use super::crash_isolation::{StartLimit, Suspects};
use super::flow::{Back, Flow};
use super::handed_out::{HandedOut, Out};
use super::requests::{OpenRequest, OpenedGroup};
use super::retry_cache::RetryCache;
use super::waiter::{DeliveryKey, Waiter, Waiters};
use super::{Lane, LaneEnd};
use crate::consumer::config::ConsumerConfig;
use crate::consumer::delivery::{DeliveryEvent, HandlerVerdict};
use crate::error::{Error, Result};
use crate::metrics::GroupMeter;
use crate::shared_record::SharedRecord;
use firth_engine::facet::{Committed, Due, Promoted, ReadLimit};
use firth_engine::{Commit, Partition, Progress, Record, RecordId, Verdict, Window};
use intake::{Intake, Schedule};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;
use verdicts::PendingVerdicts;

/// Wakes an idle lane even if no hint ever comes.
const SLOW_POLL: Duration = Duration::from_secs(5);

/// What happened.
pub(super) enum LaneEvent {
    /// Answer to [`LaneAction::Open`].
    Opened(Result<OpenedGroup>),
    /// Answer to [`LaneAction::Read`]; `None`: the engine cannot wait at the end of the log.
    Read(Result<Option<Vec<Record>>>),
    /// Answer to [`LaneAction::TakeDue`].
    Due(Result<Due>),
    /// Answer to [`LaneAction::Promote`].
    Promoted(Result<Promoted>),
    /// Answer to [`LaneAction::Commit`].
    Committed(Result<Committed>),
    /// News of a delivery or of a chunk.
    Delivery(DeliveryEvent),
    /// The log, or the stream that the topic follows, may have changed.
    Hint,
    /// The coordinator wants the partition back.
    Stop,
    /// Another consumer has the lease.
    LeaseLost,
    /// The time that [`Wants::timer`] asked for has come.
    Timer,
}

/// What the driver must do.
pub(super) enum LaneAction {
    /// Drop all requests and the lane's handle, make a new handle, and open the group.
    Open(OpenRequest),
    /// Read the log; with `waits`, wait at its end for the next record.
    Read { after: RecordId, max: ReadLimit, waits: bool },
    /// Take due records; the lane still has the content of the `known` ones.
    TakeDue { max: usize, known: Vec<RecordId> },
    /// Move delayed messages whose time has come into the log.
    Promote,
    /// Store verdicts.
    Commit(Commit),
    /// Hand records to one worker.
    HandOut(Vec<SharedRecord>),
    /// Take back the deliveries that no worker has taken.
    Recall,
    /// Let no further delivery start.
    StopStarts,
    /// Stop running handlers, too.
    Abandon,
    /// Tell the consumer's user that `count` records before `next` are gone.
    NoteLost { next: u64, count: u64 },
    /// Note for the next owner of this process how far the log was read.
    NoteRead(RecordId),
}

/// What the driver does after the actions of a turn.
pub(super) enum Next {
    Wait(Wants),
    /// Lets handlers begin, then takes another turn.
    Yield,
    End(LaneEnd),
}

/// What the lane waits for, besides the answers to its requests, deliveries, stop and loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wants {
    pub(super) timer: Option<Instant>,
    pub(super) hint: bool,
    /// Hints of the stream that the topic follows.
    pub(super) stream: bool,
}

/// Conditions outside of the lane, read before each turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    pub(super) paused: bool,
    /// No other consumer can have the lease yet.
    pub(super) has_lease: bool,
    /// Records are on their way back unstarted: a later one would overtake them.
    pub(super) returning: bool,
    /// How many records one worker takes.
    pub(super) chunk: usize,
    /// How many records of the partition handlers may have at a time.
    pub(super) at_once: usize,
}

/// What does not change during the life of a lane.
pub(super) struct Rules {
    pub(super) at: Partition,
    pub(super) config: ConsumerConfig,
    pub(super) max_payload: usize,
    pub(super) meter: GroupMeter,
}

impl Rules {
    pub(super) fn of(lane: &Lane) -> Self {
        let common = &lane.common;
        Self {
            at: lane.at.clone(),
            config: common.config.clone(),
            max_payload: common.max_payload,
            meter: common.meter.clone(),
        }
    }
}

/// Part of a lane's life. A lane that starts over goes from `Recovering` to `Resting`.
enum Phase {
    /// Waits for the end of a backoff.
    Resting {
        until: Instant,
    },
    Opening,
    Running,
    /// Hands out nothing more, stores all verdicts, then ends.
    Draining {
        until: Instant,
    },
    /// After an error: waits until no record is out, so that none is handed out twice.
    Recovering {
        until: Instant,
        error: Error,
    },
    /// Another consumer has the lease: waits for the answer to the commit on its way.
    Losing {
        until: Instant,
    },
    Over(LaneEnd),
}

/// Verdicts that an earlier session did not see confirmed.
#[derive(Default)]
struct Carried {
    /// If the record comes again at this attempt, it is settled without being handed out.
    verdicts: HashMap<DeliveryKey, Verdict>,
    waiters: Waiters,
    until: Option<Instant>,
}

/// One lane: everything that it knows and decides.
pub(super) struct LaneState {
    rules: Rules,
    phase: Phase,
    inputs: Inputs,
    is_stopping: bool,
    /// Sessions in a row that stored nothing.
    failures: u32,
    /// Whether this session stored anything.
    worked: bool,
    carried: Carried,
    window: Window,
    flow: Flow,
    handed_out: HandedOut,
    chunks_out: usize,
    intake: Intake,
    schedule: Schedule,
    retry_cache: RetryCache,
    suspects: Suspects,
    start_limit: StartLimit,
    /// Why the next record of the log is given up, if too many owners vanished with it.
    poison: Option<String>,
    verdicts: PendingVerdicts,
    /// Draws the jitter of retries and backoffs.
    random: fastrand::Rng,
    /// Draw for the jitter of retries, one per commit: records that fail together are tried again
    /// together, which costs the engine less.
    jitter: f64,
}

impl LaneState {
    pub(super) fn new(rules: Rules, inputs: Inputs, now: Instant, seed: u64) -> Self {
        let none = Progress::default();
        Self {
            phase: Phase::Resting { until: now },
            inputs,
            is_stopping: false,
            failures: 0,
            worked: false,
            carried: Carried::default(),
            window: Window::new(&none, rules.config.window()),
            flow: Flow::new(rules.config.is_strict()).minding_keys(rules.config.minds_keys()),
            handed_out: HandedOut::default(),
            chunks_out: 0,
            intake: Intake::new(&none),
            schedule: Schedule::new(&none, now),
            retry_cache: RetryCache::default(),
            suspects: Suspects::default(),
            start_limit: StartLimit::new(&none, inputs.at_once, now),
            poison: None,
            verdicts: PendingVerdicts::default(),
            random: fastrand::Rng::with_seed(seed),
            jitter: 0.0,
            rules,
        }
    }

    /// Takes in one event.
    pub(super) fn handle(&mut self, now: Instant, event: LaneEvent, actions: &mut Vec<LaneAction>) {
        let is_running = matches!(self.phase, Phase::Running);
        let done = match event {
            LaneEvent::Delivery(event) => self.heard(now, event, actions),
            LaneEvent::Committed(answer) => self.committed(now, answer),
            LaneEvent::Opened(answer) => {
                self.opened(now, answer, actions);
                Ok(())
            }
            LaneEvent::Stop => {
                self.stop(now, actions);
                Ok(())
            }
            LaneEvent::LeaseLost => {
                self.lose(now, actions);
                Ok(())
            }
            // A lane that drains or starts over takes no more records in.
            LaneEvent::Read(_) | LaneEvent::Due(_) | LaneEvent::Promoted(_) if !is_running => Ok(()),
            LaneEvent::Read(answer) => self.read(now, answer, actions),
            LaneEvent::Due(answer) => answer.and_then(|due| self.take_due(now, due)),
            LaneEvent::Promoted(answer) => answer.map(|promoted| self.promoted(now, &promoted)),
            LaneEvent::Hint => {
                self.hinted();
                Ok(())
            }
            LaneEvent::Timer => {
                self.timer(now);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.fail(now, error, actions);
        }
    }

    /// Decides everything that can be done now.
    pub(super) fn turn(&mut self, now: Instant, inputs: Inputs, actions: &mut Vec<LaneAction>) -> Next {
        let was_paused = std::mem::replace(&mut self.inputs, inputs).paused;
        match &mut self.phase {
            Phase::Running => {
                if inputs.paused && !was_paused {
                    actions.push(LaneAction::Recall);
                }
                self.work(now, actions)
            }
            _ => self.wind_down(now, actions),
        }
    }

    fn work(&mut self, now: Instant, actions: &mut Vec<LaneAction>) -> Next {
        if let Err(error) = self.admit_due(now) {
            self.fail(now, error, actions);
            return self.wind_down(now, actions);
        }
        // Verdicts ride along with a read: both go out in one write.
        let mut rides = false;
        if self.may_take() {
            // An early read at the end of the log brings nothing: handlers begin first.
            if self.would_wait(now) && self.hand_out(now, actions) {
                return Next::Yield;
            }
            // Due records have waited longest: they get room before the log's next ones.
            rides = self.is_logs_turn() && self.read_if_wanted(now, actions);
            self.look_if_wanted(now, actions);
            rides |= self.read_if_wanted(now, actions);
            self.hand_out(now, actions);
        }
        self.commit_if_wanted(now, rides, actions);
        let paused = self.inputs.paused;
        Next::Wait(Wants { timer: Some(self.next_timer()), hint: !self.is_deaf(), stream: !paused })
    }

    fn may_take(&self) -> bool {
        !self.inputs.paused && self.inputs.has_lease
    }

    /// Hands out all records that may go; true if there were any. While records are on their way
    /// back it hands out none: those go first.
    fn hand_out(&mut self, now: Instant, actions: &mut Vec<LaneAction>) -> bool {
        if self.inputs.returning {
            return false;
        }
        let before = self.chunks_out;
        let most = self.rules.config.max_in_flight;
        let (chunk, limit) = match self.suspects.any() {
            true => (1, 1),
            false => (self.inputs.chunk, self.rules.config.concurrency),
        };
        while self.chunks_out < limit && self.flow.ready() > 0 && self.flow.out() < most {
            let records = self.flow.take(chunk.min(most - self.flow.out()), self.start_limit.limit());
            let Some(furthest) = records.iter().map(|record| record.id.seq).max() else { break };
            self.start_limit.start(furthest);
            self.handed_out.note(&records, now);
            self.rules.meter.in_flight.increment(records.len() as f64);
            self.chunks_out += 1;
            actions.push(LaneAction::HandOut(records));
        }
        self.handed_out.tidy(|id| self.window.has(id));
        self.chunks_out > before
    }

    /// The records that are handed out and have no verdict, the newest first. It costs a search:
    /// for operators.
    pub(super) fn out(&self, now: Instant) -> Vec<Out> {
        let unopened = self.intake.unopened.iter().map(|record| record.id.seq);
        let waiting: HashSet<u64> = self.flow.waiting().chain(unopened).collect();
        self.handed_out.list(now, |id| self.window.has(id) && !waiting.contains(&id.seq))
    }

    /// Takes in news of a delivery.
    fn heard(&mut self, now: Instant, event: DeliveryEvent, actions: &mut Vec<LaneAction>) -> Result<()> {
        if !matches!(self.phase, Phase::Running | Phase::Draining { .. } | Phase::Recovering { .. }) {
            // The delivery was abandoned: its record comes again. A waiter learns that from the
            // silence.
            return Ok(());
        }
        match event {
            DeliveryEvent::ChunkDone => self.chunks_out -= 1,
            DeliveryEvent::Unstarted(record) => {
                // Later deliveries that wait in the ready queue must not overtake it.
                if !matches!(actions.last(), Some(LaneAction::Recall)) {
                    actions.push(LaneAction::Recall);
                }
                self.came_back(&record);
            }
            DeliveryEvent::HeldBack(record) => self.came_back(&record),
            DeliveryEvent::Judged { record, judgement, waiter } => {
                self.verdicts.await_stored(waiter.map(|reply| Waiter::new(&record, reply)));
                self.count_judged(1);
                self.judged(now, &record, judgement)?;
            }
            DeliveryEvent::Handled(list) => {
                self.count_judged(list.len());
                list.into_iter().try_for_each(|(record, judgement)| self.judged(now, &record, judgement))?;
            }
        }
        Ok(())
    }

    fn came_back(&mut self, record: &SharedRecord) {
        self.rules.meter.in_flight.decrement(1.0);
        self.flow.back(record, Back::Unstarted);
    }

    fn count_judged(&self, judged: usize) {
        self.rules.meter.in_flight.decrement(judged as f64);
        self.rules.meter.delivered.increment(judged as u64);
    }

    fn judged(&mut self, now: Instant, record: &SharedRecord, judgement: HandlerVerdict) -> Result<()> {
        let verdict = self.verdict(record, judgement);
        if matches!(self.phase, Phase::Recovering { .. }) {
            // The window is void: the next session settles the record when it comes again.
            self.flow.back(record, Back::Settled);
            self.verdicts.carry(record, verdict);
            return Ok(());
        }
        self.intake.bytes -= record.content.packed_len();
        let is_done = matches!(verdict, Verdict::Ack);
        self.flow.back(record, if is_done { Back::Settled } else { Back::Postponed });
        self.settle(now, record, verdict)
    }

    fn verdict(&self, record: &Record, judgement: HandlerVerdict) -> Verdict {
        let config = &self.rules.config;
        match judgement {
            HandlerVerdict::Ack => Verdict::Ack,
            HandlerVerdict::Nack(nack) => {
                let in_order = config.is_strict() && record.content.key.is_some();
                config.retry.judge(record, nack, in_order, self.jitter)
            }
        }
    }
}

/// Records that are still out are no longer this lane's. A waiter that is dropped gives an answer.
impl Drop for LaneState {
    fn drop(&mut self) {
        self.rules.meter.in_flight.decrement(self.flow.out() as f64);
    }
}
