//! [`Shape`]: a table as its relation message describes it, ready to turn rows into events. Pure.

use super::decode::{Column, Identity, Old, Relation, Tuple, Value};
use super::value::{Types, write_text};
use crate::error::{Error, Result};
use crate::mapping::{KeyRule, Mapping, Tenancy, schema_tenant};
use firth_router::Tenant;
use firth_router::event::{Document, Event, Operation, Text};
use std::sync::Arc;

/// The longest key that a dead letter shows.
const MAX_DEAD_KEY: usize = 4 << 10;

/// What rows of a table become.
#[derive(Debug)]
pub struct Shape {
    table: String,
    name: Arc<str>,
    collection: Text,
    tenant: TenantSource,
    key: Vec<usize>,
    columns: Vec<ShapeColumn>,
    soft_delete: Option<String>,
    /// Whether other tables have documents in its collection.
    is_shared: bool,
}

#[derive(Debug)]
enum TenantSource {
    Column(usize),
    Fixed(Tenant),
}

#[derive(Debug)]
struct ShapeColumn {
    name: String,
    /// The name as JSON, with its colon.
    label: Vec<u8>,
    type_oid: u32,
    /// Whether an old row that is not told in full holds it.
    is_identity: bool,
    is_dropped: bool,
}

/// A row as the stream tells it.
#[derive(Clone, Copy)]
struct Image<'a> {
    row: &'a Tuple,
    /// The old row, if it is told in full: it has the large values that did not change.
    full: Option<&'a Tuple>,
    /// Only the columns of the replica identity have a meaning.
    only_identity: bool,
}

impl<'a> Image<'a> {
    fn of(row: &'a Tuple) -> Self {
        Self { row, full: None, only_identity: false }
    }
}

impl Shape {
    /// The shape of a table. `primary` names the columns of its primary key; it is needed where the
    /// replica identity is the whole row.
    pub fn new(mapping: &Mapping, relation: &Relation, primary: Option<&[String]>) -> Result<Self> {
        let table = format!("{}.{}", relation.schema, relation.name);
        let place = |name: &str| relation.columns.iter().position(|column| column.name == name);
        let key = key(mapping, relation, primary, &table)?;
        let tenant = match &mapping.tenant {
            Tenancy::Constant(tenant) => TenantSource::Fixed(tenant.clone()),
            Tenancy::Schema => TenantSource::Fixed(schema_tenant(&relation.schema, &table)?),
            Tenancy::Column(name) => TenantSource::Column(place(name).ok_or_else(|| {
                Error::refused(format!("tenant.column: table {table} publishes no column {name}"))
            })?),
        };
        let needed = key.iter().copied().chain(match tenant {
            TenantSource::Column(column) => Some(column),
            TenantSource::Fixed(_) => None,
        });
        for column in needed {
            check_identity(relation, &relation.columns[column], &table)?;
        }
        let columns = relation.columns.iter().map(|column| {
            let mut label = Vec::with_capacity(column.name.len() + 3);
            write_text(&mut label, &column.name);
            label.push(b':');
            ShapeColumn {
                name: column.name.clone(),
                label,
                type_oid: column.type_oid,
                is_identity: column.is_key,
                is_dropped: mapping.is_dropped(&table, &column.name),
            }
        });
        Ok(Self {
            name: named(&relation.columns),
            columns: columns.collect(),
            collection: mapping.collection(&relation.schema, &relation.name).into(),
            soft_delete: mapping.soft_delete.clone(),
            is_shared: false,
            table,
            tenant,
            key,
        })
    }

    /// Whether other tables have documents in its collection, too.
    #[must_use]
    pub fn shared(mut self, is_shared: bool) -> Self {
        self.is_shared = is_shared;
        self
    }

    /// A name for its columns and their types: another one if they change.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// `schema.table`.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The key of a row for a dead letter, as text; none if it has none or a long one.
    pub(crate) fn key_as_text(&self, row: &Tuple) -> Option<String> {
        let parts = self.key.iter().map(|place| match row.0.get(*place)? {
            Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Value::Null => Some(String::new()),
            Value::Unchanged => None,
        });
        let key = parts.collect::<Option<Vec<_>>>()?.join(",");
        Some(key).filter(|key| !key.is_empty() && key.len() <= MAX_DEAD_KEY)
    }

    /// The collection of its rows.
    pub fn collection(&self) -> &Text {
        &self.collection
    }

    /// The types of its columns.
    pub fn types(&self) -> impl Iterator<Item = u32> + '_ {
        self.columns.iter().map(|column| column.type_oid)
    }

    /// The event of a new row, or of one that a snapshot found; none if it is marked as deleted.
    pub fn added(&self, types: &Types, operation: Operation, new: &Tuple) -> Result<Vec<Event>> {
        let mut event = self.event(operation, new)?;
        event.after = Some(self.document(types, Image::of(new), &mut event.missing)?);
        self.visible([event])
    }

    /// The events of a change: one, or a delete and an insert if the row changed its key or tenant.
    pub fn updated(&self, types: &Types, old: &Old, new: &Tuple) -> Result<Vec<Event>> {
        let full = match old {
            Old::Full(row) => Some(row),
            Old::Key(_) | Old::Untold => None,
        };
        let mut event = self.event(Operation::Update, new)?;
        event.after = Some(self.document(types, Image { full, ..Image::of(new) }, &mut event.missing)?);
        if let Old::Full(row) | Old::Key(row) = old {
            let before = self.event(Operation::Delete, row)?;
            if (&before.tenant, &before.key) != (&event.tenant, &event.key) {
                event.operation = Operation::Insert;
                let gone = self.gone(types, before, old)?;
                return self.visible([gone, event]);
            }
        }
        if let Some(row) = full {
            event.before = Some(self.document(types, Image::of(row), &mut Vec::new())?);
        }
        self.visible([event])
    }

    /// The event of a delete; none if its document was marked as deleted before.
    pub fn deleted(&self, types: &Types, old: &Old) -> Result<Vec<Event>> {
        let (Old::Full(row) | Old::Key(row)) = old else {
            return Err(Error::corrupt(format!("a delete from {} tells no row", self.table)));
        };
        let gone = self.gone(types, self.event(Operation::Delete, row)?, old)?;
        self.visible([gone])
    }

    fn gone(&self, types: &Types, mut event: Event, old: &Old) -> Result<Event> {
        event.before = match old {
            Old::Full(row) => Some(self.document(types, Image::of(row), &mut Vec::new())?),
            Old::Key(row) => {
                let image = Image { only_identity: true, ..Image::of(row) };
                Some(self.document(types, image, &mut Vec::new())?)
            }
            Old::Untold => None,
        };
        Ok(event)
    }

    /// The control of a truncate. Where the collection holds rows of other tables as well, the
    /// receivers are told to load it again.
    pub fn truncated(&self, cascade: bool, restart_identity: bool) -> Event {
        let operation = if self.is_shared { Operation::Resync } else { Operation::Truncate };
        let tenant = match &self.tenant {
            TenantSource::Fixed(tenant) => Some(tenant.clone()),
            TenantSource::Column(_) => None,
        };
        let restart = if restart_identity { " RESTART IDENTITY" } else { "" };
        let reason = format!("TRUNCATE{restart}{}", if cascade { " CASCADE" } else { "" });
        Event::control(operation, tenant, self.collection.clone()).with_reason(reason)
    }

    /// What remains for receivers that do not see documents which are marked as deleted.
    fn visible<const N: usize>(&self, all: [Event; N]) -> Result<Vec<Event>> {
        let Some(mark) = &self.soft_delete else { return Ok(all.into()) };
        let mut seen = Vec::with_capacity(N);
        for event in all {
            seen.extend(event.without_marked(mark).map_err(|error| self.poison(&error))?);
        }
        Ok(seen)
    }

    /// An event without documents.
    fn event(&self, operation: Operation, row: &Tuple) -> Result<Event> {
        if row.0.len() != self.columns.len() {
            return Err(Error::corrupt(format!("a row of {} has another number of columns", self.table)));
        }
        let tenant = match &self.tenant {
            TenantSource::Fixed(tenant) => tenant.clone(),
            TenantSource::Column(column) => {
                Tenant::new(self.text(row, *column)?).map_err(|error| self.poison(&error))?
            }
        };
        let key = match self.key[..] {
            [column] => Text::from(self.text(row, column)?),
            ref columns => {
                let parts = columns.iter().map(|column| self.text(row, *column).map(escaped));
                Text::from(parts.collect::<Result<Vec<_>>>()?.join(","))
            }
        };
        let event = Event::new(operation, tenant, self.collection.clone(), key);
        event.check().map_err(|error| self.poison(&error))?;
        Ok(event)
    }

    fn text<'a>(&self, row: &'a Tuple, column: usize) -> Result<&'a str> {
        let name = &self.columns[column].name;
        match &row.0[column] {
            Value::Text(text) => std::str::from_utf8(text)
                .map_err(|_| Error::poison(format!("column {name} of a row of {} is no UTF-8", self.table))),
            Value::Null | Value::Unchanged => Err(Error::poison(format!(
                "column {name} of a row of {} has no value, but the event needs it",
                self.table
            ))),
        }
    }

    /// The row as JSON.
    fn document(&self, types: &Types, image: Image<'_>, missing: &mut Vec<Text>) -> Result<Document> {
        let length = |value: &Value| if let Value::Text(text) = value { text.len() } else { 4 };
        let known: usize = image.row.0.iter().map(length).sum();
        let labels: usize = self.columns.iter().map(|column| column.label.len() + 3).sum();
        let mut out = Vec::with_capacity(known + labels + 2);
        out.push(b'{');
        let wanted =
            |column: &ShapeColumn| !column.is_dropped && (column.is_identity || !image.only_identity);
        let columns = self.columns.iter().enumerate().zip(&image.row.0);
        for ((place, column), value) in columns.filter(|((_, column), _)| wanted(column)) {
            let value = match (value, image.full.and_then(|full| full.0.get(place))) {
                (Value::Unchanged, Some(old)) => old,
                (value, _) => value,
            };
            if *value == Value::Unchanged {
                missing.push(Text::from(&*column.name));
                continue;
            }
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(&column.label);
            match value {
                Value::Text(text) => types.write(&mut out, column.type_oid, text).map_err(|error| {
                    Error::new(error.kind(), format!("column {} of {}: {error}", column.name, self.table))
                })?,
                Value::Null | Value::Unchanged => out.extend_from_slice(b"null"),
            }
        }
        out.push(b'}');
        Document::from_json(out).map_err(|error| self.poison(&error))
    }

    fn poison(&self, error: &firth_router::Error) -> Error {
        Error::poison(format!("a row of {} cannot be an event: {error}", self.table))
    }
}

/// A name for columns and their types.
fn named(columns: &[Column]) -> Arc<str> {
    let each =
        columns.iter().flat_map(|column| column.name.bytes().chain([0]).chain(column.type_oid.to_be_bytes()));
    format!("{:016x}", crate::record::fnv(each)).into()
}

/// The places of the key's columns.
fn key(
    mapping: &Mapping,
    relation: &Relation,
    primary: Option<&[String]>,
    table: &str,
) -> Result<Vec<usize>> {
    let named = |columns: &[String]| {
        let places = columns.iter().map(|name| {
            let place = relation.columns.iter().position(|column| column.name == *name);
            place.ok_or_else(|| Error::refused(format!("key: table {table} publishes no column {name}")))
        });
        places.collect::<Result<Vec<_>>>()
    };
    let key = match (&mapping.key, relation.identity, primary) {
        (KeyRule::Columns(columns), ..) => named(columns)?,
        (KeyRule::Primary, Identity::Default | Identity::Index, _) => {
            let columns = relation.columns.iter().enumerate().filter(|(_, column)| column.is_key);
            columns.map(|(place, _)| place).collect()
        }
        (KeyRule::Primary, _, Some(columns)) => named(columns)?,
        (KeyRule::Primary, _, None) => Vec::new(),
    };
    if key.is_empty() {
        return Err(Error::refused(format!(
            "table {table} has no primary key: add one, or name the columns of its key in `key`"
        )));
    }
    if let Some(column) =
        key.iter().map(|place| &relation.columns[*place].name).find(|name| mapping.is_dropped(table, name))
    {
        return Err(Error::invalid(format!("columns.{table}.drop names {column}, which is part of the key")));
    }
    Ok(key)
}

/// A delete tells only the replica identity, so what events need must be in it.
fn check_identity(relation: &Relation, column: &Column, table: &str) -> Result<()> {
    let is_told = match relation.identity {
        Identity::Full => true,
        Identity::Default | Identity::Index => column.is_key,
        Identity::Nothing => false,
    };
    if is_told {
        return Ok(());
    }
    Err(Error::refused(format!(
        "column {} of {table} is not in its replica identity, so a delete would not tell it: \
         run ALTER TABLE {table} REPLICA IDENTITY FULL, or USING INDEX with an index that has it",
        column.name
    )))
}

/// A part of a key that has several.
fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace(',', "%2C")
}

#[cfg(test)]
mod tests;
