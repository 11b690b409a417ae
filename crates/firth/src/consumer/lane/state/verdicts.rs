//! Verdicts on their way into the engine: which wait for more, which go now, and what an answer
//! means.
//!
//! One commit is on its way at a time; records are handed out during it. If the answer does not
//! come, the outcome is unknown: the session ends and the next one opens the group again.

use super::{LaneAction, LaneState, Phase};
use crate::consumer::lane::waiter::{DeliveryKey, Waiter};
use crate::error::{Error, ErrorKind, Result};
use firth_engine::facet::Committed;
use firth_engine::{Record, Verdict};
use std::time::Duration;
use tokio::time::Instant;

/// This many verdicts do not wait for more.
const ENOUGH: usize = 2000;
/// This many go along with a read: both go out in one write. Fewer wait for the next one: a commit
/// costs the server much the same however many records it settles.
const WITH_READ: usize = 1500;

/// Verdicts that the engine has not confirmed.
#[derive(Default)]
pub(super) struct PendingVerdicts {
    /// Not sent yet.
    open: Batch,
    /// In the commit on its way.
    sent: Batch,
    is_committing: bool,
    /// When the first open one was given.
    oldest: Option<Instant>,
    /// Open acks, for the metric.
    acks: u64,
}

#[derive(Default)]
struct Batch {
    verdicts: Vec<(DeliveryKey, Verdict)>,
    waiters: Vec<Waiter>,
    /// Given up: they hold back their keys until that is stored.
    dead: Vec<Record>,
}

impl Batch {
    fn append(&mut self, other: &mut Self) {
        self.verdicts.append(&mut other.verdicts);
        self.waiters.append(&mut other.waiters);
        self.dead.append(&mut other.dead);
    }
}

impl PendingVerdicts {
    /// Whether nothing waits to be stored.
    pub(super) fn is_empty(&self) -> bool {
        self.open.verdicts.is_empty() && !self.is_committing
    }

    pub(super) fn is_committing(&self) -> bool {
        self.is_committing
    }

    /// When the open verdicts must be sent.
    pub(super) fn commit_at(&self, interval: Duration) -> Option<Instant> {
        self.oldest.filter(|_| !self.is_committing).map(|oldest| oldest + interval)
    }

    /// Adds a waiter for a verdict of the open batch.
    pub(super) fn await_stored(&mut self, waiter: Option<Waiter>) {
        self.open.waiters.extend(waiter);
    }

    /// Keeps a verdict for the next session.
    pub(super) fn carry(&mut self, record: &Record, verdict: Verdict) {
        self.open.verdicts.push(((record.id, record.attempt), verdict));
    }

    /// The lane has lost its partition: verdicts that were not sent are refused for good.
    pub(super) fn refuse_unsent(&mut self) {
        self.open.waiters.drain(..).for_each(Waiter::gone);
    }

    /// All verdicts that are not confirmed, and their waiters.
    pub(super) fn take_unconfirmed(
        &mut self,
    ) -> (impl Iterator<Item = (DeliveryKey, Verdict)> + use<>, impl Iterator<Item = Waiter> + use<>) {
        let Self { open, sent, .. } = std::mem::take(self);
        (sent.verdicts.into_iter().chain(open.verdicts), sent.waiters.into_iter().chain(open.waiters))
    }

    /// Whether the verdict on a record is open or sent.
    pub(super) fn find(&self, seq: u64) -> Option<(&Verdict, bool)> {
        let find = |batch: &'_ Batch| batch.verdicts.iter().rposition(|((id, _), _)| id.seq == seq);
        let open = find(&self.open).map(|at| (&self.open.verdicts[at].1, false));
        open.or_else(|| find(&self.sent).map(|at| (&self.sent.verdicts[at].1, true)))
    }
}

impl LaneState {
    /// Notes a verdict for the next commit.
    pub(super) fn settle(&mut self, now: Instant, record: &Record, verdict: Verdict) -> Result<()> {
        let meter = &self.rules.meter;
        let config = &self.rules.config;
        match &verdict {
            Verdict::Ack => self.verdicts.acks += 1,
            Verdict::Retry { after, keep, .. } => {
                meter.retried.increment(1);
                if !keep {
                    self.retry_cache.keep(record.id, now, *after, &record.content);
                }
            }
            Verdict::Dead { .. } => {
                meter.dead.increment(1);
                // Until it is stored it may come again, so no record of its key may overtake it.
                if config.is_strict() && record.content.key.is_some() {
                    self.verdicts.open.dead.push(record.clone());
                }
            }
        }
        self.window.settle(record, verdict.clone()).inspect_err(|error| {
            let place = self.place_of(record.id.seq);
            tracing::error!(%error, partition = %self.rules.at, ?place, "a verdict on a record that is not out");
        })?;
        self.verdicts.open.verdicts.push(((record.id, record.attempt), verdict));
        self.verdicts.oldest.get_or_insert(now);
        Ok(())
    }

    /// Sends the open verdicts if it is time. `rides`: a read goes out just now.
    pub(super) fn commit_if_wanted(&mut self, now: Instant, rides: bool, actions: &mut Vec<LaneAction>) {
        let is_draining = matches!(self.phase, Phase::Draining { .. });
        let next = self.flow.next_seq();
        let is_short = next.is_some_and(|next| self.start_limit.is_short(next)) && !is_draining;
        let count = self.verdicts.open.verdicts.len();
        if self.verdicts.is_committing || (count == 0 && !is_short) {
            return;
        }
        let is_idle = self.flow.ready() == 0 && self.flow.out() == 0 && !self.intake.is_reading();
        let is_wanted = is_draining
            || (rides && count >= WITH_READ)
            || is_idle
            || self.verdicts.commit_at(self.rules.config.commit_interval).is_some_and(|at| now >= at)
            || !self.verdicts.open.waiters.is_empty()
            || count >= ENOUGH
            || self.suspects.any()
            || is_short
            || !self.verdicts.open.dead.is_empty()
            || self.window.room() == 0;
        if !is_wanted {
            return;
        }
        let mut commit = self.window.take_commit().unwrap_or_else(|| self.window.unchanged());
        commit.reach = self.start_limit.tell(next, self.suspects.last(), now);
        let verdicts = &mut self.verdicts;
        verdicts.sent.append(&mut verdicts.open);
        verdicts.is_committing = true;
        verdicts.oldest = None;
        self.rules.meter.acked.increment(std::mem::take(&mut verdicts.acks));
        self.jitter = self.random.f64();
        actions.push(LaneAction::Commit(commit));
    }

    /// Takes in the answer to a commit.
    pub(super) fn committed(&mut self, now: Instant, answer: Result<Committed>) -> Result<()> {
        self.verdicts.is_committing = false;
        let done = answer.inspect_err(|error| self.not_committed(error))?;
        self.worked = true;
        self.note_next_due(now, done.next_due);
        self.start_limit.stored();
        let sent = &mut self.verdicts.sent;
        self.suspects.settled(sent.verdicts.drain(..).map(|((id, _), _)| id), self.window.open());
        for record in sent.dead.drain(..) {
            self.flow.clear_due(record.content.key.as_ref(), record.id.seq);
        }
        sent.waiters.drain(..).for_each(Waiter::stored);
        Ok(())
    }

    fn not_committed(&mut self, error: &Error) {
        match error.kind() {
            // An owner that is refused is refused for good.
            ErrorKind::Fenced => {
                self.verdicts.sent.waiters.drain(..).for_each(|waiter| waiter.refused(error));
            }
            // The lane's picture of these records is wrong: it must not carry it over.
            ErrorKind::Invalid => {
                tracing::error!(%error, partition = %self.rules.at, "a commit was refused; the lane starts over");
                self.verdicts.sent.verdicts.clear();
                self.verdicts.open.verdicts.clear();
            }
            // The next session learns the outcome.
            _ => {}
        }
    }
}
