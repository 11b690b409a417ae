//! [`Parts`]: which columns and rows of each table the source's own publication sends. Pure.

use super::catalog::{quoted, quoted_table};
use crate::control::MAX_CONDITION;
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The oldest version whose publications have lists of columns and filters of rows.
const OLDEST: u32 = 150_000;

/// What is special about the columns of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableColumns {
    /// These columns never leave the reader.
    #[serde(default)]
    pub drop: Vec<String>,
    /// Only these columns leave the database.
    #[serde(default)]
    pub only: Option<Vec<String>>,
}

/// What the publication sends of its tables; whole tables are not named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts(BTreeMap<String, Part>);

/// What it sends of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) filter: Option<String>,
}

impl Parts {
    /// Checks the lists and the conditions, by `schema.table`. Events need the columns `needed`.
    pub(super) fn new(
        columns: &BTreeMap<String, TableColumns>,
        filters: &BTreeMap<String, String>,
        needed: &[&String],
    ) -> Result<Self> {
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        for (table, rule) in columns {
            let Some(only) = &rule.only else { continue };
            if only.is_empty() {
                return Err(Error::invalid(format!("columns.{table}.only names no column")));
            }
            if let Some(lacks) = needed.iter().find(|column| !only.contains(column)) {
                let text = format!("columns.{table}.only lacks {lacks}, which the events need");
                return Err(Error::invalid(text));
            }
            parts.entry(table.clone()).or_default().columns = Some(only.clone());
        }
        for (table, filter) in filters {
            if filter.trim().is_empty() || filter.len() > MAX_CONDITION || filter.contains('\0') {
                let length = filter.len();
                return Err(Error::invalid(format!(
                    "where.{table} has {length} bytes; give a condition of 1 to {MAX_CONDITION}"
                )));
            }
            parts.entry(table.clone()).or_default().filter = Some(filter.clone());
        }
        Ok(Self(parts))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is sent of a table, unless it is all.
    pub(crate) fn of(&self, table: &str) -> Option<&Part> {
        self.0.get(table)
    }

    /// Refuses a server whose publications send whole tables only.
    pub(super) fn check_version(&self, version: u32) -> Result<()> {
        if self.is_empty() || version >= OLDEST {
            return Ok(());
        }
        Err(Error::refused(format!(
            "`only` in `columns`, and `where`, need PostgreSQL 15; the server is {}: leave them out, and name \
             columns in `drop`, which the reader leaves out",
            version / 10_000
        )))
    }

    /// A table in a publication's list.
    pub(super) fn sql(&self, table: &str) -> String {
        let mut sql = quoted_table(table);
        let Some(part) = self.of(table) else { return sql };
        if let Some(columns) = &part.columns {
            let names: Vec<_> = columns.iter().map(|column| quoted(column)).collect();
            sql += &format!(" ({})", names.join(", "));
        }
        if let Some(filter) = &part.filter {
            sql += &format!(" WHERE ({filter})");
        }
        sql
    }

    /// A name for all of it: another one if the configuration changes. None for whole tables.
    pub(crate) fn name(&self) -> Option<String> {
        let each = self.0.keys().map(|table| self.sql(table));
        let bytes = each.collect::<Vec<_>>().join("\0");
        (!self.is_empty()).then(|| format!("{:016x}", crate::record::fnv(bytes.bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(only: &[&str], filter: &str) -> Result<Parts> {
        let only = Some(only.iter().map(ToString::to_string).collect());
        let columns = BTreeMap::from([("public.orders".to_owned(), TableColumns { only, drop: Vec::new() })]);
        let filters = BTreeMap::from([("shop.items".to_owned(), filter.to_owned())]);
        Parts::new(&columns, &filters, &[&"tenant".to_owned()])
    }

    #[test]
    fn a_table_is_listed_with_its_columns_and_its_condition() {
        let parts = parts(&["id", "tenant"], "total > 5").unwrap();
        assert_eq!(parts.sql("public.orders"), "\"public\".\"orders\" (\"id\", \"tenant\")");
        assert_eq!(parts.sql("shop.items"), "\"shop\".\"items\" WHERE (total > 5)");
        assert_eq!(parts.sql("public.others"), "\"public\".\"others\"");
        assert_eq!(Parts::default().name(), None);
        assert_ne!(parts.name(), super::tests::parts(&["id", "tenant"], "total > 6").unwrap().name());
    }

    #[test]
    fn wrong_parts_are_named() {
        for (made, expected) in [
            (parts(&[], "true"), "columns.public.orders.only names no column"),
            (parts(&["id"], "true"), "only lacks tenant"),
            (parts(&["tenant"], " "), "where.shop.items has 1 bytes"),
            (parts(&["tenant"], &"x".repeat(5_000)), "1 to 4096"),
        ] {
            let error = made.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn older_servers_are_refused_with_what_they_can_do() {
        let parts = parts(&["tenant"], "true").unwrap();
        assert!(parts.check_version(150_000).is_ok() && Parts::default().check_version(130_000).is_ok());
        let error = parts.check_version(140_009).unwrap_err().to_string();
        assert!(error.contains("need PostgreSQL 15; the server is 14"), "{error}");
    }
}
