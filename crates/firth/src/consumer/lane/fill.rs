//! Bringing records into a lane: from the log, from what is due, from what has ripened.

use super::Lane;
use super::session::Session;
use crate::company::{COMPANY, Companion};
use crate::error::{Error, ErrorKind, Result};
use crate::payload;
use firth_engine::facet::{Due, Max, Pending, Ripened, TakeDue};
use firth_engine::limits::{MAX_BATCH_BYTES, MAX_READ};
use firth_engine::{Encoding, Offer, Progress, Record, RecordId, Verdict};
use futures_util::future::BoxFuture;
use futures_util::future::try_join_all;
use std::time::Duration;
use tokio::time::Instant;

/// A read that is on its way.
pub(super) struct InRead {
    /// For how many records there was room.
    pub(super) room: usize,
    /// Whether it waits for something to read.
    pub(super) waits: bool,
    pub(super) answer: BoxFuture<'static, Result<Option<Vec<Record>>>>,
}

/// A look for due or delayed records that is on its way.
pub(super) struct InLook {
    /// How many records it may bring in.
    pub(super) room: usize,
    pub(super) answer: BoxFuture<'static, Result<Looked>>,
}

pub(super) enum Looked {
    Due(Due),
    Ripe(Ripened),
}

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
    /// How many more due records may be brought in now. When the bytes at hand are too many, one at most, and only if nothing else can go on:
    /// those that are held back may wait for it.
    pub(super) fn room(&self) -> usize {
        let (coming, at_hand) = (self.coming(), self.at_hand());
        if self.bytes_at_hand >= MAX_AT_HAND {
            return usize::from(at_hand + coming == 0).min(self.window.room());
        }
        self.window.room().saturating_sub(coming).min(self.limit().saturating_sub(at_hand + coming))
    }

    /// How many more records of the log may be brought in now, whatever a look that is on its way will bring: handlers would run dry. Not where
    /// they go one by one: if the owner vanished, both would be blamed. Some places are kept for due records: they are what those that are held
    /// back wait for.
    fn log_room(&self) -> usize {
        // What was left for want of room is read again when there is much of it.
        let enough = if self.is_cut_short { MAX_AT_HAND / 2 } else { MAX_AT_HAND };
        if self.bytes_at_hand >= enough {
            return 0;
        }
        let in_window = self.window.room().saturating_sub(self.coming() + KEPT_FOR_DUE);
        let coming = if self.suspects.any() { self.coming() } else { 0 };
        in_window.min(self.limit().saturating_sub(self.at_hand() + coming))
    }

    fn limit(&self) -> usize {
        if self.suspects.any() { 1 } else { self.lane.common.config.max_in_flight }
    }

    /// How many records may go out, or are out.
    fn at_hand(&self) -> usize {
        self.flow.ready() + self.flow.out() + self.unopened.len()
    }

    /// How many due records a look may bring.
    fn coming(&self) -> usize {
        self.in_look.as_ref().map_or(0, |look| look.room)
    }

    /// Reads on when half of the room is free: early enough to read while handlers work, late enough for large reads. The answer is
    /// awaited beside everything else, and brings the lane back here. True if a read begins that is answered at once.
    ///
    /// While records trickle in, the lane waits for the next one at the end of the log.
    pub(super) fn read_if_wanted(&mut self) -> bool {
        let room = self.log_room();
        let half = room * 2 >= self.lane.common.config.max_in_flight || self.flow.ready() == 0;
        if self.in_read.is_some() || room == 0 || !half {
            return false;
        }
        let waits = self.would_wait();
        if !waits && !self.more && !self.tail.has_ended() {
            return false;
        }
        let (engine, at, after) =
            (self.lane.common.engine.clone(), self.lane.at.clone(), self.window.position());
        let max = Max { records: room, bytes: MAX_BATCH_BYTES };
        // A hint that comes from now on may be about something that this read does not see.
        (self.more, self.is_cut_short) = (false, false);
        self.tail.begin();
        let answer = async move {
            if waits {
                engine.tail(&at, after, max).await
            } else {
                engine.read(&at, after, max).await.map(Some)
            }
        };
        self.in_read = Some(InRead { room, waits, answer: Box::pin(answer) });
        !waits
    }

    /// Whether the next read would wait at the end of the log.
    pub(super) fn would_wait(&self) -> bool {
        self.in_read.is_none() && !self.more && self.tail.is_wanted(Instant::now())
    }

    /// Takes in the answer to a read.
    pub(super) fn answered(
        &mut self,
        room: usize,
        waited: bool,
        answer: Result<Option<Vec<Record>>>,
    ) -> Result<()> {
        let (records, now) = (answer.map_err(|error| self.why(error))?, Instant::now());
        if records.as_ref().is_some_and(|records| !records.is_empty()) {
            self.tail.came(now);
        }
        if waited {
            self.tail.end(records.is_some(), now);
        }
        records.map_or(Ok(()), |records| self.received(room, records))
    }

    /// Looks for due and delayed records whose time has come. The answer is awaited beside everything else.
    pub(super) fn look_if_wanted(&mut self) {
        if self.in_look.is_some() {
            return;
        }
        let (now, room) = (Instant::now(), self.room());
        let (engine, at) = (self.lane.common.engine.clone(), self.lane.at.clone());
        if room > 0 && self.due_at.take_if(|due| *due <= now).is_some() {
            (self.looked, self.due_looked) = (now, now);
            // Room for all that is known to be due, and for some that is not, but no more: places are kept free for it meanwhile.
            let limit = self.lane.common.config.max_in_flight;
            let known = self.failed.ask(now, room.min((limit / 2).max(1)));
            let max = room.min(known.len().max(limit / 4).max(1));
            let (group, hold) = (self.lane.common.group.clone(), self.lane.held.hold.clone());
            let answer = async move {
                engine.due(&at, &group, &hold, TakeDue { max, known: &known }).await.map(Looked::Due)
            };
            self.in_look = Some(InLook { room: max, answer: Box::pin(answer) });
        } else if self.ripen_at.take_if(|ripe| *ripe <= now).is_some() {
            self.looked = now;
            let answer = async move { engine.ripen(&at, RIPEN).await.map(Looked::Ripe) };
            self.in_look = Some(InLook { room: 0, answer: Box::pin(answer) });
        }
    }

    /// Takes in the answer to a look.
    pub(super) fn looked(&mut self, looked: Looked) -> Result<()> {
        match looked {
            Looked::Due(due) => self.take_due(due),
            Looked::Ripe(ripened) => {
                let next = ripened.next.map(|delay| Instant::now() + delay);
                self.ripen_at = sooner(self.ripen_at, next);
                self.more |= ripened.moved > 0;
                Ok(())
            }
        }
    }

    /// Notes when the next record is due. While there is other work, due records gather.
    pub(super) fn note_next_due(&mut self, next: Option<Duration>) {
        let reading = self.in_read.as_ref().is_some_and(|read| !read.waits);
        let busy = self.flow.ready() + self.flow.out() > 0 || reading || self.more;
        let soonest = busy.then(|| self.due_looked + DUE_EVERY);
        let next = next.map(|delay| (Instant::now() + delay).max(soonest.unwrap_or(self.due_looked)));
        self.due_at = sooner(self.due_at, next);
    }

    fn take_due(&mut self, due: Due) -> Result<()> {
        let common = &self.lane.common;
        common.meter.lost.increment(due.lost);
        if due.lost > 0 && common.config.is_strict() {
            // Whose they were is gone with them: only a fresh look tells which keys still wait.
            return Err(Error::new(ErrorKind::Unavailable, "a lossy trim removed records that were due"));
        }
        if due.records.is_empty() && due.next.is_none_or(|next| !next.is_zero()) {
            self.suspects.none_due();
        }
        // There was no room for all of them: what has gathered need not gather again.
        let was_cut = !due.records.is_empty() && due.next.is_some_and(|next| next.is_zero());
        for record in due.records {
            let known = self.failed.take(record.id);
            let Some(record) = record.with(|| known) else {
                return Err(Error::new(ErrorKind::Internal, "a due record came without its content"));
            };
            if self.window.offer_due(&record) {
                self.unopened.push_back(record);
            }
        }
        self.open_due()?;
        self.failed.answered(Instant::now());
        self.note_next_due(due.next);
        if was_cut {
            self.due_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Takes in due records for whose bytes there is room; and, whatever their bytes, if nothing else can go on.
    pub(super) fn open_due(&mut self) -> Result<()> {
        let (mut companies, mut taken) = (Vec::new(), Vec::new());
        while (self.bytes_at_hand < MAX_AT_HAND || self.flow.ready() + self.flow.out() + taken.len() == 0)
            && let Some(record) = self.unopened.pop_front()
        {
            if let Some(record) = self.take_in(record, false)? {
                companies.extend(line_up(&mut taken, record, self.unopened.len()));
            }
        }
        companies.push(taken);
        // From the end: then each comes before all that are at hand, and its place need not be looked for.
        let records = companies.into_iter().rev().flat_map(|company| Companion::all(company).rev());
        records.for_each(|record| self.flow.admit(record));
        Ok(())
    }

    /// Takes in what was read, where there was room for `room` records.
    fn received(&mut self, room: usize, records: Vec<Record>) -> Result<()> {
        let bytes: usize = records.iter().map(|record| record.content.packed_len()).sum();
        // Fewer than asked for, and not because of their size: that was all.
        let largest = self.lane.common.max_payload + 16 * 1024;
        let was_cut = records.len() == room || bytes + largest > MAX_BATCH_BYTES;
        self.more |= was_cut && !records.is_empty();
        let (mut records, mut taken) = (records.into_iter(), Vec::new());
        while let Some(record) = records.next() {
            if self.bytes_at_hand >= MAX_AT_HAND && record.content.encoding != Encoding::Plain {
                // Opened, they are larger than what was read: the rest is read again.
                (self.more, self.is_cut_short) = (true, true);
                break;
            }
            let lost = self.window.lost();
            let offered = self.window.offer(&record);
            self.note_lost(&record, self.window.lost() - lost);
            if offered == Offer::Deliver
                && let Some(record) = self.take_in(record, true)?
                && let Some(company) = line_up(&mut taken, record, records.len())
            {
                self.admit(company);
            }
        }
        self.admit(taken);
        self.lane.common.losses.read(self.lane.at.index, self.window.position());
        Ok(())
    }

    /// A log that went back is opened again, unless that is what was just done.
    fn why(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::WentBack || self.window.position() != self.opened_at {
            return error;
        }
        let context = "the log has the number of the group's position twice: half of a step was applied, as \
                       Redis 7.0 does with a torn append-only file at its second start; see Durability::Synced";
        Error::new(ErrorKind::Corrupt, context).with_source(error)
    }

    /// A lossy trim has removed so many records before this one.
    fn note_lost(&self, next: &Record, count: u64) {
        if count > 0 {
            self.lane.common.meter.lost.increment(count);
            self.lane.common.losses.note(self.lane.at.index, next.id.seq, count);
        }
    }

    fn admit(&mut self, company: Vec<Record>) {
        Companion::all(company).for_each(|record| self.flow.admit(record));
    }

    /// A record that is in the window now: settled at once if its verdict is known, else it may be handed out.
    fn take_in(&mut self, mut record: Record, from_log: bool) -> Result<Option<Record>> {
        if let Some(verdict) = self.foregone(&mut record, from_log) {
            self.settle_unseen(&record, verdict)?;
            return Ok(None);
        }
        self.bytes_at_hand += record.content.packed_len();
        Ok(Some(record))
    }

    /// The verdict on a record that no handler need see: it was given before, it took too many owners down, or it cannot be opened. Opens it.
    fn foregone(&mut self, record: &mut Record, from_log: bool) -> Option<Verdict> {
        let key = (record.id, record.attempt);
        let waiter = if self.waiting.is_empty() { None } else { self.waiting.remove(&key) };
        if !self.known.is_empty()
            && let Some(verdict) = self.known.remove(&key)
        {
            self.waiters.extend(waiter);
            return Some(verdict);
        }
        let condemned = if from_log { self.condemned.take() } else { None };
        let hopeless = condemned
            .or_else(|| self.lane.common.config.retry.condemns(record.crashes))
            .or_else(|| payload::open(&mut record.content).err().map(|error| error.to_string()));
        hopeless.map(|reason| Verdict::Dead { reason: reason.into() })
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

    /// A new owner must know which due records a vanished one had, and with strict ordering which keys
    /// wait for a retry. Content kept aside waits without holding anything back.
    pub(super) async fn learn_due(&mut self) -> Result<()> {
        let common = self.lane.common.clone();
        let (is_strict, isolates) = (common.config.is_strict(), common.config.retry.max_crashes > 0);
        if !is_strict && !isolates {
            return Ok(());
        }
        let mut after = RecordId::ZERO;
        loop {
            let page = common.engine.pending(self.at(), &common.group, after, MAX_READ).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            let is_suspect =
                |due: &&Pending| isolates && due.crashes > 0 && due.due_in.is_some_and(|wait| wait.is_zero());
            self.suspects.add_due(page.iter().filter(is_suspect).map(|due| due.id));
            let in_log = page.iter().filter(|due| is_strict && !due.kept).map(|due| due.id);
            let in_log: Vec<RecordId> = in_log.collect();
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

/// Notes a loss if the log lost what this consumer has read of it, in a crash or a failover. A consumer
/// that tells others of events must know: numbers that it has told are given again.
pub(super) async fn look_back(lane: &Lane, progress: &Progress) -> Result<()> {
    let (common, at) = (&lane.common, &lane.at);
    let Some(read) = common.losses.last_read(at.index) else { return Ok(()) };
    match common.engine.read(at, read, Max::records(1)).await {
        Err(error) if error.kind() == ErrorKind::WentBack => {
            tracing::warn!(%error, partition = %at, "records that were read are lost");
            let count = read.seq.saturating_sub(progress.last.seq).max(1);
            common.meter.lost.increment(count);
            common.losses.went_back(at.index, progress.frontier.seq + 1, count);
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// Puts a record to those that may be handed out, of which at most so many more come; a whole company goes on.
fn line_up(company: &mut Vec<Record>, record: Record, rest: usize) -> Option<Vec<Record>> {
    let whole = (company.len() == COMPANY).then(|| std::mem::take(company));
    if company.is_empty() {
        company.reserve_exact(COMPANY.min(1 + rest));
    }
    company.push(record);
    whole
}

fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
