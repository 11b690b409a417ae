//! What the database says of itself: version, tables, types, publication and slot.

use super::connection::{Connection, Row};
use super::decode::{Column, Identity, Relation};
use super::position::Lsn;
use super::value::Kind;
use crate::error::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// The oldest version that is read.
const OLDEST: u32 = 130_000;
/// Stands between names that a query puts together; no sane name has it.
const SEPARATOR: char = '\u{1f}';
/// Types that refer to each other are asked for in this many rounds.
const TYPE_ROUNDS: usize = 8;

/// The server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// `server_version_num`.
    pub(crate) version: u32,
    /// Whether it only repeats another.
    pub(crate) is_replica: bool,
}

/// A table that could be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) identity: char,
    pub(crate) primary: Vec<String>,
}

/// A replication slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) plugin: String,
    pub(crate) database: String,
    pub(crate) wal_status: String,
    pub(crate) confirmed: Option<Lsn>,
    /// The session that reads it: its process and application name.
    pub(crate) reader: Option<(String, String)>,
    /// Bytes of the log that it keeps from being removed.
    pub(crate) retained: u64,
    /// Bytes of the log that its reader has not confirmed.
    pub(crate) behind: u64,
}

/// Looks at the server; refuses one that cannot be a source.
pub(crate) async fn server(connection: &mut Connection) -> Result<Server> {
    let sql =
        "SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('wal_level')";
    let rows = connection.query(sql).await?;
    let [Some(version), Some(is_replica), Some(wal_level)] = &rows.first().ok_or_else(odd)?[..] else {
        return Err(odd());
    };
    let version = version.parse().map_err(|_| odd())?;
    if version < OLDEST {
        return Err(Error::refused("the server is older than PostgreSQL 13, the oldest that is read"));
    }
    if wal_level != "logical" {
        return Err(Error::refused(format!(
            "wal_level is {wal_level}: run ALTER SYSTEM SET wal_level = 'logical' and restart PostgreSQL"
        )));
    }
    Ok(Server { version, is_replica: is_replica == "t" })
}

/// The tables of these names, each `schema.table`.
pub(crate) async fn tables(connection: &mut Connection, names: &[String]) -> Result<BTreeMap<String, Table>> {
    let sql = "SELECT n.nspname || '.' || c.relname, c.relreplident, array_to_string(ARRAY(
                 SELECT a.attname FROM pg_index i JOIN pg_attribute a
                   ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                 WHERE i.indrelid = c.oid AND i.indisprimary
                 ORDER BY array_position(i.indkey::int2[], a.attnum)), E'\\x1f')
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname = ANY (string_to_array($1, E'\\x1f'))";
    let rows = connection.query_with(sql, &[&names.join(&SEPARATOR.to_string())]).await?;
    rows.into_iter().map(table).collect()
}

fn table(row: Row) -> Result<(String, Table)> {
    let [Some(name), Some(identity), Some(primary)] = &row[..] else { return Err(odd()) };
    let identity = identity.chars().next().ok_or_else(odd)?;
    Ok((name.clone(), Table { identity, primary: names(primary) }))
}

fn names(joined: &str) -> Vec<String> {
    joined.split(SEPARATOR).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The primary key of the table with this number.
pub(crate) async fn primary(connection: &mut Connection, relation: u32) -> Result<Vec<String>> {
    let sql = "SELECT a.attname FROM pg_index i JOIN pg_attribute a
                 ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
               WHERE i.indrelid = $1::oid AND i.indisprimary
               ORDER BY array_position(i.indkey::int2[], a.attnum)";
    let rows = connection.query_with(sql, &[&relation.to_string()]).await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// These types, and those that they are made of.
pub(crate) async fn types(connection: &mut Connection, wanted: &[u32]) -> Result<Vec<(u32, Kind)>> {
    let sql =
        "SELECT t.oid, t.typtype, t.typbasetype, t.typcategory, t.typelem, e.typdelim, array_to_string(ARRAY(
                 SELECT a.atttypid || ':' || a.attname FROM pg_attribute a
                 WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped AND t.typtype = 'c'
                 ORDER BY a.attnum), E'\\x1f')
               FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem
               WHERE t.oid = ANY (string_to_array($1, ',')::oid[])";
    let mut found: BTreeMap<u32, Kind> = BTreeMap::new();
    let mut next = wanted.to_vec();
    for _ in 0..TYPE_ROUNDS {
        let list = next.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if list.is_empty() {
            break;
        }
        for row in connection.query_with(sql, &[&list]).await? {
            let (oid, kind) = type_kind(&row)?;
            found.insert(oid, kind);
        }
        let parts = found.values().flat_map(|kind| match kind {
            Kind::Domain(part) | Kind::Array(part, _) => vec![*part],
            Kind::Composite(fields) => fields.iter().map(|(_, oid)| *oid).collect(),
            _ => Vec::new(),
        });
        next = parts.filter(|oid| *oid >= 16_384 && !found.contains_key(oid)).collect();
    }
    Ok(found.into_iter().collect())
}

fn type_kind(row: &Row) -> Result<(u32, Kind)> {
    let [Some(oid), Some(kind), Some(base), Some(category), Some(element), delimiter, Some(fields)] =
        &row[..]
    else {
        return Err(odd());
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| odd());
    let kind = match (&**kind, &**category) {
        ("d", _) => Kind::Domain(number(base)?),
        ("c", _) => {
            let fields = names(fields).into_iter().map(|field| {
                let (oid, name) = field.split_once(':').ok_or_else(odd)?;
                Ok((name.to_owned(), number(oid)?))
            });
            Kind::Composite(fields.collect::<Result<_>>()?)
        }
        (_, "A") => {
            let delimiter = delimiter.as_deref().and_then(|text| text.bytes().next());
            Kind::Array(number(element)?, delimiter.unwrap_or(b','))
        }
        _ => Kind::Text,
    };
    Ok((number(oid)?, kind))
}

/// What a publication publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publication {
    pub(crate) tables: Vec<String>,
    /// Whether it has inserts, updates and deletes.
    pub(crate) changes: bool,
    pub(crate) truncates: bool,
    pub(crate) all_tables: bool,
}

/// The publication of this name.
pub(crate) async fn published(connection: &mut Connection, publication: &str) -> Result<Option<Publication>> {
    let sql = "SELECT pubinsert AND pubupdate AND pubdelete, pubtruncate, puballtables
               FROM pg_publication WHERE pubname = $1";
    let found = connection.query_with(sql, &[publication]).await?;
    let Some(Some(flags)) = found.into_iter().next().map(|row| row.into_iter().collect::<Option<Vec<_>>>())
    else {
        return Ok(None);
    };
    let is_set = |place: usize| flags.get(place).is_some_and(|flag| flag == "t");
    let sql = "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = $1";
    let rows = connection.query_with(sql, &[publication]).await?;
    let tables = rows.into_iter().flatten().flatten().collect();
    Ok(Some(Publication { tables, changes: is_set(0), truncates: is_set(1), all_tables: is_set(2) }))
}

/// The slot of this name.
pub(crate) async fn slot(connection: &mut Connection, name: &str) -> Result<Option<Slot>> {
    let sql = "SELECT s.plugin, s.database, s.wal_status, s.confirmed_flush_lsn, s.active_pid,
                 coalesce(a.application_name, ''),
                 coalesce(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint, 0),
                 coalesce(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::bigint, 0)
               FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
               WHERE s.slot_name = $1";
    let rows = connection.query_with(sql, &[name]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let [plugin, database, status, confirmed, reader, application, Some(retained), Some(behind)] = &row[..]
    else {
        return Err(odd());
    };
    Ok(Some(Slot {
        plugin: plugin.clone().unwrap_or_default(),
        database: database.clone().unwrap_or_default(),
        wal_status: status.clone().unwrap_or_else(|| "lost".to_owned()),
        confirmed: confirmed.as_deref().map(str::parse).transpose()?,
        reader: reader.clone().map(|pid| (pid, application.clone().unwrap_or_default())),
        retained: retained.parse().map_err(|_| odd())?,
        behind: behind.parse().map_err(|_| odd())?,
    }))
}

/// A table whose rows are to be read.
#[derive(Debug)]
pub(crate) struct Described {
    id: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    identity: char,
    pub(crate) is_partitioned: bool,
    pub(crate) columns: Vec<DescribedColumn>,
    /// The columns of the primary key, in its order.
    pub(crate) primary: Vec<String>,
    /// The columns of the replica identity's index, in its order.
    pub(crate) identity_index: Vec<String>,
}

/// One of its columns.
#[derive(Debug)]
pub(crate) struct DescribedColumn {
    pub(crate) name: String,
    type_oid: u32,
    pub(crate) is_not_null: bool,
}

impl Described {
    /// As the stream would describe it.
    pub(crate) fn into_relation(self) -> Result<Relation> {
        let identity = match self.identity {
            'd' => Identity::Default,
            'n' => Identity::Nothing,
            'f' => Identity::Full,
            'i' => Identity::Index,
            _ => return Err(odd()),
        };
        let is_key = |name: &String| match identity {
            Identity::Default => self.primary.contains(name),
            Identity::Index => self.identity_index.contains(name),
            Identity::Full => true,
            Identity::Nothing => false,
        };
        let columns = self.columns.iter().map(|column| Column {
            is_key: is_key(&column.name),
            name: column.name.clone(),
            type_oid: column.type_oid,
        });
        let columns = columns.collect();
        Ok(Relation { id: self.id, schema: self.schema, name: self.name, identity, columns })
    }
}

/// The table with this name, as it is now.
pub(crate) async fn described(connection: &mut Connection, table: &str) -> Result<Option<Described>> {
    let (schema, name) = table.split_once('.').unwrap_or(("public", table));
    let sql = "SELECT c.oid, c.relreplident, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";
    let rows = connection.query_with(sql, &[schema, name]).await?;
    let Some(row) = rows.into_iter().next() else { return Ok(None) };
    let [Some(oid), Some(identity), Some(kind)] = &row[..] else { return Err(odd()) };
    let sql = "SELECT a.attname, a.atttypid, a.attnotnull,
                 coalesce(array_position(p.indkey::int2[], a.attnum), -1),
                 coalesce(array_position(i.indkey::int2[], a.attnum), -1)
               FROM pg_attribute a
               LEFT JOIN pg_index p ON p.indrelid = a.attrelid AND p.indisprimary
               LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisreplident
               WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
               ORDER BY a.attnum";
    let (mut columns, mut primary, mut index) = (Vec::new(), Vec::new(), Vec::new());
    for row in connection.query_with(sql, &[oid]).await? {
        let [Some(name), Some(type_oid), Some(not_null), Some(in_primary), Some(in_index)] = &row[..] else {
            return Err(odd());
        };
        for (place, key) in [(in_primary, &mut primary), (in_index, &mut index)] {
            let place = place.parse::<i32>().map_err(|_| odd())?;
            key.extend((place >= 0).then(|| (place, name.clone())));
        }
        let type_oid = type_oid.parse().map_err(|_| odd())?;
        columns.push(DescribedColumn { name: name.clone(), type_oid, is_not_null: not_null == "t" });
    }
    let in_order = |mut key: Vec<(i32, String)>| {
        key.sort_unstable();
        key.into_iter().map(|(_, name)| name).collect()
    };
    Ok(Some(Described {
        id: oid.parse().map_err(|_| odd())?,
        schema: schema.to_owned(),
        name: name.to_owned(),
        identity: identity.chars().next().ok_or_else(odd)?,
        is_partitioned: kind == "p",
        columns,
        primary: in_order(primary),
        identity_index: in_order(index),
    }))
}

/// About how many rows the table has; 0 if that was never counted.
pub(crate) async fn expected_rows(connection: &mut Connection, relation: u32) -> Result<u64> {
    let sql = "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class
               WHERE relkind = 'r' AND (oid = $1::oid OR oid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass)))";
    let rows = connection.query_with(sql, &[&relation.to_string()]).await?;
    let count = rows.first().and_then(|row| row.first()?.as_deref()).and_then(|text| text.parse().ok());
    count.ok_or_else(odd)
}

/// Which columns of a table are published, and under which condition. For version 15 and newer.
pub(crate) async fn published_part(
    connection: &mut Connection,
    publication: &str,
    table: &str,
) -> Result<(Option<Vec<String>>, Option<String>)> {
    let sql = "SELECT array_to_string(attnames, E'\\x1f'), rowfilter FROM pg_publication_tables
               WHERE pubname = $1 AND schemaname || '.' || tablename = $2";
    let rows = connection.query_with(sql, &[publication, table]).await?;
    Ok(rows.into_iter().next().map_or((None, None), |mut row| {
        let filter = row.pop().flatten();
        (row.pop().flatten().map(|columns| names(&columns)), filter)
    }))
}

/// Which published tables have a list of columns, and a condition for rows. For version 15 and
/// newer.
pub(crate) async fn published_parts(
    connection: &mut Connection,
    publication: &str,
) -> Result<BTreeMap<String, (Option<Vec<String>>, bool)>> {
    let sql = "SELECT n.nspname || '.' || c.relname, r.prqual IS NOT NULL,
                 CASE WHEN r.prattrs IS NOT NULL THEN array_to_string(ARRAY(
                   SELECT a.attname FROM pg_attribute a
                   WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[]) ORDER BY a.attnum), E'\\x1f') END
               FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
                 JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE p.pubname = $1";
    let rows = connection.query_with(sql, &[publication]).await?.into_iter().map(|row| {
        let [Some(table), Some(has_filter), columns] = &row[..] else { return Err(odd()) };
        Ok((table.clone(), (columns.as_deref().map(names), has_filter == "t")))
    });
    rows.collect()
}

/// The tables that hold the rows of a table: itself, or its partitions.
pub(crate) async fn leaves(connection: &mut Connection, table: &str) -> Result<Vec<String>> {
    let sql =
        "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.relkind = 'r' AND (c.oid = $1::regclass
                 OR c.oid IN (SELECT relid FROM pg_partition_tree($1::regclass) WHERE isleaf))";
    let rows = connection.query_with(sql, &[&quoted_table(table)]).await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// A name as SQL writes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table as SQL writes it, from `schema.table`.
pub(crate) fn quoted_table(name: &str) -> String {
    let (schema, table) = name.split_once('.').unwrap_or(("public", name));
    format!("{}.{}", quoted(schema), quoted(table))
}

fn odd() -> Error {
    Error::new(ErrorKind::Corrupt, "the catalog of the database answers in an unknown form")
}
