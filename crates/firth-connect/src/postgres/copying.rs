//! The part of a session that copies rows: reads what the [`Copier`] wants and hands over what is
//! due. It decides nothing.

use super::config::qualified;
use super::decode::Tuple;
use super::position::{Lsn, Position};
use super::prepare::Primary;
use super::shape::Shape;
use super::snapshot::read::{Answer, RawChunk, TableReader, is_passing};
use super::snapshot::{Chunk, Copier, Group, ReadRow, Wanted};
use super::stream::Session;
use super::target::Host;
use crate::control::SourceControl;
use crate::copy_state::{RowKey, TableCopy};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Progress, SnapshotProgress};
use crate::pump::Change;
use crate::record::{message, size_of};
use crate::sink::Sink;
use crate::state::Keep;
use firth_router::event::{Event, Operation};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between tries of what failed for a passing reason.
const RETRY: Duration = Duration::from_millis(500);
/// Between looks while a transaction hides changes that the stream told already.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Tries in a row, before the session ends with the reason.
const MAX_TRIES: u32 = 10;

type Reading<'a> = BoxFuture<'a, (Option<TableReader<'a>>, Result<Answer>)>;

/// The reading side of a copy.
pub(super) struct Copying<'a> {
    pub(super) copier: Copier,
    host: Host,
    version: u32,
    application: String,
    /// The idle session for rows.
    reader: Option<TableReader<'a>>,
    pub(super) reading: Option<Reading<'a>>,
    /// No sooner than this something is asked again.
    pub(super) not_before: Instant,
    failures: u32,
    control: &'a SourceControl,
    /// A copy that an operator asked for is being struck off.
    pub(super) ending: Option<BoxFuture<'a, (u64, firth::Result<()>)>>,
    /// The last one that was.
    ended: u64,
    /// What operators see.
    tables: Vec<SnapshotProgress>,
    /// The shape of the chunk under way, if records name that.
    shape: Option<Arc<str>>,
    /// The transaction of the pump that holds the groups on their way.
    under_way: Option<u64>,
}

impl<'a> Copying<'a> {
    pub(super) fn new(
        copier: Copier,
        primary: &Primary,
        application: String,
        control: &'a SourceControl,
    ) -> Self {
        Self {
            copier,
            host: primary.host.clone(),
            version: primary.version,
            application,
            reader: None,
            reading: None,
            not_before: Instant::now(),
            failures: 0,
            tables: Vec::new(),
            control,
            ending: None,
            ended: 0,
            under_way: None,
            shape: None,
        }
    }

    /// Whether requests of operators are looked at: one after the other.
    pub(super) fn may_take(&self) -> bool {
        self.copier.is_done() && self.ending.is_none()
    }

    /// Whether everything is copied that anyone asked for.
    pub(super) fn is_unasked(&self) -> bool {
        let next = self.control.next_snapshot();
        self.may_take() && next.is_none_or(|next| next.id <= self.ended)
    }

    /// Resolves once an operator asks for a copy.
    pub(super) async fn asked(control: &SourceControl, ended: u64) {
        control.wait_for(|desired| desired.snapshots.first().is_some_and(|next| next.id > ended)).await;
    }

    pub(super) fn waits_for(&self) -> (&'a SourceControl, u64) {
        (self.control, self.ended)
    }

    /// Takes in what an operator asked for, or strikes it off once it is done.
    /// Whether there was one.
    fn take_request(&mut self, tables: &[String]) -> bool {
        let control = self.control;
        let Some(next) = control.next_snapshot().filter(|next| next.id > self.ended) else {
            return false;
        };
        if next.id > self.copier.state().request {
            let named = next.table.as_deref().map(qualified);
            let copies = tables.iter().filter(|table| named.as_ref().is_none_or(|named| named == *table));
            let copy = |table: &String| TableCopy { table: table.clone(), filter: next.condition.clone() };
            let copies: Vec<_> = copies.map(copy).collect();
            if copies.is_empty() {
                tracing::warn!(
                    table = next.table,
                    "a copy was asked of a table that the source does not have"
                );
            }
            self.copier.request(next.id, copies);
            return true;
        }
        self.ending = Some(Box::pin(async move {
            let ended = control.end_snapshot(next.id).await;
            if ended.is_err() {
                tokio::time::sleep(RETRY).await;
            }
            (next.id, ended)
        }));
        true
    }

    /// A request was struck off, or not yet.
    pub(super) fn struck_off(&mut self, (id, ended): (u64, firth::Result<()>)) {
        self.ending = None;
        match ended {
            Ok(()) => self.ended = id,
            Err(error) => tracing::warn!(%error, "a snapshot that is done cannot be struck off yet"),
        }
    }

    /// The tables under way first, then those that wait, then those that are done.
    pub(super) fn tables(&mut self) -> Vec<SnapshotProgress> {
        let queue = &self.copier.state().queue;
        let rows = self.copier.state().rows;
        let mut next: Vec<SnapshotProgress> = Vec::new();
        for (place, left) in queue.iter().enumerate() {
            let known = self.tables.iter().find(|table| table.table == left.table && !table.is_done);
            let estimate = known.and_then(|table| table.estimate);
            let rows = if place == 0 { rows } else { 0 };
            next.push(SnapshotProgress { table: left.table.clone(), rows, estimate, is_done: false });
        }
        for table in &mut self.tables {
            if !queue.iter().any(|left| left.table == table.table) {
                table.is_done = true;
                next.push(table.clone());
            }
        }
        self.tables = next;
        self.tables.clone()
    }
}

impl<'a, S: Sink, K: Keep> Session<'a, S, K> {
    /// Whether something is to be asked as soon as it is time. New partitions are taken in first.
    pub(super) fn may_ask(&self) -> bool {
        self.copying.reading.is_none()
            && self.copying.copier.wanted().is_some()
            && !self.pump.is_full()
            && !self.is_growing()
    }

    /// Asks for what the copier wants, if it is time.
    pub(super) fn copy(&mut self) {
        if self.copying.may_take() && self.copying.take_request(&self.config.tables) {
            self.progress.copying(self.copying.tables());
        }
        if !self.may_ask() || Instant::now() < self.copying.not_before {
            return;
        }
        let Some(wanted) = self.copying.copier.wanted() else { return };
        if matches!(wanted, Wanted::Chunk { .. }) {
            self.copying.copier.begin_reading();
        }
        let (config, version) = (self.config, self.copying.version);
        let (host, application) = (self.copying.host.clone(), self.copying.application.clone());
        let idle = self.copying.reader.take();
        self.copying.reading = Some(Box::pin(async move {
            let opened = match idle {
                Some(reader) => Ok(reader),
                None => TableReader::open(config, &host, version, &application).await,
            };
            let mut reader = match opened {
                Ok(reader) => reader,
                Err(error) => return (None, Err(error)),
            };
            let answer = reader.answer(&wanted).await;
            (answer.is_ok().then_some(reader), answer)
        }));
    }

    /// What was asked for is here, or not.
    pub(super) fn answered(&mut self, reader: Option<TableReader<'a>>, answer: Result<Answer>) -> Result<()> {
        self.copying.reading = None;
        self.copying.reader = reader;
        // The stream may have stood still.
        self.heard = Instant::now();
        let done = match answer {
            Ok(Answer::Looked(visibility)) => {
                self.copying.copier.looked(&visibility);
                let is_waiting = matches!(self.copying.copier.wanted(), Some(Wanted::Look));
                Ok(!is_waiting)
            }
            Ok(Answer::Chunk(raw)) => self.chunk(*raw),
            Err(error) => Err(error),
        };
        let copying = &mut self.copying;
        match done {
            Ok(is_done) => {
                copying.failures = 0;
                copying.not_before = Instant::now() + if is_done { Duration::ZERO } else { LOOK_AGAIN };
            }
            Err(error) if is_passing(&error) && copying.failures < MAX_TRIES => {
                tracing::debug!(source = self.config.name, %error, "a chunk is read again");
                copying.copier.give_up();
                copying.failures += 1;
                copying.not_before = Instant::now() + RETRY;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn chunk(&mut self, raw: RawChunk) -> Result<bool> {
        let table = format!("{}.{}", raw.relation.schema, raw.relation.name);
        if let Some(expected) = raw.expected {
            let tables = &mut self.copying.tables;
            if let Some(first) = tables.first_mut().filter(|first| first.table == table) {
                first.estimate = Some(expected).filter(|rows| *rows > 0);
            }
            self.progress.copying(tables.clone());
        }
        for error in &raw.too_long {
            tracing::warn!(source = self.config.name, table, %error, "a row is not copied");
            self.progress.refused(error);
        }
        for (oid, kind) in &raw.types {
            self.assembler.learn(*oid, kind.clone());
        }
        let shape = Shape::new(&self.config.mapping, &raw.relation, Some(&raw.primary[..]))?;
        let rows = self.read_rows(&shape, &raw)?;
        self.copying.shape = self.config.schema_header.then(|| shape.name().clone());
        let RawChunk { visibility, high: Lsn(high), is_whole, .. } = raw;
        let is_taken = self.copying.copier.read(Chunk { visibility, high, rows, is_whole })?;
        Ok(is_taken)
    }

    /// Everything that was committed before `place` was told, and nothing behind it: what the
    /// copier holds may be due.
    pub(super) fn passed(&mut self, place: Lsn) {
        self.place = self.place.max(place);
        if let Some(groups) = self.copying.copier.passed(self.place.0) {
            self.hand_over(groups);
        }
    }

    fn hand_over(&mut self, groups: Vec<Group>) {
        // No transaction commits at a place that is not aligned.
        let commit = Lsn(self.place.0 - 1);
        self.pump.begin();
        for (index, Group { number, events }) in (0..).zip(groups) {
            for event in events {
                let key = event.message_key();
                let partition = self.sink.partition_for(key.as_bytes()) as usize;
                if !self.copying.copier.lacks(partition, number) {
                    continue;
                }
                let position = Position { commit, index, group: number, ..self.origin };
                self.progress.read(&event);
                let shape = self.copying.shape.as_ref().map(|shape| ("firth-schema", shape.to_string()));
                let headers =
                    [("firth-source", self.config.name.clone()), ("firth-position", position.to_string())];
                let message = message(&event, Some(key), headers.into_iter().chain(shape));
                let size = size_of(&message);
                self.last = Some(position);
                self.pump.push(Instant::now(), Change { partition, position, message, size });
            }
        }
        self.copying.under_way = Some(self.pump.commit(self.place));
        self.copying.copier.handed_over();
        self.progress.buffered(self.pump.buffered_bytes(), self.pump.is_full());
    }

    /// Notes when the groups on their way are stored.
    pub(super) fn copied(&mut self) {
        let Copying { copier, under_way, tables, .. } = &mut self.copying;
        if under_way.is_some_and(|txn| self.pump.is_stored(txn)) {
            *under_way = None;
            copier.stored(|table, rows| {
                if let Some(known) = tables.iter_mut().find(|known| known.table == table) {
                    known.rows += rows;
                }
            });
            self.progress.copying(self.copying.tables());
        }
    }

    /// Rows with their events.
    fn read_rows(&self, shape: &Shape, raw: &RawChunk) -> Result<Vec<ReadRow>> {
        let now_ms = Progress::now_ms();
        let rows = raw.rows.iter().map(|row| {
            let key = raw.key.iter().map(|place| match row.0.get(*place) {
                Some(super::decode::Value::Text(text)) => Ok(String::from_utf8_lossy(text).into_owned()),
                _ => Err(Error::corrupt("a row has no key although its columns cannot be empty")),
            });
            let key: RowKey = key.collect::<Result<_>>()?;
            let event = self.copied_row(shape, row)?.map(|event| Event { observed_ms: now_ms, ..event });
            let size = event.as_ref().map_or(0, |event| {
                let document = event.after.as_ref().map_or(0, |document| document.text().len());
                document + event.collection.len() + event.key.len()
            });
            Ok(ReadRow { key, event, size })
        });
        rows.collect()
    }

    /// The event of a row that was found; none if it is marked as deleted, or cannot be an event
    /// and the source goes on without it.
    fn copied_row(&self, shape: &Shape, row: &Tuple) -> Result<Option<Event>> {
        let added = shape.added(self.assembler.types(), Operation::Snapshot, row);
        let event = added.and_then(|mut events| {
            let event = events.pop();
            event.as_ref().map_or(Ok(()), |event| self.fits(event))?;
            Ok(event)
        });
        match event {
            Ok(event) => Ok(event),
            Err(error) if error.kind() == ErrorKind::Poison && self.config.policy.dead_topic.is_some() => {
                tracing::warn!(source = self.config.name, %error, "a row is not copied");
                self.progress.refused(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
