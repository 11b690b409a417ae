//! How tables become collections: whose a row is, under which key, and which columns leave the
//! database.

use crate::error::{Error, Result};
use firth_router::Tenant;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Where a row's tenant comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TenantRule {
    /// A column of the row. It must be in the replica identity, or a delete has no tenant.
    Column(String),
    /// All rows are this tenant's.
    Constant(String),
    /// The name of the table's schema; the value is always `true`.
    Schema(bool),
}

/// Which columns make the key of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawKey")]
pub enum KeyRule {
    /// The primary key, or the index of the replica identity.
    #[default]
    Primary,
    /// These columns.
    Columns(Vec<String>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawKey {
    Word(String),
    Columns(Vec<String>),
}

impl From<RawKey> for KeyRule {
    fn from(raw: RawKey) -> Self {
        match raw {
            RawKey::Word(word) if word == "primary" => Self::Primary,
            RawKey::Word(column) => Self::Columns(vec![column]),
            RawKey::Columns(columns) => Self::Columns(columns),
        }
    }
}

/// What is special about a table's columns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnRule {
    /// These columns never leave the reader.
    #[serde(default)]
    pub drop: Vec<String>,
}

/// How rows become events.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub(crate) tenant: Tenancy,
    collection: String,
    pub(crate) key: KeyRule,
    drops: HashMap<String, HashSet<String>>,
    pub(crate) soft_delete: Option<String>,
}

/// A checked [`TenantRule`].
#[derive(Clone, Debug)]
pub(crate) enum Tenancy {
    Column(String),
    Constant(Tenant),
    Schema,
}

impl Mapping {
    /// Checks the rules.
    pub fn new(
        tenant: &TenantRule,
        collection: &str,
        key: KeyRule,
        columns: &BTreeMap<String, ColumnRule>,
        soft_delete: Option<String>,
    ) -> Result<Self> {
        let tenant = match tenant {
            TenantRule::Column(column) => Tenancy::Column(column.clone()),
            TenantRule::Constant(name) => Tenancy::Constant(
                Tenant::new(name).map_err(|error| Error::invalid(format!("tenant.constant: {error}")))?,
            ),
            TenantRule::Schema(true) => Tenancy::Schema,
            TenantRule::Schema(false) => {
                return Err(Error::invalid("tenant.schema is false: give true, `column` or `constant`"));
            }
        };
        if key == KeyRule::Columns(Vec::new()) {
            return Err(Error::invalid("key names no column: give `primary` or a list of columns"));
        }
        check_template(collection)?;
        let drops = columns.iter().map(|(table, rule)| {
            let columns: HashSet<String> = rule.drop.iter().cloned().collect();
            let protected = [soft_delete.as_ref(), tenant.column()];
            match protected.into_iter().flatten().find(|column| columns.contains(*column)) {
                Some(column) => {
                    Err(Error::invalid(format!("columns.{table}.drop names {column}, which the events need")))
                }
                None => Ok((table.clone(), columns)),
            }
        });
        let drops = drops.collect::<Result<_>>()?;
        Ok(Self { tenant, collection: collection.to_owned(), key, drops, soft_delete })
    }

    /// The collection of a table.
    pub fn collection(&self, schema: &str, table: &str) -> String {
        self.collection.replace("{schema}", schema).replace("{table}", table)
    }

    /// Whom a control about a table is for: its tenant, if all rows have the same, and collection.
    pub(crate) fn scope(&self, schema: &str, table: &str) -> Result<(Option<Tenant>, String)> {
        let tenant = match &self.tenant {
            Tenancy::Constant(tenant) => Some(tenant.clone()),
            Tenancy::Schema => Some(schema_tenant(schema, &format!("{schema}.{table}"))?),
            Tenancy::Column(_) => None,
        };
        Ok((tenant, self.collection(schema, table)))
    }

    /// Whether documents of another of these tables, `schema.table` each, lie in this one's
    /// collection.
    pub(crate) fn shares_collection(&self, tables: &HashSet<String>, schema: &str, table: &str) -> bool {
        let own = (self.collection(schema, table), self.tenant_of(schema));
        let of = |(schema, table)| (self.collection(schema, table), self.tenant_of(schema));
        let mut others = tables.iter().filter_map(|name| name.split_once('.'));
        others.any(|other| other != (schema, table) && of(other) == own)
    }

    /// The tenant, if the schema decides it.
    fn tenant_of<'a>(&self, schema: &'a str) -> Option<&'a str> {
        matches!(self.tenant, Tenancy::Schema).then_some(schema)
    }

    /// Whether a column stays in the database.
    pub(crate) fn is_dropped(&self, table: &str, column: &str) -> bool {
        self.drops.get(table).is_some_and(|columns| columns.contains(column))
    }
}

impl Tenancy {
    pub(crate) fn column(&self) -> Option<&String> {
        match self {
            Self::Column(column) => Some(column),
            Self::Constant(_) | Self::Schema => None,
        }
    }
}

/// A schema's name as a tenant.
pub(crate) fn schema_tenant(schema: &str, table: &str) -> Result<Tenant> {
    Tenant::new(schema).map_err(|error| {
        Error::refused(format!("tenant.schema: the schema of {table} is no tenant: {error}"))
    })
}

fn check_template(collection: &str) -> Result<()> {
    let rest = collection.replace("{schema}", "").replace("{table}", "");
    if collection.is_empty() || rest.contains(['{', '}']) {
        return Err(Error::invalid(format!(
            "collection is {collection:?}: give a name that may contain {{schema}} and {{table}}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(tenant: &TenantRule, collection: &str, drop: &[&str]) -> Result<Mapping> {
        let rule = ColumnRule { drop: drop.iter().map(ToString::to_string).collect() };
        let columns = BTreeMap::from([("public.users".to_owned(), rule)]);
        Mapping::new(tenant, collection, KeyRule::Primary, &columns, Some("deleted_at".into()))
    }

    #[test]
    fn a_wrong_rule_is_named() {
        let column = TenantRule::Column("tenant_id".into());
        let cases = [
            (mapping(&TenantRule::Constant("a b".into()), "c", &[]), "tenant.constant"),
            (mapping(&TenantRule::Schema(false), "c", &[]), "tenant.schema"),
            (mapping(&column, "{tabel}", &[]), "collection"),
            (mapping(&column, "", &[]), "collection"),
            (mapping(&column, "c", &["tenant_id"]), "columns.public.users.drop names tenant_id"),
            (mapping(&column, "c", &["deleted_at"]), "columns.public.users.drop names deleted_at"),
        ];
        for (made, expected) in cases {
            let error = made.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let fine = mapping(&column, "{schema}.{table}", &["password"]).unwrap();
        assert_eq!(fine.collection("public", "users"), "public.users");
        assert!(fine.is_dropped("public.users", "password") && !fine.is_dropped("public.users", "name"));
    }
}
