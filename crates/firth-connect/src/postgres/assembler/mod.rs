//! [`Assembler`]: messages of the stream in, records for the topic out. Pure.
//!
//! It counts the changes of each transaction, so that a change has the same position however often
//! it is read, and holds one record back, so that the last of a transaction can say so.

use crate::dead_letter::DeadLetter;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::postgres::decode::{Beginning, Identity, Message, Old, Relation, Tuple};
use crate::postgres::emitted::{Emitted, HEARTBEAT};
use crate::postgres::position::{Lsn, Position};
use crate::postgres::shape::Shape;
use crate::postgres::value::{Kind, Types};
use firth_router::event::{Event, Operation};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Tables of one session, at most.
const MAX_TABLES: usize = 100_000;

/// What the stream says, for the pump.
#[derive(Debug)]
pub enum Output {
    /// A transaction starts.
    Begin {
        /// Its commit record.
        commit: Lsn,
        /// Its number.
        xid: u32,
    },
    /// A change in it.
    Record(Box<Record>),
    /// It is over; behind this place the next one starts.
    Commit(Lsn),
    /// The reader's own sign of life came back, which it wrote at this Unix time.
    Heartbeat(u64),
}

/// A change on its way to the topic.
#[derive(Debug)]
pub struct Record {
    /// Where it stands.
    pub position: Position,
    /// What is to be stored.
    pub told: Told,
    /// The number of its table; 0 for a message.
    pub relation: u32,
    /// The shape of its table, if records name that.
    pub shape: Option<Arc<str>>,
    /// The table, `schema.table`, whose rows are all gone by it.
    pub truncated: Option<String>,
    /// Whether it is the last of its transaction.
    pub is_last: bool,
}

/// What a change of the stream becomes.
#[derive(Debug)]
pub enum Told {
    /// An event of a document, or a control of a whole collection.
    Event(Event),
    /// A message for another topic.
    Emitted(Emitted),
    /// A change that cannot be an event, where the source goes on without it.
    Dead(DeadLetter),
}

impl Record {
    /// The headers that tell where the change came from.
    pub fn headers(&self, source: &str) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("firth-source", source.to_owned()),
            ("firth-position", self.position.to_string()),
            ("firth-txn", self.position.commit.to_string()),
            ("firth-txn-index", self.row().to_string()),
        ];
        if let Some(shape) = &self.shape {
            headers.push(("firth-schema", shape.to_string()));
        }
        if self.is_last {
            headers.push(("firth-txn-last", "true".to_owned()));
        }
        headers
    }

    /// The number of the row's change in the transaction.
    pub fn row(&self) -> u32 {
        self.position.index / PARTS
    }
}

/// A row's change becomes two events at most, each with a position of its own.
pub(super) const PARTS: u32 = 2;

/// Reads one session of a stream.
#[derive(Debug)]
pub struct Assembler {
    system: u64,
    timeline: u32,
    mapping: Mapping,
    /// The tables to follow; all that are published if none are named.
    tables: Option<HashSet<String>>,
    types: Types,
    shapes: HashMap<u32, Option<Shape>>,
    /// Whether the source goes on without a change that cannot be an event.
    skips_poison: bool,
    /// Whether transactions that came by replication are left out.
    skips_origins: bool,
    /// Whether records name the shape of their table.
    names_shapes: bool,
    /// Topics for messages with these prefixes.
    prefixes: BTreeMap<String, String>,
    txn: Option<Txn>,
    held: Option<Record>,
}

#[derive(Debug)]
struct Txn {
    commit: Lsn,
    committed_ms: u64,
    rows: u32,
    /// Whether it is left out.
    is_skipped: bool,
}

/// What must be asked of the database before a table's rows can be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The columns of its primary key.
    pub primary: bool,
    /// Types that are not known yet.
    pub types: Vec<u32>,
}

impl Assembler {
    /// For the database with this identifier, on this timeline.
    pub fn new(system: u64, timeline: u32, mapping: Mapping, types: Types) -> Self {
        Self {
            system,
            timeline,
            mapping,
            tables: None,
            types,
            shapes: HashMap::new(),
            skips_poison: false,
            skips_origins: false,
            names_shapes: false,
            prefixes: BTreeMap::new(),
            txn: None,
            held: None,
        }
    }

    /// Makes a dead letter of each change that cannot be an event, instead of an error.
    #[must_use]
    pub fn skipping_poison(mut self, skips: bool) -> Self {
        self.skips_poison = skips;
        self
    }

    /// Leaves out transactions that came by replication.
    #[must_use]
    pub fn skipping_origins(mut self, skips: bool) -> Self {
        self.skips_origins = skips;
        self
    }

    /// Takes messages with further prefixes, each for a topic.
    #[must_use]
    pub fn taking(mut self, prefixes: BTreeMap<String, String>) -> Self {
        self.prefixes = prefixes;
        self
    }

    /// Names in each record the shape of its table.
    #[must_use]
    pub fn naming_shapes(mut self, names: bool) -> Self {
        self.names_shapes = names;
        self
    }

    /// Follows only these tables, written `schema.table`.
    #[must_use]
    pub fn only(mut self, tables: impl IntoIterator<Item = String>) -> Self {
        self.tables = Some(tables.into_iter().collect());
        self
    }

    /// Whether a table's rows become events.
    pub fn follows(&self, relation: &Relation) -> bool {
        let name = || format!("{}.{}", relation.schema, relation.name);
        self.tables.as_ref().is_none_or(|tables| tables.contains(&name()))
    }

    /// What must be known before [`relation`](Self::relation) is called.
    pub fn needs(&self, relation: &Relation) -> Needs {
        if !self.follows(relation) {
            return Needs::default();
        }
        let unknown = relation.columns.iter().map(|column| column.type_oid);
        Needs {
            primary: relation.identity == Identity::Full
                && self.mapping.key == crate::mapping::KeyRule::Primary,
            types: unknown.filter(|oid| !self.types.knows(*oid)).collect(),
        }
    }

    /// Learns a type of the database.
    pub fn learn(&mut self, oid: u32, kind: Kind) {
        self.types.insert(oid, kind);
    }

    /// From here on the table has this shape.
    pub fn relation(&mut self, relation: &Relation, primary: Option<&[String]>) -> Result<()> {
        let shape = match self.follows(relation) {
            true => {
                let is_shared = self.tables.as_ref().is_some_and(|tables| {
                    self.mapping.shares_collection(tables, &relation.schema, &relation.name)
                });
                Some(Shape::new(&self.mapping, relation, primary)?.shared(is_shared))
            }
            false => None,
        };
        if self.shapes.len() >= MAX_TABLES && !self.shapes.contains_key(&relation.id) {
            return Err(Error::refused(format!("more than {MAX_TABLES} tables are published")));
        }
        self.shapes.insert(relation.id, shape);
        Ok(())
    }

    /// Reads a message that is no relation. `now_ms` is when it was read, in Unix time.
    pub fn read(&mut self, message: &Message, now_ms: u64, out: &mut Vec<Output>) -> Result<()> {
        match message {
            Message::Begin { commit, committed_us, xid } => {
                let committed_ms = u64::try_from(committed_us / 1_000).unwrap_or_default();
                self.txn = Some(Txn { commit: *commit, committed_ms, rows: 0, is_skipped: false });
                out.push(Output::Begin { commit: *commit, xid: *xid });
            }
            Message::Commit { end, .. } => self.end(*end, out)?,
            Message::Insert { relation, new } => {
                let events =
                    self.shape(*relation)?.map(|shape| shape.added(&self.types, Operation::Insert, new));
                self.change((*relation, "insert", Some(new)), events, now_ms, out)?;
            }
            Message::Update { relation, old, new } => {
                let events = self.shape(*relation)?.map(|shape| shape.updated(&self.types, old, new));
                self.change((*relation, "update", Some(new)), events, now_ms, out)?;
            }
            Message::Delete { relation, old } => {
                let events = self.shape(*relation)?.map(|shape| shape.deleted(&self.types, old));
                let row = match old {
                    Old::Key(row) | Old::Full(row) => Some(row),
                    Old::Untold => None,
                };
                self.change((*relation, "delete", row), events, now_ms, out)?;
            }
            Message::Truncate { relations, cascade, restart_identity } => {
                for relation in relations {
                    let shape = self.shape(*relation)?;
                    let events = shape.map(|shape| Ok(vec![shape.truncated(*cascade, *restart_identity)]));
                    self.change((*relation, "truncate", None), events, now_ms, out)?;
                }
            }
            Message::Emitted { transactional, lsn, prefix, content } => {
                if prefix == HEARTBEAT {
                    let sent = std::str::from_utf8(&content.0).ok().and_then(|text| text.parse().ok());
                    out.extend(sent.map(Output::Heartbeat));
                } else if let Some(named) = Emitted::named(prefix, content.0.len(), &self.prefixes) {
                    let emitted = Emitted { payload: content.0.clone(), ..named };
                    self.emitted(*transactional, *lsn, emitted, out)?;
                }
            }
            Message::Origin => {
                let txn = self.txn.as_mut().ok_or_else(outside)?;
                txn.is_skipped = self.skips_origins;
            }
            Message::Ignored | Message::Relation(_) => {}
        }
        Ok(())
    }

    /// Takes in a message of which only the beginning was read: it has `length` bytes, and at most
    /// `limit` are read.
    pub fn too_long(
        &mut self,
        beginning: &Beginning,
        (length, limit): (usize, usize),
        now_ms: u64,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        match beginning {
            Beginning::Row { relation, operation, row } => {
                let failed = self.shape(*relation)?.map(|shape| {
                    let table = shape.table();
                    let text = format!("a row of {table} has {length} bytes; at most {limit} are read");
                    Err(Error::poison(text))
                });
                self.change((*relation, operation, Some(row)), failed, now_ms, out)
            }
            Beginning::Emitted { transactional, lsn, prefix } => {
                match Emitted::named(prefix, length, &self.prefixes) {
                    Some(emitted) => self.emitted(*transactional, *lsn, emitted, out),
                    None => Ok(()),
                }
            }
        }
    }

    /// The table with this number, `schema.table`.
    pub fn table(&self, relation: u32) -> Option<&str> {
        self.shapes.get(&relation)?.as_ref().map(Shape::table)
    }

    /// A message for another topic. One outside of transactions makes one of its own.
    fn emitted(
        &mut self,
        transactional: bool,
        lsn: Lsn,
        emitted: Emitted,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        if transactional {
            return self.tell([Told::Emitted(emitted)], (0, None), out);
        }
        if self.txn.is_some() {
            return Err(Error::corrupt("a message without transaction comes within one"));
        }
        // No transaction commits at a place that is not aligned.
        let commit = Lsn(lsn.0.saturating_sub(1));
        self.txn = Some(Txn { commit, committed_ms: 0, rows: 0, is_skipped: false });
        out.push(Output::Begin { commit, xid: 0 });
        self.tell([Told::Emitted(emitted)], (0, None), out)?;
        self.end(lsn, out)
    }

    fn end(&mut self, end: Lsn, out: &mut Vec<Output>) -> Result<()> {
        if let Some(mut last) = self.held.take() {
            last.is_last = true;
            out.push(Output::Record(Box::new(last)));
        }
        self.txn.take().ok_or_else(outside)?;
        out.push(Output::Commit(end));
        Ok(())
    }

    /// The types that are known.
    pub(crate) fn types(&self) -> &Types {
        &self.types
    }

    fn shape(&self, relation: u32) -> Result<Option<&Shape>> {
        let shape = self.shapes.get(&relation);
        Ok(shape.ok_or_else(|| Error::corrupt("a row comes before the description of its table"))?.as_ref())
    }

    /// Numbers the events of one row. Rows that become none are counted too.
    fn change(
        &mut self,
        (relation, operation, row): (u32, &'static str, Option<&Tuple>),
        events: Option<Result<Vec<Event>>>,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        let txn = self.txn.as_ref().ok_or_else(outside)?;
        if txn.is_skipped {
            return Ok(());
        }
        let timed = |event: Event| Event { committed_ms: txn.committed_ms, observed_ms: now_ms, ..event };
        match events.transpose() {
            Ok(events) => {
                let events: Vec<_> = events.into_iter().flatten().map(timed).map(Told::Event).collect();
                let truncated = match operation {
                    "truncate" => self.shape(relation)?.map(|shape| shape.table().to_owned()),
                    _ => None,
                };
                self.tell(events, (relation, truncated), out)
            }
            Err(error) if error.kind() == ErrorKind::Poison => {
                let (table, key) = match self.shape(relation)? {
                    Some(shape) => (shape.table().to_owned(), row.and_then(|row| shape.key_as_text(row))),
                    None => Default::default(),
                };
                if !self.skips_poison {
                    let key = key.map(|key| format!(", key {}", key_hash(&key))).unwrap_or_default();
                    let place = format!("{}.{}", txn.commit, txn.rows);
                    return Err(Error::poison(format!("{error} (the {operation} at {place}{key})")));
                }
                let committed_ms = txn.committed_ms;
                let reason = error.to_string();
                let letter = DeadLetter { table, op: operation.to_owned(), key, reason, committed_ms };
                self.tell([Told::Dead(letter)], (relation, None), out)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives what one change becomes its places.
    fn tell(
        &mut self,
        parts: impl IntoIterator<Item = Told>,
        (relation, truncated): (u32, Option<String>),
        out: &mut Vec<Output>,
    ) -> Result<()> {
        let shape = self.shapes.get(&relation).and_then(Option::as_ref);
        let shape = shape.filter(|_| self.names_shapes).map(|shape| shape.name().clone());
        let txn = self.txn.as_mut().ok_or_else(outside)?;
        if txn.is_skipped {
            return Ok(());
        }
        let first = txn.rows.checked_mul(PARTS).ok_or_else(too_long)?;
        txn.rows += 1;
        for (part, told) in (0..PARTS).zip(parts) {
            let index = first.checked_add(part).ok_or_else(too_long)?;
            let (system, timeline, commit) = (self.system, self.timeline, txn.commit);
            let position = Position { system, timeline, commit, index, group: 0 };
            let truncated = truncated.clone();
            let shape = shape.clone();
            let record = Record { position, told, relation, shape, truncated, is_last: false };
            out.extend(self.held.replace(record).map(Box::new).map(Output::Record));
        }
        Ok(())
    }
}

/// A name for a key that may not be shown.
pub(super) fn key_hash(key: &str) -> String {
    format!("{:016x}", crate::record::fnv(key.bytes()))
}

fn outside() -> Error {
    Error::corrupt("a change comes outside of a transaction")
}

fn too_long() -> Error {
    Error::corrupt("a transaction has more than two billion changes")
}

#[cfg(test)]
mod tests;
