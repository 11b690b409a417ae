//! Storing verdicts: which wait for company, which go now, and what an answer means.
//!
//! One commit is on its way at a time; records are handed out meanwhile. An answer that never came leaves the outcome open, so the
//! session ends and the next one opens the group again.

use super::session::Session;
use crate::error::{Error, ErrorKind, Result, same};
use firth_engine::facet::Committed;
use firth_engine::{Record, Verdict};
use tokio::time::Instant;

/// So many verdicts do not wait for more.
const ENOUGH: usize = 100;

impl Session<'_> {
    /// Notes a verdict for the next commit.
    pub(super) fn settle(&mut self, record: &Record, verdict: Verdict) -> Result<()> {
        let meter = &self.lane.common.meter;
        match &verdict {
            Verdict::Ack => meter.acked.increment(1),
            Verdict::Retry { .. } => meter.retried.increment(1),
            Verdict::Dead { .. } => {
                meter.dead.increment(1);
                // Until it is stored it may come again, so nothing of its key may overtake it.
                if self.lane.common.config.is_strict() && record.content.key.is_some() {
                    self.given_up.push(record.clone());
                }
            }
        }
        self.window.settle(record, verdict.clone())?;
        let key = (record.id, record.attempt);
        self.carry.insert(key, verdict);
        self.settled.push(key);
        self.uncommitted += 1;
        self.oldest.get_or_insert_with(Instant::now);
        Ok(())
    }

    pub(super) fn commit_if_wanted(&mut self, urgent: bool) {
        if self.in_commit.is_some() || self.uncommitted == 0 {
            return;
        }
        let idle = self.flow.ready() == 0 && self.flow.out() == 0;
        let waited =
            self.oldest.is_some_and(|oldest| oldest.elapsed() >= self.lane.common.config.commit_interval);
        let wanted = urgent
            || idle
            || waited
            || !self.waiters.is_empty()
            || self.uncommitted >= ENOUGH
            || self.careful > 0
            || !self.given_up.is_empty()
            || self.window.room() == 0;
        if !wanted {
            return;
        }
        let commit = self.window.take_commit();
        (self.uncommitted, self.oldest) = (0, None);
        self.committing = std::mem::take(&mut self.settled);
        self.answering.append(&mut self.waiters);
        self.burying = std::mem::take(&mut self.given_up);
        let Some(commit) = commit else {
            return;
        };
        let (common, at, hold) =
            (self.lane.common.clone(), self.lane.at.clone(), self.lane.held.hold.clone());
        self.in_commit = Some(Box::pin(async move {
            let begun = Instant::now();
            let done = common.engine.commit(&at, &common.group, &hold, commit).await;
            if done.is_ok() {
                common.meter.committed(begun.elapsed());
            }
            done
        }));
    }

    pub(super) fn stored(&mut self, result: Result<Committed>) -> Result<()> {
        match result {
            Ok(done) => {
                self.note_work();
                self.due_at = done.next_due.map(|delay| Instant::now() + delay);
                self.careful = self.careful.saturating_sub(self.committing.len());
                for key in self.committing.drain(..) {
                    self.carry.remove(&key);
                }
                for record in self.burying.drain(..) {
                    self.flow.clear_due(record.content.key.as_ref(), record.id.seq);
                }
                self.answering.drain(..).for_each(|waiter| drop(waiter.send(Ok(()))));
                Ok(())
            }
            Err(error) => {
                self.answer_all(&error);
                if error.kind() == ErrorKind::Invalid {
                    // Not a matter of the connection: what we believe about these records is wrong.
                    tracing::error!(%error, partition = %self.lane.at, "a commit was refused; the lane starts over");
                    self.carry.clear();
                }
                Err(error)
            }
        }
    }

    /// A refused owner is refused for good. After any other error the lane settles what it knows when it starts over, so that what
    /// becomes of it is open.
    fn answer_all(&mut self, error: &Error) {
        let is_final = error.kind() == ErrorKind::Fenced;
        for waiter in self.answering.drain(..) {
            let answer = same(error);
            let _ = waiter.send(Err(if is_final { answer } else { answer.with_unknown_outcome() }));
        }
    }

    /// Answers whoever waits for a verdict that may be stored, now or by the next session of this lane.
    pub(super) fn leave_open(&mut self) {
        for waiter in self.answering.drain(..).chain(self.waiters.drain(..)) {
            let context =
                "the lane ended before the verdict was stored: it is stored later, or the record comes again";
            let _ = waiter.send(Err(Error::new(ErrorKind::Unavailable, context).with_unknown_outcome()));
        }
    }
}
