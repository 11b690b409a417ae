//! Bringing records into a lane: from the log, from the due ones, from delayed messages.

use super::{LaneAction, LaneState, SLOW_POLL};
use crate::consumer::lane::tail::LogTail;
use crate::error::{Error, ErrorKind, Result};
use crate::payload;
use crate::shared_record::{MAX_SHARED, SharedRecord};
use firth_engine::facet::{Due, Promoted, ReadLimit};
use firth_engine::limits::MAX_BATCH_BYTES;
use firth_engine::{Encoding, Offer, Progress, Record, RecordId, Verdict};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// How often hints make a busy lane look for delayed and due records.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a busy lane looks for due records: many at once cost far less than one by one.
const DUE_EVERY: Duration = Duration::from_millis(20);
/// Places of the window that are kept for due records.
const KEPT_FOR_DUE: usize = 100;
/// Bytes of records that a lane holds before it reads no further.
pub(super) const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Reads of the log, and the room for their records.
pub(super) struct Intake {
    /// Where the window began.
    opened_at: RecordId,
    /// Whether the log may hold more after the window's position.
    pub(super) more: bool,
    /// Bytes of the records that are handed out, ready or held back.
    pub(super) bytes: usize,
    /// The last read brought compressed payloads for which there was no room.
    is_cut_short: bool,
    /// Due records that were taken and wait until there is room for their bytes.
    pub(super) unopened: VecDeque<Record>,
    /// The read on its way.
    pub(super) reading: Option<Reading>,
    tail: LogTail,
}

/// A read on its way.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// For how many records there was room.
    room: usize,
    /// Whether it waits for something to read.
    pub(super) waits: bool,
}

/// When the lane looks for due records and delayed messages.
pub(super) struct Schedule {
    due_at: Option<Instant>,
    /// When the lane last looked for due records.
    due_looked: Instant,
    /// When to look for delayed messages next.
    promote_at: Option<Instant>,
    /// When a hint last made the lane look.
    looked: Instant,
    next_poll: Instant,
    /// A look is on its way; it brings at most this many records.
    looking: Option<usize>,
    /// The last look for due records brought none.
    found_none: bool,
}

impl Intake {
    pub(super) fn new(progress: &Progress) -> Self {
        Self {
            opened_at: progress.frontier,
            more: true,
            bytes: 0,
            is_cut_short: false,
            unopened: VecDeque::new(),
            reading: None,
            tail: LogTail::default(),
        }
    }

    /// Whether a read is on its way that is answered at once.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some_and(|read| !read.waits)
    }
}

impl Schedule {
    pub(super) fn new(progress: &Progress, now: Instant) -> Self {
        Self {
            due_at: progress.next_due.map(|delay| now + delay),
            due_looked: now,
            promote_at: Some(now),
            looked: now,
            next_poll: now + SLOW_POLL,
            looking: None,
            found_none: false,
        }
    }

    pub(super) fn timer(&mut self, now: Instant, more: &mut bool) {
        if now >= self.next_poll {
            self.next_poll = now + SLOW_POLL;
            *more = true;
            (self.promote_at, self.due_at) = (Some(now), Some(now));
        }
    }
}

impl LaneState {
    /// How many more due records fit. If the bytes at hand are too many, one at most, and only if
    /// nothing else can go on: records that are held back may wait for it.
    fn due_room(&self) -> usize {
        let coming = self.coming();
        let at_hand = self.at_hand();
        if self.intake.bytes >= MAX_BYTES {
            return usize::from(at_hand + coming == 0).min(self.window.room());
        }
        self.window.room().saturating_sub(coming).min(self.limit().saturating_sub(at_hand + coming))
    }

    /// How many more records of the log fit. A look on its way does not count, or handlers would
    /// run dry; it counts while records go one by one, because a crash would blame both. Some
    /// places are kept for due records, for which the held-back ones wait.
    fn log_room(&self) -> usize {
        // Payloads that did not fit are read again when half of the bytes are free.
        let enough = if self.intake.is_cut_short { MAX_BYTES / 2 } else { MAX_BYTES };
        if self.intake.bytes >= enough {
            return 0;
        }
        let in_window = self.window.room().saturating_sub(self.coming() + KEPT_FOR_DUE);
        let coming = if self.suspects.any() { self.coming() } else { 0 };
        in_window.min(self.limit().saturating_sub(self.at_hand() + coming))
    }

    fn limit(&self) -> usize {
        if self.suspects.any() { 1 } else { self.rules.config.max_in_flight }
    }

    /// How many records may go out, or are out.
    fn at_hand(&self) -> usize {
        self.flow.ready() + self.flow.out() + self.intake.unopened.len()
    }

    /// How many due records the look on its way may bring.
    fn coming(&self) -> usize {
        self.schedule.looking.unwrap_or(0)
    }

    /// Reads on when half of the room is free: early enough to read while handlers work, late
    /// enough for large reads. True if a read begins that is answered at once.
    ///
    /// While records trickle in, the lane waits for the next one at the end of the log.
    pub(super) fn read_if_wanted(&mut self, now: Instant, actions: &mut Vec<LaneAction>) -> bool {
        let room = self.log_room();
        let is_half_free = room * 2 >= self.rules.config.max_in_flight || self.flow.ready() == 0;
        if self.intake.reading.is_some() || room == 0 || !is_half_free {
            return false;
        }
        let waits = self.would_wait(now);
        if !waits && !self.intake.more && !self.intake.tail.has_ended() {
            return false;
        }
        // A hint from now on may be about a record that this read does not see.
        self.intake.more = false;
        self.intake.is_cut_short = false;
        self.intake.tail.begin();
        self.intake.reading = Some(Reading { room, waits });
        let max = ReadLimit { records: room, bytes: MAX_BATCH_BYTES };
        actions.push(LaneAction::Read { after: self.window.position(), max, waits });
        !waits
    }

    /// Whether the log goes before the due records. While records go one by one, a look takes the
    /// only place: looks that find nothing must not keep the log from it for ever.
    pub(super) fn is_logs_turn(&self) -> bool {
        self.schedule.found_none && self.suspects.any()
    }

    /// Whether the next read would wait at the end of the log.
    pub(super) fn would_wait(&self, now: Instant) -> bool {
        self.intake.reading.is_none() && !self.intake.more && self.intake.tail.is_wanted(now)
    }

    /// Takes in the answer to a read.
    pub(super) fn read(
        &mut self,
        now: Instant,
        answer: Result<Option<Vec<Record>>>,
        actions: &mut Vec<LaneAction>,
    ) -> Result<()> {
        let Some(Reading { room, waits }) = self.intake.reading.take() else { return Ok(()) };
        let records = answer.map_err(|error| self.why(error))?;
        if records.as_ref().is_some_and(|records| !records.is_empty()) {
            self.intake.tail.came(now);
        }
        if waits {
            self.intake.tail.end(records.is_some(), now);
        }
        records.map_or(Ok(()), |records| self.received(now, room, records, actions))
    }

    /// A log that went back is opened again, unless the window is still where it was opened.
    fn why(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::WentBack || self.window.position() != self.intake.opened_at {
            return error;
        }
        let context = "the log has the number of the group's position twice: half of a step was applied, as \
                       Redis 7.0 does with a torn append-only file at its second start; see Durability::Synced";
        Error::new(ErrorKind::Corrupt, context).with_source(error)
    }

    /// Takes in records of the log, where there was room for `room`.
    fn received(
        &mut self,
        now: Instant,
        room: usize,
        records: Vec<Record>,
        actions: &mut Vec<LaneAction>,
    ) -> Result<()> {
        let bytes: usize = records.iter().map(|record| record.content.packed_len()).sum();
        // Fewer than asked for, and not because of their size: the log has no more.
        let largest = self.rules.max_payload + 16 * 1024;
        let was_cut = records.len() == room || bytes + largest > MAX_BATCH_BYTES;
        self.intake.more |= was_cut && !records.is_empty();
        let mut records = records.into_iter();
        let mut taken = Vec::new();
        while let Some(record) = records.next() {
            if self.intake.bytes >= MAX_BYTES && record.content.encoding != Encoding::Plain {
                // Decompressed they are larger than what was read: the rest is read again.
                self.intake.more = true;
                self.intake.is_cut_short = true;
                break;
            }
            let lost_before = self.window.lost();
            let offered = self.window.offer(&record);
            let count = self.window.lost() - lost_before;
            if count > 0 {
                self.rules.meter.lost.increment(count);
                actions.push(LaneAction::NoteLost { next: record.id.seq, count });
            }
            if offered == Offer::Deliver
                && let Some(record) = self.take_in(now, record, true)?
                && let Some(full) = line_up(&mut taken, record, records.len())
            {
                self.admit(full);
            }
        }
        self.admit(taken);
        actions.push(LaneAction::NoteRead(self.window.position()));
        Ok(())
    }

    fn admit(&mut self, records: Vec<Record>) {
        SharedRecord::all(records).for_each(|record| self.flow.admit(record));
    }

    /// Looks for due and delayed records whose time has come.
    pub(super) fn look_if_wanted(&mut self, now: Instant, actions: &mut Vec<LaneAction>) {
        if self.schedule.looking.is_some() {
            return;
        }
        let room = self.due_room();
        if room > 0 && self.schedule.due_at.take_if(|due| *due <= now).is_some() {
            self.schedule.looked = now;
            self.schedule.due_looked = now;
            // Room for all records that are known to be due and for some others, but no more:
            // places are kept free for them until they arrive.
            let limit = self.rules.config.max_in_flight;
            let known = self.retry_cache.ask(now, room.min((limit / 2).max(1)));
            let max = room.min(known.len().max(limit / 4).max(1));
            self.schedule.looking = Some(max);
            actions.push(LaneAction::TakeDue { max, known });
        } else if self.schedule.promote_at.take_if(|at| *at <= now).is_some() {
            self.schedule.looked = now;
            self.schedule.looking = Some(0);
            actions.push(LaneAction::Promote);
        }
    }

    /// Takes in the answer to a move of delayed messages.
    pub(super) fn promoted(&mut self, now: Instant, promoted: &Promoted) {
        self.schedule.looking = None;
        let next = promoted.next.map(|delay| now + delay);
        self.schedule.promote_at = sooner(self.schedule.promote_at, next);
        self.intake.more |= promoted.moved > 0;
    }

    /// Notes when the next record is due. While there is other work, due records gather.
    pub(super) fn note_next_due(&mut self, now: Instant, next: Option<Duration>) {
        let is_busy = self.flow.ready() + self.flow.out() > 0 || self.intake.is_reading() || self.intake.more;
        let looked = self.schedule.due_looked;
        let soonest = if is_busy { looked + DUE_EVERY } else { looked };
        let next = next.map(|delay| (now + delay).max(soonest));
        self.schedule.due_at = sooner(self.schedule.due_at, next);
    }

    /// Takes in due records.
    pub(super) fn take_due(&mut self, now: Instant, due: Due) -> Result<()> {
        self.schedule.looking = None;
        self.rules.meter.lost.increment(due.lost);
        if due.lost > 0 && self.rules.config.is_strict() {
            // Their keys are gone with them: only opening again tells which keys still wait.
            return Err(Error::new(ErrorKind::Unavailable, "a lossy trim removed records that were due"));
        }
        if due.records.is_empty() && due.next.is_none_or(|next| !next.is_zero()) {
            self.suspects.none_due();
        }
        self.schedule.found_none = due.records.is_empty();
        // If there was no room for all of them, the rest need not gather again.
        let was_cut = !due.records.is_empty() && due.next.is_some_and(|next| next.is_zero());
        for record in due.records {
            let known = self.retry_cache.take(record.id);
            let Some(record) = record.with(|| known) else {
                return Err(Error::new(ErrorKind::Internal, "a due record came without its content"));
            };
            if self.window.offer_due(&record) {
                self.intake.unopened.push_back(record);
            }
        }
        self.admit_due(now)?;
        self.retry_cache.answered(now);
        self.note_next_due(now, due.next);
        if was_cut {
            self.schedule.due_at = Some(now);
        }
        Ok(())
    }

    /// Admits due records for whose bytes there is room; the first one also without room, if
    /// nothing else can go on.
    pub(super) fn admit_due(&mut self, now: Instant) -> Result<()> {
        if self.intake.unopened.is_empty() {
            return Ok(());
        }
        let mut groups = Vec::new();
        let mut taken = Vec::new();
        while (self.intake.bytes < MAX_BYTES || self.flow.ready() + self.flow.out() + taken.len() == 0)
            && let Some(record) = self.intake.unopened.pop_front()
        {
            if let Some(record) = self.take_in(now, record, false)? {
                groups.extend(line_up(&mut taken, record, self.intake.unopened.len()));
            }
        }
        groups.push(taken);
        // From the end: then each comes before all records at hand, and its place need not be
        // searched.
        let records = groups.into_iter().rev().flat_map(|group| SharedRecord::all(group).rev());
        records.for_each(|record| self.flow.admit(record));
        Ok(())
    }

    /// Takes in a record of the window: settles it at once if its verdict is preset, else answers
    /// it, to be handed out.
    fn take_in(&mut self, now: Instant, mut record: Record, from_log: bool) -> Result<Option<Record>> {
        if let Some(verdict) = self.preset(&mut record, from_log) {
            self.settle_unseen(now, &record, verdict)?;
            return Ok(None);
        }
        self.intake.bytes += record.content.packed_len();
        Ok(Some(record))
    }

    /// The preset verdict on a record that no handler need see: it was given before, the record is
    /// poison, or it cannot be decompressed. Decompresses it.
    fn preset(&mut self, record: &mut Record, from_log: bool) -> Option<Verdict> {
        let key = (record.id, record.attempt);
        let carried = &mut self.carried;
        let waiter = if carried.waiters.is_empty() { None } else { carried.waiters.remove(&key) };
        if !carried.verdicts.is_empty()
            && let Some(verdict) = carried.verdicts.remove(&key)
        {
            self.verdicts.await_stored(waiter);
            return Some(verdict);
        }
        let poison = if from_log { self.poison.take() } else { None };
        let reason = poison
            .or_else(|| self.rules.config.retry.poison_reason(record.crashes))
            .or_else(|| payload::open(&mut record.content).err().map(|error| error.to_string()));
        reason.map(Verdict::dead)
    }

    /// Settles a record that is not handed out; its key waits or goes on as if it had been.
    fn settle_unseen(&mut self, now: Instant, record: &Record, verdict: Verdict) -> Result<()> {
        let key = record.content.key.as_ref();
        let seq = record.id.seq;
        match verdict {
            Verdict::Ack => self.flow.clear_due(key, seq),
            Verdict::Retry { .. } | Verdict::Dead { .. } => self.flow.note_due(key, seq),
        }
        self.settle(now, record, verdict)
    }

    /// Whether a hint would bring nothing new: the lane is paused, or waits at the end of the log
    /// and looks for due records soon anyway. A hint that it does not take now stays.
    pub(super) fn is_deaf(&self) -> bool {
        let waits = self.intake.reading.is_some_and(|read| read.waits)
            && self.schedule.promote_at.is_some_and(|at| at <= self.schedule.looked + LOOK_EVERY);
        self.inputs.paused || waits
    }

    pub(super) fn hinted(&mut self) {
        self.intake.more |= self.intake.reading.is_none_or(|read| !read.waits);
        // A delayed message or a replayed dead letter looks like an append. Not for each hint:
        // under load there is one per append.
        let soon = Some(self.schedule.looked + LOOK_EVERY);
        self.schedule.promote_at = sooner(self.schedule.promote_at, soon);
        self.schedule.due_at = sooner(self.schedule.due_at, soon);
    }

    /// When the running lane must be woken, if nothing happens before.
    pub(super) fn next_timer(&self) -> Instant {
        let can_look = self.may_take() && self.due_room() > 0 && self.schedule.looking.is_none();
        let looks = [self.schedule.due_at, self.schedule.promote_at];
        let looks = looks.into_iter().flatten().filter(|_| can_look);
        let commit = self.verdicts.commit_at(self.rules.config.commit_interval);
        looks.chain(commit).fold(self.schedule.next_poll, Instant::min)
    }
}

/// Adds a record to those that share an allocation, of which at most `rest` more come; answers a
/// full one.
fn line_up(taken: &mut Vec<Record>, record: Record, rest: usize) -> Option<Vec<Record>> {
    let full = (taken.len() == MAX_SHARED).then(|| std::mem::take(taken));
    if taken.is_empty() {
        taken.reserve_exact(MAX_SHARED.min(1 + rest));
    }
    taken.push(record);
    full
}

fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
