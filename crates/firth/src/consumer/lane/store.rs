//! Storing verdicts: which wait for company, which go now, and what an answer means.
//!
//! One commit is on its way at a time; records are handed out meanwhile. An answer that never came leaves the outcome open, so the
//! session ends and the next one opens the group again.

use super::Lane;
use super::session::Session;
use super::waiter::{Key, Waiter};
use crate::error::{Error, ErrorKind, Result};
use firth_engine::facet::Committed;
use firth_engine::{Progress, Record, RecordId, Verdict};
use tokio::time::Instant;

/// So many verdicts do not wait for more.
const ENOUGH: usize = 2000;
/// So many go along with a read: both go out in one write. Fewer wait for the next one: a commit costs the server much the same however many
/// records it settles.
const COMPANY: usize = 1500;

impl Session<'_> {
    /// Notes a verdict for the next commit.
    pub(super) fn settle(&mut self, record: &Record, verdict: Verdict) -> Result<()> {
        let meter = &self.lane.common.meter;
        match &verdict {
            Verdict::Ack => self.acks += 1,
            Verdict::Retry { after, keep, .. } => {
                meter.retried.increment(1);
                if !keep {
                    self.failed.keep(record.id, Instant::now(), *after, &record.content);
                }
            }
            Verdict::Dead { .. } => {
                meter.dead.increment(1);
                // Until it is stored it may come again, so nothing of its key may overtake it.
                if self.lane.common.config.is_strict() && record.content.key.is_some() {
                    self.given_up.push(record.clone());
                }
            }
        }
        self.window.settle(record, verdict.clone())?;
        self.settled.push(((record.id, record.attempt), verdict));
        self.uncommitted += 1;
        self.oldest.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Stores what is settled, if it is time. `rides`: a read goes out just now.
    pub(super) fn commit_if_wanted(&mut self, rides: bool) {
        let next = self.flow.next_seq();
        let is_short = next.is_some_and(|next| self.reach.is_short(next)) && !self.is_draining();
        if self.in_commit.is_some() || (self.uncommitted == 0 && !is_short) {
            return;
        }
        let idle = self.flow.ready() == 0
            && self.flow.out() == 0
            && self.in_read.as_ref().is_none_or(|read| read.waits);
        let waited =
            self.oldest.is_some_and(|oldest| oldest.elapsed() >= self.lane.common.config.commit_interval);
        let wanted = self.is_draining()
            || (rides && self.uncommitted >= COMPANY)
            || idle
            || waited
            || !self.waiters.is_empty()
            || self.uncommitted >= ENOUGH
            || self.suspects.any()
            || is_short
            || !self.given_up.is_empty()
            || self.window.room() == 0;
        if !wanted {
            return;
        }
        let commit = self.window.take_commit();
        let commit = if is_short { commit.or_else(|| Some(self.window.unchanged())) } else { commit };
        (self.uncommitted, self.oldest, self.luck) = (0, None, fastrand::f64());
        self.committing.append(&mut self.settled);
        self.answering.append(&mut self.waiters);
        self.burying.append(&mut self.given_up);
        self.lane.common.meter.acked.increment(std::mem::take(&mut self.acks));
        let Some(mut commit) = commit else {
            return;
        };
        commit.reach = self.reach.tell(next, self.suspects.last(), Instant::now());
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
                self.note_next_due(done.next_due);
                self.reach.stored();
                self.suspects.settled(self.committing.drain(..).map(|((id, _), _)| id), self.window.open());
                for record in self.burying.drain(..) {
                    self.flow.clear_due(record.content.key.as_ref(), record.id.seq);
                }
                self.answering.drain(..).for_each(Waiter::stored);
                Ok(())
            }
            Err(error) => {
                self.answer_all(&error);
                if error.kind() == ErrorKind::Invalid {
                    // Not a matter of the connection: what we believe about these records is wrong.
                    tracing::error!(%error, partition = %self.lane.at, "a commit was refused; the lane starts over");
                    self.committing.clear();
                    self.settled.clear();
                }
                Err(error)
            }
        }
    }

    /// Verdicts of this session that are not confirmed.
    pub(super) fn unconfirmed(&mut self) -> impl Iterator<Item = (Key, Verdict)> + '_ {
        self.committing.drain(..).chain(self.settled.drain(..))
    }

    /// A refused owner is refused for good. After any other error the next session learns what became of these verdicts.
    fn answer_all(&mut self, error: &Error) {
        if error.kind() == ErrorKind::Fenced {
            self.answering.drain(..).for_each(|waiter| waiter.refused(error));
        }
    }

    /// Answers those who wait for verdicts of an earlier session that turn out to be stored. Nobody else can have settled these records: the
    /// lease is still ours.
    pub(super) async fn answer_stored(&mut self, progress: &Progress) -> Result<()> {
        let keys: Vec<Key> = self.waiting.keys().copied().collect();
        for key in keys {
            if !is_open(self.lane, progress, key).await?
                && let Some(waiter) = self.waiting.remove(&key)
            {
                self.known.remove(&key);
                waiter.stored();
            }
        }
        Ok(())
    }
}

/// Whether a delivery still needs a verdict: its record waits in the log, or is due at the same attempt.
async fn is_open(lane: &Lane, progress: &Progress, (id, attempt): Key) -> Result<bool> {
    if id.seq > progress.frontier.seq && !progress.ahead.contains(id.seq) {
        return Ok(true);
    }
    if progress.due == 0 {
        return Ok(false);
    }
    let before = RecordId::new(id.ms, id.seq - 1);
    let found = lane.common.engine.pending(&lane.at, &lane.common.group, before, 1).await?;
    Ok(found.first().is_some_and(|due| due.id == id && due.attempt == attempt))
}
