//! The messages of `pgoutput`, protocol 1, from bytes. Pure, bounded, and never panics: what it
//! cannot read is an error.

use super::position::Lsn;
use crate::error::{Error, Result};
use bytes::Bytes;
use std::fmt;

/// PostgreSQL allows 1 600 columns of a table.
const MAX_COLUMNS: usize = 1_664;

/// One message of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A committed transaction starts.
    Begin {
        /// Its commit record.
        commit: Lsn,
        /// When it was committed, in µs of Unix time.
        committed_us: i64,
        /// Its number in the database.
        xid: u32,
    },
    /// The transaction is over.
    Commit {
        /// Its commit record.
        commit: Lsn,
        /// Behind its commit record: what a reader confirms.
        end: Lsn,
    },
    /// The shape of a table from here on.
    Relation(Relation),
    /// A row is new.
    Insert {
        /// The table's number.
        relation: u32,
        /// The row.
        new: Tuple,
    },
    /// A row changed.
    Update {
        /// The table's number.
        relation: u32,
        /// What the replica identity tells of the row before.
        old: Old,
        /// The row.
        new: Tuple,
    },
    /// A row is gone.
    Delete {
        /// The table's number.
        relation: u32,
        /// What the replica identity tells of the row.
        old: Old,
    },
    /// All rows of these tables are gone.
    Truncate {
        /// The tables' numbers.
        relations: Vec<u32>,
        /// It was `CASCADE`.
        cascade: bool,
        /// It was `RESTART IDENTITY`.
        restart_identity: bool,
    },
    /// Written by `pg_logical_emit_message`.
    Emitted {
        /// Whether it belongs to the transaction.
        transactional: bool,
        /// Its own place in the log.
        lsn: Lsn,
        /// Its prefix.
        prefix: String,
        /// Its content.
        content: Content,
    },
    /// The transaction came from elsewhere, by replication.
    Origin,
    /// A type's name: nothing follows from it.
    Ignored,
}

/// How much of an old row the database tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The primary key.
    Default,
    /// Nothing: updates and deletes cannot be replicated.
    Nothing,
    /// The whole row.
    Full,
    /// The columns of an index.
    Index,
}

/// The shape of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    /// The table's number.
    pub id: u32,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// How much of old rows is told.
    pub identity: Identity,
    /// Its published columns.
    pub columns: Vec<Column>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Whether it is part of the replica identity.
    pub is_key: bool,
    /// Its name.
    pub name: String,
    /// Its type's number.
    pub type_oid: u32,
}

/// The row before a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Old {
    /// It is not told: its key did not change.
    Untold,
    /// The columns of the replica identity; the others are without meaning.
    Key(Tuple),
    /// All columns.
    Full(Tuple),
}

/// The values of a row, by column.
#[derive(Clone, PartialEq)]
pub struct Tuple(pub Vec<Value>);

/// A value of a row.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// SQL's null.
    Null,
    /// A large value that did not change, and is not in the stream.
    Unchanged,
    /// The value as text.
    Text(Bytes),
}

/// The content of an emitted message; its bytes are never shown.
#[derive(Clone, PartialEq)]
pub struct Content(pub Bytes);

/// What the beginning of a message tells that is too long to be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Beginning {
    /// A change of a row.
    Row {
        /// The table's number.
        relation: u32,
        /// What happened to it.
        operation: &'static str,
        /// The first row that is told, as far as it is there; what is not counts as unchanged.
        row: Tuple,
    },
    /// Written by `pg_logical_emit_message`.
    Emitted {
        /// Whether it belongs to the transaction.
        transactional: bool,
        /// Its own place in the log.
        lsn: Lsn,
        /// Its prefix.
        prefix: String,
    },
}

impl Beginning {
    /// Reads the beginning of a message.
    pub fn read(bytes: &Bytes) -> Result<Self> {
        let mut rest = Rest { whole: bytes, at: 0 };
        let operation = match rest.u8()? {
            b'I' => "insert",
            b'U' => "update",
            b'D' => "delete",
            b'M' => {
                let transactional = rest.u8()? & 1 != 0;
                let lsn = Lsn(rest.u64()?);
                return Ok(Self::Emitted { transactional, lsn, prefix: rest.text()? });
            }
            _ => return Err(Error::corrupt("the change stream holds a very long message that is no row")),
        };
        let relation = rest.u32()?;
        let row = match (rest.u8()?, operation) {
            // A former key is not that of the row.
            (b'K', "update") => Tuple(Vec::new()),
            _ => rest.tuple_beginning()?,
        };
        Ok(Self::Row { relation, operation, row })
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.0.len())
    }
}

/// Shows how a value is told, never the value.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
        }
    }
}

/// Shows the number of columns, never a value.
impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tuple({} columns)", self.0.len())
    }
}

/// µs from the Unix epoch to PostgreSQL's, the start of 2000.
const EPOCH_US: i64 = 946_684_800_000_000;

impl Message {
    /// Reads one message.
    pub fn read(bytes: &Bytes) -> Result<Self> {
        let mut rest = Rest { whole: bytes, at: 0 };
        let message = match rest.u8()? {
            b'B' => {
                let commit = Lsn(rest.u64()?);
                let committed_us = rest.time()?;
                Self::Begin { commit, committed_us, xid: rest.u32()? }
            }
            b'C' => {
                rest.u8()?;
                let commit = Lsn(rest.u64()?);
                let end = Lsn(rest.u64()?);
                rest.time()?;
                Self::Commit { commit, end }
            }
            b'R' => Self::Relation(rest.relation()?),
            b'I' => {
                let relation = rest.u32()?;
                rest.expect(b'N')?;
                Self::Insert { relation, new: rest.tuple()? }
            }
            b'U' => {
                let relation = rest.u32()?;
                let old = match rest.u8()? {
                    b'N' => Old::Untold,
                    kind => {
                        let old = rest.old(kind)?;
                        rest.expect(b'N')?;
                        old
                    }
                };
                Self::Update { relation, old, new: rest.tuple()? }
            }
            b'D' => {
                let relation = rest.u32()?;
                let kind = rest.u8()?;
                Self::Delete { relation, old: rest.old(kind)? }
            }
            b'T' => rest.truncate()?,
            b'M' => {
                let transactional = rest.u8()? & 1 != 0;
                let lsn = Lsn(rest.u64()?);
                let prefix = rest.text()?;
                Self::Emitted { transactional, lsn, prefix, content: Content(rest.sized()?) }
            }
            b'O' => return Ok(Self::Origin),
            b'Y' => return Ok(Self::Ignored),
            _ => return Err(Error::corrupt("the change stream holds a message of an unknown kind")),
        };
        if rest.at == bytes.len() { Ok(message) } else { Err(cut("is longer than it says")) }
    }
}

/// What is left to read.
struct Rest<'a> {
    whole: &'a Bytes,
    at: usize,
}

impl Rest<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.whole.len());
        let taken = &self.whole[self.at..end.ok_or_else(|| cut("is cut off"))?];
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().expect("it was taken with this length"))
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<usize> {
        Ok(usize::from(u16::from_be_bytes(self.array()?)))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn time(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array()?).saturating_add(EPOCH_US))
    }

    fn expect(&mut self, tag: u8) -> Result<()> {
        if self.u8()? == tag { Ok(()) } else { Err(cut("holds no new row where one belongs")) }
    }

    /// A text that ends with a zero.
    fn text(&mut self) -> Result<String> {
        let rest = &self.whole[self.at..];
        let length = rest.iter().position(|byte| *byte == 0).ok_or_else(|| cut("is cut off"))?;
        let text = std::str::from_utf8(&rest[..length]).map_err(|_| cut("holds a name that is no UTF-8"))?;
        self.at += length + 1;
        Ok(text.to_owned())
    }

    /// Bytes behind their length.
    fn sized(&mut self) -> Result<Bytes> {
        let length = self.u32()? as usize;
        let start = self.at;
        self.take(length)?;
        Ok(self.whole.slice(start..self.at))
    }

    fn columns(&mut self) -> Result<usize> {
        match self.u16()? {
            count if count <= MAX_COLUMNS => Ok(count),
            _ => Err(cut("has more columns than a table can have")),
        }
    }

    fn relation(&mut self) -> Result<Relation> {
        let id = self.u32()?;
        let schema = match self.text()? {
            // The server writes nothing for its own schema.
            empty if empty.is_empty() => "pg_catalog".to_owned(),
            schema => schema,
        };
        let name = self.text()?;
        let identity = match self.u8()? {
            b'd' => Identity::Default,
            b'n' => Identity::Nothing,
            b'f' => Identity::Full,
            b'i' => Identity::Index,
            _ => return Err(cut("names an unknown replica identity")),
        };
        let columns = (0..self.columns()?)
            .map(|_| {
                let is_key = self.u8()? & 1 != 0;
                let name = self.text()?;
                let type_oid = self.u32()?;
                self.u32()?; // the type's modifier says nothing about the text
                Ok(Column { is_key, name, type_oid })
            })
            .collect::<Result<_>>()?;
        Ok(Relation { id, schema, name, identity, columns })
    }

    fn old(&mut self, kind: u8) -> Result<Old> {
        match kind {
            b'K' => self.tuple().map(Old::Key),
            b'O' => self.tuple().map(Old::Full),
            _ => Err(cut("holds an old row of an unknown kind")),
        }
    }

    fn tuple(&mut self) -> Result<Tuple> {
        let values = (0..self.columns()?).map(|_| self.value());
        values.collect::<Result<_>>().map(Tuple)
    }

    fn value(&mut self) -> Result<Value> {
        Ok(match self.u8()? {
            b'n' => Value::Null,
            b'u' => Value::Unchanged,
            b't' => Value::Text(self.sized()?),
            _ => return Err(cut("holds a value that is no text")),
        })
    }

    /// A row as far as it is there.
    fn tuple_beginning(&mut self) -> Result<Tuple> {
        let count = self.columns()?;
        let mut values: Vec<_> = (0..count).map_while(|_| self.value().ok()).collect();
        values.resize(count, Value::Unchanged);
        Ok(Tuple(values))
    }

    fn truncate(&mut self) -> Result<Message> {
        let count = self.u32()? as usize;
        let flags = self.u8()?;
        if count > (self.whole.len() - self.at) / 4 {
            return Err(cut("is cut off"));
        }
        let relations = (0..count).map(|_| self.u32()).collect::<Result<_>>()?;
        Ok(Message::Truncate { relations, cascade: flags & 1 != 0, restart_identity: flags & 2 != 0 })
    }
}

fn cut(why: &str) -> Error {
    Error::corrupt(format!("a message of the change stream {why}"))
}

#[cfg(test)]
mod tests;
