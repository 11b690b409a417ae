//! [`follow`]: one session of a change stream, from login to its end. Only sequences what the pure
//! parts decide.

use super::Reader;
use super::assembler::{Assembler, Output};
use super::catalog;
use super::config::{Config, Origin, SnapshotMode};
use super::connection::{Connection, Frame, MAX_FRAME};
use super::copying::Copying;
use super::decode::{Beginning, Message as Decoded};
use super::history;
use super::position::{Lsn, Position};
use super::prepare::{self, Primary};
use super::publication;
use super::server_error::ServerError;
use super::slot;
use super::snapshot::Copier;
use super::value::Types;
use super::watch::{Seen, Watch};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::pump::{Batch, Pump};
use crate::record::RETRY;
use crate::sink::Sink;
use crate::state::{Allowed, Keep, State};
use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the server is told how far it may forget, at most and at least.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// A server that says nothing for so long is gone: it sends a sign of life every 30 s by default.
const SILENCE: Duration = Duration::from_secs(120);
/// From the Unix epoch to PostgreSQL's.
const EPOCH: Duration = Duration::from_secs(946_684_800);

/// Reads the source until something ends it, or all is copied of one that only copies.
pub(super) async fn follow<S: Sink, K: Keep>(reader: &Reader<'_, S, K>, state: &mut State) -> Result<()> {
    let Reader { config, sink, progress, .. } = reader;
    let mut primary = prepare::primary(config, reader.epoch).await?;
    let marks = history::check(&mut primary, state, &sink.marks().await?).await?;
    publication::see_to(config, &mut primary, state).await?;
    let limit = history::limit(&mut primary, state, &marks).await?;
    slot::find(config, reader.epoch, &mut primary, state, &marks).await?;
    slot::start(config, &mut primary).await?;
    slot::own(config, &mut primary, reader.keep, state, (limit, &marks)).await?;
    progress.streaming();
    progress.limit_slot(config.wal.bytes);
    let mut session = Session::new(reader, primary, marks, state);
    session.tell_resync()?;
    session.run().await
}

type Appending = FuturesUnordered<BoxFuture<'static, (usize, usize, Result<()>)>>;

/// A state that is being saved, and what became of it.
type Saving<'a> = BoxFuture<'a, (State, Result<()>)>;

pub(super) struct Session<'a, S, K> {
    pub(super) config: &'a Config,
    pub(super) sink: Arc<S>,
    keep: &'a K,
    /// What is saved already.
    pub(super) state: &'a mut State,
    saving: Option<Saving<'a>>,
    /// When the state was saved last, or that was tried.
    saved: Instant,
    /// The start of this history, as all of its positions name it.
    pub(super) origin: Position,
    watch: Watch,
    stream: Connection,
    pub(super) assembler: Assembler,
    pub(super) pump: Pump<Position, Lsn>,
    appending: Appending,
    pub(super) copying: Copying<'a>,
    pub(super) progress: &'a Progress,
    /// The transaction of the pump that holds the controls of a resync.
    pub(super) telling: Option<u64>,
    /// When the server was told last, and what.
    told: (Instant, Option<Lsn>),
    pub(super) heard: Instant,
    outputs: Vec<Output>,
    /// The newest change that some partition had when this session began.
    known: Option<Position>,
    /// The newest change that this session read.
    pub(super) last: Option<Position>,
    /// Every transaction that was committed before it was told.
    pub(super) place: Lsn,
}

impl<'a, S: Sink, K: Keep> Session<'a, S, K> {
    fn new(
        reader: &Reader<'a, S, K>,
        primary: Primary,
        marks: Vec<Option<Position>>,
        state: &'a mut State,
    ) -> Self {
        let Reader { config, sink, keep, progress, .. } = reader;
        let types = Types::new(config.exact_numbers);
        let assembler = Assembler::new(primary.system, primary.timeline, config.mapping.clone(), types);
        let (system, timeline) = (primary.system, primary.timeline);
        let held = marks.iter().map(|mark| mark.map_or(0, |mark| mark.group)).collect();
        let copier = Copier::new(state.copy.clone(), held);
        let mut copying = Copying::new(copier, &primary, config.application(reader.epoch), reader.control);
        progress.copying(copying.tables());
        Self {
            copying,
            origin: Position { system, timeline, commit: Lsn::default(), index: 0, group: 0 },
            place: Lsn::default(),
            assembler: assembler
                .only(config.tables.iter().cloned())
                .skipping_poison(config.policy.dead_topic.is_some())
                .skipping_origins(config.origin == Origin::None)
                .naming_shapes(config.schema_header)
                .taking(config.messages.clone()),
            known: marks.iter().flatten().max().copied(),
            last: None,
            pump: Pump::new(config.limits.clone(), marks),
            watch: Watch::new(primary.queries, config.slot(), config.heartbeat),
            stream: primary.stream,
            appending: FuturesUnordered::new(),
            state,
            saving: None,
            saved: Instant::now(),
            telling: None,
            told: (Instant::now(), None),
            heard: Instant::now(),
            outputs: Vec::new(),
            config,
            sink: sink.clone(),
            keep,
            progress,
        }
    }

    async fn run(mut self) -> Result<()> {
        loop {
            if self.is_growing() && self.pump.buffered_bytes() == 0 {
                self.grow().await?;
            }
            self.copy();
            if self.is_ending() && self.pump.is_idle() && self.saving.is_none() {
                return self.finish().await;
            }
            self.watch.look();
            let (wake, may_read) = (self.wake(), self.may_read());
            let (control, ended) = self.copying.waits_for();
            tokio::select! {
                Some((partition, records, stored)) = self.appending.next() => {
                    stored?;
                    self.pump.stored(partition);
                    self.progress.appended(records);
                    self.progress.buffered(self.pump.buffered_bytes(), self.pump.is_full());
                }
                (reader, answer) = done(&mut self.copying.reading) => self.answered(reader, answer)?,
                (queries, seen) = done(&mut self.watch.looking) => {
                    self.watch.looked(queries);
                    self.seen(seen)?;
                }
                struck_off = done(&mut self.copying.ending) => self.copying.struck_off(struck_off),
                () = Copying::asked(control, ended), if self.copying.may_take() => {}
                (state, saved) = done(&mut self.saving) => {
                    self.saving = None;
                    saved?;
                    self.allowed(state);
                    self.confirm(true).await?;
                }
                frame = self.stream.frame(), if may_read => {
                    self.take(frame?).await?;
                }
                () = tokio::time::sleep_until(wake.into()) => {
                    if self.heard.elapsed() >= SILENCE && may_read {
                        return Err(Error::unavailable("the server is silent"));
                    }
                }
            }
            let is_drained = self.drain().await?;
            while let Some(batch) = self.pump.poll(Instant::now(), is_drained) {
                self.append(batch);
            }
            self.copied();
            if !self.pump.is_open() {
                self.passed(self.place);
            }
            self.allow();
            self.confirm(false).await?;
        }
    }

    /// Whether the stream may be read: there is room, and nothing needs it to stand still.
    fn may_read(&self) -> bool {
        let is_over = self.is_ending() && !self.pump.is_open();
        !self.pump.is_full() && !self.is_growing() && !self.copying.copier.is_reading() && !is_over
    }

    /// Whether all is copied of a source that only copies: what was read is still to be stored.
    fn is_ending(&self) -> bool {
        let is_told = self.telling.is_none() && self.state.resync.is_none();
        self.config.snapshot == SnapshotMode::Only && is_told && self.copying.is_unasked()
    }

    /// Saves that all is copied. The slot is of no use any more.
    async fn finish(self) -> Result<()> {
        let copy = self.copying.copier.state().clone();
        let next = State { done: true, renew: true, allowed: None, copy, ..self.state.clone() };
        self.keep.save(&next).await?;
        *self.state = next;
        Ok(())
    }

    /// Whether new partitions wait to be taken in. That needs a place in the stream up to which
    /// everything is known to be stored: the newest change, once this session is past all marks.
    pub(super) fn is_growing(&self) -> bool {
        self.sink.has_grown()
            && self.copying.copier.is_quiet()
            && self.last.is_some()
            && self.last >= self.known
    }

    async fn grow(&mut self) -> Result<()> {
        let Some(last) = self.last else { return Ok(()) };
        let partitions = self.sink.grow(last.to_bytes()).await?;
        self.pump.grow(partitions as usize, &last);
        self.copying.copier.grow(partitions as usize);
        Ok(())
    }

    /// What became of the slot while it is read.
    fn seen(&self, seen: Seen) -> Result<()> {
        let Some(slot) = seen? else { return Ok(()) };
        self.progress.kept_by_slot(slot.retained);
        self.progress.behind(slot.behind);
        if let Some(why) = self.config.wal.verdict(slot.retained) {
            return Err(Error::unavailable(format!("{why}: the slot is given up")));
        }
        let ends_soon = (slot.wal_status == "unreserved").then(|| {
            let kept = slot.retained;
            format!(
                "the server removes the log of the slot soon (max_slot_wal_keep_size): it keeps {kept} bytes"
            )
        });
        let warning = ends_soon.or_else(|| self.config.wal.warning(slot.retained));
        if let Some(warning) = &warning {
            tracing::warn!(source = self.config.name, "{warning}");
        }
        self.progress.warn(warning);
        Ok(())
    }

    /// When something is due although nothing comes.
    fn wake(&self) -> Instant {
        let (told, confirmed) = self.told;
        let confirm = if self.confirmable() > confirmed { CONFIRM_EVERY } else { STATUS_EVERY };
        let save = self.may_save().then(|| self.saved + CONFIRM_EVERY);
        let ask = self.may_ask().then_some(self.copying.not_before);
        let look = self.watch.looking.is_none().then_some(self.watch.due);
        let due = [self.pump.due(), save, ask, look];
        due.into_iter().flatten().fold(told + confirm, Instant::min)
    }

    /// Takes what was read from the socket already; false if more of it is certain to follow.
    async fn drain(&mut self) -> Result<bool> {
        while self.may_read() {
            match self.stream.ready_frame()? {
                Some(frame) => self.take(frame).await?,
                None => return Ok(!self.pump.is_open() && self.stream.is_drained()),
            }
        }
        // Only what is stored makes room.
        Ok(true)
    }

    async fn take(&mut self, frame: Frame) -> Result<()> {
        self.heard = Instant::now();
        match frame.tag {
            b'd' => self.data(frame.body, frame.cut_from).await,
            b'E' => {
                let error = ServerError::read(&frame.body);
                Err(Error::unavailable(format!("the server ended the stream: {}", error.message))
                    .with_source(error))
            }
            b'c' => Err(Error::unavailable("the server ended the stream")),
            _ => Ok(()),
        }
    }

    async fn data(&mut self, mut body: Bytes, cut_from: Option<usize>) -> Result<()> {
        let cut = || Error::corrupt("the change stream holds a message that is cut off");
        match body.try_get_u8().map_err(|_| cut())? {
            b'w' if body.len() >= 24 => {
                body.advance(24);
                match cut_from {
                    None => self.message(&Decoded::read(&body)?).await,
                    Some(length) => {
                        let (beginning, now) = (Beginning::read(&body)?, Progress::now_ms());
                        self.read(|assembler, outputs| {
                            assembler.too_long(&beginning, (length, MAX_FRAME), now, outputs)
                        })
                    }
                }
            }
            b'k' if body.len() >= 17 => {
                let sent = Lsn(body.get_u64());
                if !self.pump.is_open() {
                    self.passed(sent);
                }
                self.pump.sent_upto(sent);
                body.advance(8);
                if body.get_u8() == 1 { self.confirm(true).await } else { Ok(()) }
            }
            _ => Err(cut()),
        }
    }

    async fn message(&mut self, message: &Decoded) -> Result<()> {
        if let Decoded::Relation(relation) = message {
            let needs = self.assembler.needs(relation);
            if !needs.types.is_empty() {
                for (oid, kind) in catalog::types(self.watch.queries().await, &needs.types).await? {
                    self.assembler.learn(oid, kind);
                }
            }
            let primary = match needs.primary {
                true => Some(catalog::primary(self.watch.queries().await, relation.id).await?),
                false => None,
            };
            return self.assembler.relation(relation, primary.as_deref());
        }
        self.read(|assembler, outputs| assembler.read(message, Progress::now_ms(), outputs))
    }

    /// Reads something, and takes what it told.
    fn read(&mut self, read: impl FnOnce(&mut Assembler, &mut Vec<Output>) -> Result<()>) -> Result<()> {
        let mut outputs = std::mem::take(&mut self.outputs);
        let read = read(&mut self.assembler, &mut outputs);
        let taken = outputs.drain(..).try_for_each(|output| self.output(output));
        self.outputs = outputs;
        read.and(taken)
    }

    fn output(&mut self, output: Output) -> Result<()> {
        match output {
            Output::Begin { commit, xid } => {
                self.passed(commit);
                self.copying.copier.begin(xid);
                self.pump.begin();
            }
            Output::Record(record) => self.record(*record)?,
            Output::Commit(end) => {
                self.pump.commit(end);
                self.place = self.place.max(end);
            }
            Output::Heartbeat(sent_ms) => self.progress.heard_heartbeat(sent_ms),
        }
        Ok(())
    }

    fn append(&mut self, batch: Batch<Position>) {
        let sink = self.sink.clone();
        self.appending.push(Box::pin(async move {
            let Batch { partition, messages, upto } = batch;
            let upto = upto.to_bytes();
            let (number, records) =
                (u32::try_from(partition).expect("partitions are counted in u32"), messages.len());
            loop {
                // The mark tells whether a try of unknown outcome has happened.
                match sink.append(number, messages.clone(), upto.clone()).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(RETRY).await,
                    done => return (partition, records, done.map(drop)),
                }
            }
        }));
    }

    /// Up to where the saved state allows the server to forget.
    fn limit(&self) -> Lsn {
        self.state.allowed.map(|allowed| Lsn(allowed.lsn)).unwrap_or_default()
    }

    /// What the server may be told: it is stored, and the saved state allows it.
    fn confirmable(&self) -> Option<Lsn> {
        self.pump.confirmed().map(|confirmed| confirmed.min(self.limit()))
    }

    /// Whether more is stored than the saved state allows.
    fn may_save(&self) -> bool {
        self.saving.is_none() && self.pump.confirmed() > Some(self.limit())
    }

    /// Begins to save that the server may forget what is stored by now. It is told only afterwards:
    /// a slot that stands behind what was ever saved is not the one that was read. What the copier
    /// waits for is saved at once.
    fn allow(&mut self) {
        let is_due = self.may_save() && self.saved.elapsed() >= CONFIRM_EVERY;
        let copy = self.copying.copier.unsaved().filter(|_| self.saving.is_none());
        let is_told = self.saving.is_none() && self.telling.is_some_and(|txn| self.pump.is_stored(txn));
        if !is_due && copy.is_none() && !is_told {
            return;
        }
        self.saved = Instant::now();
        let mut next = self.state.clone();
        next.copy = self.copying.copier.state().clone();
        if is_told {
            (self.telling, next.resync) = (None, None);
        }
        if let Some(Lsn(lsn)) = self.pump.confirmed().filter(|confirmed| *confirmed > self.limit()) {
            next.allowed = Some(Allowed { timeline: self.origin.timeline, lsn });
        }
        let keep = self.keep;
        self.saving = Some(Box::pin(async move {
            loop {
                match keep.save(&next).await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(RETRY).await,
                    saved => return (next, saved),
                }
            }
        }));
    }

    /// A state is saved.
    fn allowed(&mut self, state: State) {
        self.copying.copier.saved(state.copy.clone());
        *self.state = state;
    }

    /// Tells the server what it may forget, if there is something new to tell or it asks.
    async fn confirm(&mut self, is_asked: bool) -> Result<()> {
        let confirmed = self.confirmable();
        let elapsed = self.told.0.elapsed();
        let is_due = elapsed >= STATUS_EVERY || (confirmed > self.told.1 && elapsed >= CONFIRM_EVERY);
        if !is_asked && !is_due {
            return Ok(());
        }
        let lsn = confirmed.unwrap_or_default().0.to_be_bytes();
        let now = SystemTime::now().duration_since(UNIX_EPOCH + EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX).to_be_bytes();
        let status = [&b"r"[..], &lsn, &lsn, &lsn, &now, &[0]].concat();
        self.stream.send(&status).await?;
        self.told = (Instant::now(), confirmed);
        self.progress.confirmed(confirmed.map(|lsn| lsn.to_string()));
        Ok(())
    }
}

/// Waits for what is under way; forever if nothing is.
async fn done<T>(under_way: &mut Option<BoxFuture<'_, T>>) -> T {
    match under_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
