//! [`TableReader`]: reads chunks of tables, each in a short transaction of its own.

use super::query::ChunkQuery;
use super::{Visibility, Wanted};
use crate::copy_state::{RowKey, TableCopy};
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::KeyRule;
use crate::postgres::catalog::{self, quoted_table};
use crate::postgres::config::Config;
use crate::postgres::connection::{Connection, Purpose};
use crate::postgres::decode::{Relation, Tuple, Value};
use crate::postgres::position::Lsn;
use crate::postgres::server_error::ServerError;
use crate::postgres::target::Host;
use crate::postgres::value::Kind;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Rows of a chunk at first and at least, if the configuration allows them.
const ROWS: (usize, usize) = (1_000, 100);
/// Rows of a chunk that was cut into groups before.
const ROWS_AGAIN: usize = 10_000;
/// Bytes of a chunk, unless it is a single row.
const CHUNK_BYTES: usize = 4 << 20;
/// Chunks shrink if one takes longer, because the stream waits for it, and grow if it takes less
/// than a quarter.
const CHUNK_TIME: Duration = Duration::from_millis(200);
/// A chunk must not wait for a lock nor hang: the stream stands still. Commits wait for no copy.
const SETTINGS: &str =
    "SET lock_timeout = '1s'; SET statement_timeout = '30s'; SET synchronous_commit = 'local'";

/// What was asked for.
#[derive(Debug)]
pub(crate) enum Answer {
    Looked(Visibility),
    Chunk(Box<RawChunk>),
}

/// Rows as the database has them.
#[derive(Debug)]
pub(crate) struct RawChunk {
    pub(crate) relation: Relation,
    pub(crate) primary: Vec<String>,
    /// Types that were not known.
    pub(crate) types: Vec<(u32, Kind)>,
    /// The places of the columns that order the rows.
    pub(crate) key: Vec<usize>,
    pub(crate) rows: Vec<Tuple>,
    pub(crate) visibility: Visibility,
    pub(crate) high: Lsn,
    pub(crate) is_whole: bool,
    /// Rows that are left out, with why.
    pub(crate) too_long: Vec<Error>,
    /// How many rows the table has, about; asked for with its first chunk.
    pub(crate) expected: Option<u64>,
}

/// A session that reads tables.
pub(crate) struct TableReader<'a> {
    config: &'a Config,
    connection: Connection,
    version: u32,
    limit: usize,
    /// What is published of each table: its columns and a condition.
    published: HashMap<String, (Option<Vec<String>>, Option<String>)>,
    types: HashMap<u32, Kind>,
}

impl<'a> TableReader<'a> {
    /// Logs in.
    pub(crate) async fn open(
        config: &'a Config,
        host: &Host,
        version: u32,
        application: &str,
    ) -> Result<Self> {
        let mut connection = Connection::open(&config.target, host, Purpose::Query, application).await?;
        connection.query(SETTINGS).await?;
        let (published, types) = (HashMap::new(), HashMap::new());
        Ok(Self { config, connection, version, limit: ROWS.0.min(config.chunk_rows), published, types })
    }

    /// Asks for what is wanted. After an error the session is of no use.
    pub(crate) async fn answer(&mut self, wanted: &Wanted) -> Result<Answer> {
        match wanted {
            Wanted::Look => {
                let rows = self.connection.query("SELECT pg_current_snapshot()").await?;
                visibility(&rows).map(Answer::Looked)
            }
            Wanted::Chunk { copy, after, upto } => {
                let begun = Instant::now();
                let chunk = self.chunk(copy, after.as_ref(), upto.as_ref()).await?;
                self.adapt(begun.elapsed(), &chunk);
                Ok(Answer::Chunk(Box::new(chunk)))
            }
        }
    }

    /// Fewer rows if the last chunk was slow or cut off, more if it was fast.
    fn adapt(&mut self, took: Duration, chunk: &RawChunk) {
        let most = self.config.chunk_rows;
        let is_full = chunk.rows.len() >= self.limit;
        let next = match took {
            _ if !chunk.is_whole && !is_full => chunk.rows.len(),
            took if took > CHUNK_TIME => self.limit / 2,
            took if took < CHUNK_TIME / 4 && is_full => self.limit * 2,
            _ => self.limit,
        };
        self.limit = next.clamp(ROWS.1.min(most), most);
    }

    async fn chunk(
        &mut self,
        copy: &TableCopy,
        after: Option<&RowKey>,
        upto: Option<&RowKey>,
    ) -> Result<RawChunk> {
        // The lock comes first: no later change of the table's shape hides from the query.
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE {} IN ACCESS SHARE MODE; \
             SELECT pg_current_snapshot()",
            quoted_table(&copy.table)
        );
        let rows = self.connection.query(&begin).await.map_err(|error| unreadable(&copy.table, error))?;
        let visibility = visibility(&rows)?;
        let table = self.describe(&copy.table).await?;
        let expected = match after {
            None => Some(catalog::expected_rows(&mut self.connection, table.relation.id).await?),
            Some(_) => None,
        };
        // What was read before goes in one piece, if that can be.
        let limit = if upto.is_some() { ROWS_AGAIN } else { self.limit };
        let (_, filter) = &self.published[&copy.table];
        let name = |place: &usize| &*table.relation.columns[*place].name;
        let query = ChunkQuery {
            table: &copy.table,
            is_partitioned: table.is_partitioned,
            columns: table.relation.columns.iter().map(|column| &*column.name).collect(),
            key: table.key.iter().map(name).collect(),
            has_ties: table.has_ties,
            after,
            upto,
            filters: [filter, &copy.filter].into_iter().flatten().map(String::as_str).collect(),
            limit,
        };
        let (sql, values) = query.sql();
        let mut taken = Taken {
            key: &table.key,
            has_ties: table.has_ties,
            skips: self.config.policy.dead_topic.is_some(),
            rows: Vec::new(),
            too_long: Vec::new(),
            bytes: 0,
            is_cut: false,
        };
        let read = self.connection.read_rows(&sql, &values, |row| taken.take(row)).await;
        read.map_err(|error| match error.kind() {
            ErrorKind::Poison => Error::poison(format!("table {}: {error}", copy.table)),
            _ => error,
        })?;
        let Taken { rows, too_long, is_cut, .. } = taken;
        let types = table.types.iter().filter_map(|oid| Some((*oid, self.types.get(oid)?.clone()))).collect();
        let is_whole = !is_cut && rows.len() + too_long.len() < limit;
        if rows.is_empty() && !is_whole {
            let text = format!("table {}: more rows in turn than a chunk holds are too long", copy.table);
            return Err(Error::poison(text));
        }
        // It is committed for certain before the server says so, behind all that the query saw.
        let end = "COMMIT; SELECT pg_logical_emit_message(true, 'firth.watermark', '')";
        let high = self.connection.query(end).await?;
        let high = high.first().and_then(|row| row.first()?.as_deref()).unwrap_or_default().parse()?;
        let TableShape { relation, primary, key, .. } = table;
        Ok(RawChunk { relation, primary, types, key, rows, visibility, high, is_whole, too_long, expected })
    }

    /// The table as it is now.
    async fn describe(&mut self, name: &str) -> Result<TableShape> {
        if !self.published.contains_key(name) {
            let (connection, publication) = (&mut self.connection, &self.config.publication);
            let published = match self.version {
                150_000.. => catalog::published_part(connection, publication, name).await?,
                _ => (None, None),
            };
            self.published.insert(name.to_owned(), published);
        }
        let found = catalog::described(&mut self.connection, name).await?;
        let mut found = found.ok_or_else(|| {
            Error::refused(format!("tables: there is no table {name}, or the role may not see it"))
        })?;
        if let Some(columns) = &self.published[name].0 {
            found.columns.retain(|column| columns.contains(&column.name));
        }
        let table = TableShape::new(found, &self.config.mapping.key)?;
        let unknown = table.relation.columns.iter().map(|column| column.type_oid);
        let unknown: Vec<u32> =
            unknown.filter(|oid| *oid >= 16_384 && !self.types.contains_key(oid)).collect();
        if !unknown.is_empty() {
            self.types.extend(catalog::types(&mut self.connection, &unknown).await?);
        }
        let types = self.types.keys().copied().collect();
        Ok(TableShape { types, ..table })
    }
}

/// A table, and how its rows are ordered.
struct TableShape {
    relation: Relation,
    primary: Vec<String>,
    is_partitioned: bool,
    key: Vec<usize>,
    has_ties: bool,
    types: Vec<u32>,
}

impl TableShape {
    /// Rows are ordered by the primary key or the index of the replica identity, and else by the
    /// columns that make the documents' keys.
    fn new(found: catalog::Described, rule: &KeyRule) -> Result<Self> {
        let name = format!("{}.{}", found.schema, found.name);
        let place = |wanted: &String| {
            let place = found.columns.iter().position(|column| column.name == *wanted);
            place.ok_or_else(|| {
                Error::refused(format!("table {name} publishes no column {wanted}, which orders its rows"))
            })
        };
        let (names, has_ties) = match (found.primary.is_empty(), found.identity_index.is_empty(), rule) {
            (false, ..) => (&found.primary, false),
            (true, false, _) => (&found.identity_index, false),
            (true, true, KeyRule::Columns(columns)) => (columns, true),
            (true, true, KeyRule::Primary) => (&found.primary, true),
        };
        let key = names.iter().map(place).collect::<Result<Vec<_>>>()?;
        if key.is_empty() {
            return Err(Error::refused(format!(
                "table {name} has no primary key: add one, or name the columns of its key in `key`"
            )));
        }
        if let Some(column) =
            key.iter().map(|place| &found.columns[*place]).find(|column| !column.is_not_null)
        {
            return Err(Error::refused(format!(
                "column {} of {name} orders its rows, but may be NULL: run ALTER TABLE {} ALTER COLUMN {} SET NOT NULL",
                column.name,
                quoted_table(&name),
                catalog::quoted(&column.name)
            )));
        }
        let (is_partitioned, primary) = (found.is_partitioned, found.primary.clone());
        Ok(Self {
            relation: found.into_relation()?,
            primary,
            is_partitioned,
            key,
            has_ties,
            types: Vec::new(),
        })
    }
}

/// Rows that are kept of an answer: bounded in bytes, and never a part of those with one key.
struct Taken<'a> {
    key: &'a [usize],
    has_ties: bool,
    /// Whether rows that are too long to be read are left out.
    skips: bool,
    rows: Vec<Tuple>,
    too_long: Vec<Error>,
    bytes: usize,
    is_cut: bool,
}

impl Taken<'_> {
    fn take(&mut self, row: Result<Tuple>) -> Result<()> {
        let row = match row {
            Ok(row) => row,
            Err(error) if self.skips => {
                // A later chunk reads it again.
                self.too_long.extend(Some(error).filter(|_| !self.is_cut));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let size: usize =
            row.0.iter().map(|value| if let Value::Text(text) = value { text.len() } else { 0 }).sum();
        self.bytes += size;
        let is_tie = self.has_ties
            && self
                .rows
                .last()
                .is_some_and(|last| self.key.iter().all(|place| last.0.get(*place) == row.0.get(*place)));
        self.is_cut |= self.bytes > CHUNK_BYTES && !self.rows.is_empty() && !is_tie;
        if !self.is_cut {
            self.rows.push(row);
        }
        Ok(())
    }
}

fn visibility(rows: &[Vec<Option<String>>]) -> Result<Visibility> {
    rows.first().and_then(|row| row.first()?.as_deref()).unwrap_or_default().parse()
}

/// A role that may follow a table may lack the right to read it.
fn unreadable(table: &str, error: Error) -> Error {
    match ServerError::code_of(&error) {
        Some("42501") => Error::new(
            ErrorKind::Unauthorized,
            format!(
                "the role may not read table {table}: run GRANT SELECT ON {} to it, or set snapshot: never",
                quoted_table(table)
            ),
        )
        .with_source(error),
        _ => error,
    }
}

/// Whether the same chunk can be read a little later: it waited for a lock or took too long, or its
/// table changed.
pub(crate) fn is_passing(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
        || matches!(ServerError::code_of(error), Some("55P03" | "57014" | "42703" | "40001" | "40P01"))
}
