//! [`Assembler`]: messages of the stream in, records for the topic out. Pure.
//!
//! It counts the changes of each transaction, so that a change has the same position however often
//! it is read, and holds one record back, so that the last of a transaction can say so.

use super::decode::{Beginning, Message, Old, Relation, Tuple};
use super::emitted::{Emitted, HEARTBEAT};
use super::position::{Lsn, Position};
use super::shape::Shape;
use super::value::{Kind, Types};
use crate::dead_letter::DeadLetter;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use firth_router::event::{Event, Operation};
use std::collections::{HashMap, HashSet};

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
    txn: Option<Txn>,
    held: Option<Record>,
}

#[derive(Debug)]
struct Txn {
    commit: Lsn,
    committed_ms: u64,
    rows: u32,
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
            primary: relation.identity == super::decode::Identity::Full
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
                self.txn = Some(Txn { commit: *commit, committed_ms, rows: 0 });
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
                } else if let Some(emitted) = Emitted::read(prefix, content) {
                    self.emitted(*transactional, *lsn, emitted, out)?;
                }
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
            Beginning::Emitted { transactional, lsn, prefix } => match Emitted::too_long(prefix, length) {
                Some(emitted) => self.emitted(*transactional, *lsn, emitted, out),
                None => Ok(()),
            },
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
        self.txn = Some(Txn { commit, committed_ms: 0, rows: 0 });
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
                let place = format!("{}.{}", txn.commit, txn.rows);
                if !self.skips_poison {
                    return Err(Error::poison(format!("{error} (the {operation} at {place})")));
                }
                let (table, key) = match self.shape(relation)? {
                    Some(shape) => (shape.table().to_owned(), row.and_then(|row| shape.key_as_text(row))),
                    None => Default::default(),
                };
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
        let txn = self.txn.as_mut().ok_or_else(outside)?;
        let first = txn.rows.checked_mul(PARTS).ok_or_else(too_long)?;
        txn.rows += 1;
        for (part, told) in (0..PARTS).zip(parts) {
            let index = first.checked_add(part).ok_or_else(too_long)?;
            let (system, timeline, commit) = (self.system, self.timeline, txn.commit);
            let position = Position { system, timeline, commit, index, group: 0 };
            let truncated = truncated.clone();
            let record = Record { position, told, relation, truncated, is_last: false };
            out.extend(self.held.replace(record).map(Box::new).map(Output::Record));
        }
        Ok(())
    }
}

fn outside() -> Error {
    Error::corrupt("a change comes outside of a transaction")
}

fn too_long() -> Error {
    Error::corrupt("a transaction has more than two billion changes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{KeyRule, TenantRule};
    use crate::postgres::decode::{Column, Content, Identity, Value};
    use std::collections::BTreeMap;

    fn assembler() -> Assembler {
        let tenant = TenantRule::Constant("acme".into());
        let mapping = Mapping::new(&tenant, "{table}", KeyRule::Primary, &BTreeMap::new(), None).unwrap();
        Assembler::new(9, 1, mapping, Types::default())
    }

    fn relation(id: u32, name: &str) -> Relation {
        let columns = vec![Column { is_key: true, name: "id".into(), type_oid: 23 }];
        Relation { id, schema: "public".into(), name: name.into(), identity: Identity::Default, columns }
    }

    fn row(id: u32) -> Tuple {
        Tuple(vec![Value::Text(id.to_string().into())])
    }

    fn read(assembler: &mut Assembler, messages: &[Message]) -> Vec<String> {
        let mut out = Vec::new();
        for message in messages {
            assembler.read(message, 5, &mut out).unwrap();
        }
        let shown = out.iter().map(|output| match output {
            Output::Begin { .. } => "begin".to_owned(),
            Output::Commit(end) => format!("commit {end}"),
            Output::Heartbeat(sent) => format!("heartbeat {sent}"),
            Output::Record(record) => {
                let last = if record.is_last { " last" } else { "" };
                let what = match &record.told {
                    Told::Event(event) => format!("{} {}", event.operation.as_str(), &*event.key),
                    Told::Emitted(emitted) => format!("to {}", emitted.topic),
                    Told::Dead(letter) => format!("dead {} {:?}", letter.table, letter.key),
                };
                format!("{} {what}{last}", record.position)
            }
        });
        shown.collect()
    }

    #[test]
    fn changes_are_numbered_the_same_whichever_tables_are_followed() {
        let txn = [
            Message::Begin { commit: Lsn(16), committed_us: 3_000, xid: 1 },
            Message::Insert { relation: 2, new: row(1) },
            Message::Insert { relation: 1, new: row(2) },
            Message::Update { relation: 1, old: Old::Key(row(2)), new: row(3) },
            Message::Insert { relation: 1, new: row(4) },
            Message::Commit { commit: Lsn(16), end: Lsn(32) },
        ];
        let mut all = assembler();
        all.relation(&relation(1, "orders"), None).unwrap();
        all.relation(&relation(2, "other"), None).unwrap();
        let seen = read(&mut all, &txn);
        let orders =
            ["9.1.0/10.2 insert 2", "9.1.0/10.4 delete 2", "9.1.0/10.5 insert 3", "9.1.0/10.6 insert 4 last"];
        assert_eq!(seen[0..2], ["begin", "9.1.0/10.0 insert 1"]);
        assert_eq!(seen[2..6], orders);
        assert_eq!(seen[6..], ["commit 0/20"]);

        let mut some = assembler().only(["public.orders".to_owned()]);
        some.relation(&relation(1, "orders"), None).unwrap();
        some.relation(&relation(2, "other"), None).unwrap();
        assert_eq!(read(&mut some, &txn)[1..5], orders);
    }

    #[test]
    fn truncates_and_messages_stand_in_order_with_rows() {
        let emitted = |transactional, lsn, prefix: &str, text: &'static str| Message::Emitted {
            transactional,
            lsn: Lsn(lsn),
            prefix: prefix.to_owned(),
            content: Content(text.into()),
        };
        let truncate = Message::Truncate { relations: vec![2, 1], cascade: true, restart_identity: false };
        let txn = [
            emitted(false, 16, "firth.topic.mails", "outside"),
            emitted(false, 16, "firth.heartbeat", "77"),
            emitted(false, 16, "of another program", "x"),
            Message::Begin { commit: Lsn(16), committed_us: 3_000, xid: 1 },
            Message::Insert { relation: 1, new: row(1) },
            truncate,
            emitted(true, 14, "firth.topic.mails/7", "within"),
            Message::Commit { commit: Lsn(16), end: Lsn(32) },
        ];
        let mut all = assembler().only(["public.orders".to_owned()]);
        all.relation(&relation(1, "orders"), None).unwrap();
        all.relation(&relation(2, "other"), None).unwrap();
        assert_eq!(
            read(&mut all, &txn),
            [
                "begin",
                "9.1.0/F.0 to mails last",
                "commit 0/10",
                "heartbeat 77",
                "begin",
                "9.1.0/10.0 insert 1",
                "9.1.0/10.4 truncate ",
                "9.1.0/10.6 to mails last",
                "commit 0/20",
            ]
        );
    }

    #[test]
    fn a_row_that_cannot_be_an_event_is_an_error_or_a_dead_letter() {
        let long = Tuple(vec![Value::Text("x".repeat(701).into())]);
        let txn = [
            Message::Begin { commit: Lsn(16), committed_us: 3_000, xid: 1 },
            Message::Insert { relation: 1, new: row(1) },
            Message::Insert { relation: 1, new: long.clone() },
            Message::Insert { relation: 1, new: row(2) },
            Message::Commit { commit: Lsn(16), end: Lsn(32) },
        ];
        let mut skipping = assembler().skipping_poison(true);
        skipping.relation(&relation(1, "orders"), None).unwrap();
        let dead = format!("9.1.0/10.2 dead public.orders {:?}", Some("x".repeat(701)));
        assert_eq!(
            read(&mut skipping, &txn)[1..4],
            ["9.1.0/10.0 insert 1", &dead, "9.1.0/10.4 insert 2 last"]
        );

        let mut strict = assembler();
        strict.relation(&relation(1, "orders"), None).unwrap();
        let mut out = Vec::new();
        let read: Result<Vec<()>> = txn.iter().map(|message| strict.read(message, 0, &mut out)).collect();
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poison);
        assert!(
            error.to_string().contains("public.orders") && error.to_string().contains("insert at 0/10.1"),
            "{error}"
        );
    }

    #[test]
    fn a_stream_that_breaks_its_own_rules_is_an_error() {
        let mut out = Vec::new();
        let insert = Message::Insert { relation: 1, new: row(1) };
        let error = assembler().read(&insert, 0, &mut out).unwrap_err().to_string();
        assert!(error.contains("before the description"), "{error}");
        let mut known = assembler();
        known.relation(&relation(1, "orders"), None).unwrap();
        assert!(known.read(&insert, 0, &mut out).unwrap_err().to_string().contains("outside"));
    }

    #[test]
    fn only_what_is_needed_is_asked_of_the_database() {
        let mut full = relation(1, "orders");
        assert_eq!(assembler().needs(&full), Needs::default());
        full.identity = Identity::Full;
        full.columns.push(Column { is_key: true, name: "mood".into(), type_oid: 20_000 });
        assert_eq!(assembler().needs(&full), Needs { primary: true, types: vec![20_000] });
        assert_eq!(assembler().only(["public.other".to_owned()]).needs(&full), Needs::default());
    }
}
