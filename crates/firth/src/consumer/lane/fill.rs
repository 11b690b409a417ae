//! Bringing records into a lane: from the log, from what is due, from what has ripened.

use super::session::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::payload;
use firth_engine::facet::{Max, TakeDue};
use firth_engine::limits::{MAX_BATCH_BYTES, MAX_READ};
use firth_engine::{Offer, Record, RecordId, Verdict};
use futures_util::future::try_join_all;
use std::time::Duration;
use tokio::time::Instant;

/// How often hints make a busy lane look for delayed and due records.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a busy lane looks for due records: many at once cost far less than one by one.
const DUE_EVERY: Duration = Duration::from_millis(20);
/// How many places of the window are kept for due records.
const KEPT_FOR_DUE: usize = 100;
/// How many bytes of records a lane holds before it reads no further.
const MAX_AT_HAND: usize = 64 * 1024 * 1024;
/// How many delayed messages enter the log per step.
const RIPEN: usize = 500;
/// How many records are looked up at once when a new owner learns the keys of due records.
const LOOK_UPS: usize = 64;

impl Session<'_> {
    /// How many more due records may be brought in now.
    pub(super) fn room(&self) -> usize {
        let limit = if self.careful > 0 { 1 } else { self.lane.common.config.max_in_flight };
        let at_hand = self.flow.ready() + self.flow.out();
        self.window.room().min(limit.saturating_sub(at_hand))
    }

    /// How many more records of the log may be brought in now. Some places are kept for due records: they are what those that are held
    /// back wait for.
    fn log_room(&self) -> usize {
        if self.bytes_at_hand >= MAX_AT_HAND {
            return 0;
        }
        self.room().min(self.window.room().saturating_sub(KEPT_FOR_DUE))
    }

    /// Reads on when half of the room is free: early enough to read while handlers work, late enough for large reads. The answer is
    /// awaited beside everything else, and brings the lane back here. True if a read begins.
    pub(super) fn read_if_wanted(&mut self) -> bool {
        let room = self.log_room();
        let half = room * 2 >= self.lane.common.config.max_in_flight || self.flow.ready() == 0;
        if self.in_read.is_some() || !self.more || room == 0 || !half {
            return false;
        }
        let (engine, at, after) =
            (self.lane.common.engine.clone(), self.lane.at.clone(), self.window.position());
        let max = Max { records: room, bytes: MAX_BATCH_BYTES };
        // A hint that comes from now on may be about something that this read does not see.
        self.more = false;
        self.in_read = Some((room, Box::pin(async move { engine.read(&at, after, max).await })));
        true
    }

    /// Looks for due and delayed records whose time has come; true if it found any.
    pub(super) async fn upkeep(&mut self) -> Result<bool> {
        let (now, before) = (Instant::now(), self.flow.ready());
        if self.due_at.is_some_and(|due| due <= now) && self.room() > 0 {
            (self.looked, self.due_looked) = (now, now);
            self.take_due().await?;
        }
        if self.ripen_at.is_some_and(|at| at <= now) {
            self.looked = now;
            self.ripen(now).await?;
            self.read_if_wanted();
        }
        Ok(self.flow.ready() > before)
    }

    /// Notes when the next record is due. While there is other work, due records gather.
    pub(super) fn note_next_due(&mut self, next: Option<Duration>) {
        let busy = self.flow.ready() + self.flow.out() > 0;
        let soonest = busy.then(|| self.due_looked + DUE_EVERY);
        self.due_at = next.map(|delay| (Instant::now() + delay).max(soonest.unwrap_or(self.due_looked)));
    }

    async fn take_due(&mut self) -> Result<()> {
        let common = self.lane.common.clone();
        let (room, hold) = (self.room(), &self.lane.held.hold);
        let known = self.failed.due(Instant::now(), room);
        let due =
            common.engine.due(self.at(), &common.group, hold, TakeDue { max: room, known: &known }).await?;
        common.meter.lost.increment(due.lost);
        if due.lost > 0 && common.config.is_strict() {
            // Whose they were is gone with them: only a fresh look tells which keys still wait.
            return Err(Error::new(ErrorKind::Unavailable, "a lossy trim removed records that were due"));
        }
        for record in due.records {
            let known = self.failed.take(record.id);
            let Some(record) = record.with(|| known) else {
                return Err(Error::new(ErrorKind::Internal, "a due record came without its content"));
            };
            if self.window.offer_due(&record) {
                self.take_in(record, false)?;
            }
        }
        self.note_next_due(due.next);
        Ok(())
    }

    async fn ripen(&mut self, now: Instant) -> Result<()> {
        let ripened = self.lane.common.engine.ripen(&self.lane.at, RIPEN).await?;
        self.ripen_at = ripened.next.map(|delay| now + delay);
        self.more |= ripened.moved > 0;
        Ok(())
    }

    /// Takes in what was read, where there was room for `room` records.
    pub(super) fn received(&mut self, room: usize, records: Vec<Record>) -> Result<()> {
        let bytes: usize = records.iter().map(|record| record.content.packed_len()).sum();
        // Fewer than asked for, and not because of their size: that was all.
        let largest = self.lane.common.max_payload + 16 * 1024;
        let was_cut = records.len() == room || bytes + largest > MAX_BATCH_BYTES;
        self.more |= was_cut && !records.is_empty();
        let lost = self.window.lost();
        for record in records {
            if self.window.offer(&record) == Offer::Deliver {
                self.take_in(record, true)?;
            }
        }
        self.lane.common.meter.lost.increment(self.window.lost() - lost);
        Ok(())
    }

    /// A record that is in the window now: settled at once if its verdict is known, else ready to be handed out.
    fn take_in(&mut self, mut record: Record, from_log: bool) -> Result<()> {
        let key = (record.id, record.attempt);
        let waiter = if self.waiting.is_empty() { None } else { self.waiting.remove(&key) };
        if !self.known.is_empty()
            && let Some(verdict) = self.known.remove(&key)
        {
            self.waiters.extend(waiter);
            return self.settle_unseen(&record, verdict);
        }
        let condemned = if from_log { self.condemned.take() } else { None };
        if let Some(reason) = condemned.or_else(|| self.lane.common.config.retry.condemns(record.crashes)) {
            return self.settle_unseen(&record, Verdict::Dead { reason });
        }
        if let Err(error) = payload::open(&mut record.content) {
            return self.settle_unseen(&record, Verdict::Dead { reason: error.to_string() });
        }
        self.bytes_at_hand += record.content.packed_len();
        self.flow.admit(record);
        Ok(())
    }

    /// Settles a record that is not handed out; its key waits or goes on as if it had been.
    fn settle_unseen(&mut self, record: &Record, verdict: Verdict) -> Result<()> {
        let (key, seq) = (record.content.key.as_ref(), record.id.seq);
        match verdict {
            Verdict::Ack => self.flow.clear_due(key, seq),
            Verdict::Retry { .. } | Verdict::Dead { .. } => self.flow.note_due(key, seq),
        }
        self.settle(record, verdict)
    }

    /// With strict ordering a new owner must know which keys wait for a retry. Content kept aside waits without holding anything back.
    pub(super) async fn learn_due_keys(&mut self) -> Result<()> {
        let common = self.lane.common.clone();
        if !common.config.is_strict() {
            return Ok(());
        }
        let mut after = RecordId::ZERO;
        loop {
            let page = common.engine.pending(self.at(), &common.group, after, MAX_READ).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            let in_log: Vec<RecordId> = page.iter().filter(|due| !due.kept).map(|due| due.id).collect();
            for ids in in_log.chunks(LOOK_UPS) {
                let at = self.at();
                let look_up = |id: &RecordId| {
                    let before = RecordId::new(id.ms, id.seq - 1);
                    let engine = common.engine.clone();
                    async move { engine.read(at, before, Max::records(1)).await }
                };
                let found = try_join_all(ids.iter().map(look_up)).await?;
                for (id, record) in ids.iter().zip(found) {
                    // Another id: a lossy trim removed it.
                    if let Some(record) = record.first().filter(|record| record.id == *id) {
                        self.flow.note_due(record.content.key.as_ref(), id.seq);
                    }
                }
            }
        }
    }
}
