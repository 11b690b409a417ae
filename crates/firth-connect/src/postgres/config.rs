//! [`Config`]: a PostgreSQL source, every option checked.

use super::emitted::OWN;
use super::limits::{LimitOptions, WalLimit};
use super::parts::{Parts, TableColumns};
use super::target::{Target, TlsFiles, read_password};
use crate::error::{Error, Result};
use crate::mapping::{ColumnRule, KeyRule, Mapping, TenantRule};
use crate::pump::Limits;
use crate::source::{OnLost, Policy, PolicyOptions};
use firth_router::Tenant;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::PathBuf;

/// Tables of one source, at most.
const MAX_TABLES: usize = 10_000;
/// Bytes of their names together: what a source saves holds them twice, and has 64 KiB.
const MAX_TABLE_NAMES: usize = 20 << 10;

/// Rows that are copied in one transaction, at most.
const CHUNK_ROWS: usize = 10_000;
/// Topics of an outbox, at most.
const MAX_OUTBOX: usize = 16;

/// What happens to rows that were there before their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotMode {
    /// They are copied once, beside the change stream.
    #[default]
    Initial,
    /// They are left alone.
    Never,
    /// They are copied, and then the source rests: it follows no changes.
    Only,
}

/// A source as its section of the configuration has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The database; see [`Target::parse`].
    pub url: String,
    /// A file with the role's password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's, PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Our certificate, PEM.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The topic that gets the changes.
    pub topic: String,
    /// The tables, `schema.table`; those of schema `public` may leave it out.
    pub tables: Vec<String>,
    /// A publication that an operator made; without it the source makes `firth_<source>`.
    #[serde(default)]
    pub publication: Option<String>,
    /// Whose the rows are.
    pub tenant: TenantRule,
    /// The collection of a table; `{schema}` and `{table}` stand for its names.
    #[serde(default = "table_name")]
    pub collection: String,
    /// Which columns make a document's key.
    #[serde(default)]
    pub key: KeyRule,
    /// What is special about the columns of a table.
    #[serde(default)]
    pub columns: BTreeMap<String, TableColumns>,
    /// Which rows of a table leave the database, as the condition of a `WHERE`.
    #[serde(default, rename = "where")]
    pub filters: BTreeMap<String, String>,
    /// A column that marks a row as deleted.
    #[serde(default)]
    pub soft_delete: Option<String>,
    /// Whole numbers beyond 2^53 become text.
    #[serde(default)]
    pub exact_numbers: bool,
    /// What happens to rows that were there before.
    #[serde(default)]
    pub snapshot: SnapshotMode,
    /// What happens to a change that cannot be an event.
    #[serde(flatten)]
    pub policy: PolicyOptions,
    /// Further topics, for messages that `pg_logical_emit_message` writes into the log.
    #[serde(default)]
    pub outbox: BTreeSet<String>,
    /// Topics of the outbox for messages with other prefixes than firth's own.
    #[serde(default)]
    pub messages: BTreeMap<String, String>,
    /// Whether the reader writes a sign of life into the log every ten seconds.
    #[serde(default)]
    pub heartbeat: bool,
    /// How much of its log the database may keep for the source.
    #[serde(default)]
    pub limits: LimitOptions,
    /// Whose transactions are read.
    #[serde(default)]
    pub origin: Origin,
    /// Whether the server keeps the slot on its standbys, too.
    #[serde(default)]
    pub failover: bool,
    /// Whether records name the shape of their table in a header.
    #[serde(default)]
    pub schema_header: bool,
}

/// Whose transactions are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// All.
    #[default]
    Any,
    /// Those without an origin: none that replication or a sink of firth wrote.
    None,
}

fn table_name() -> String {
    "{table}".to_owned()
}

/// A checked source.
#[derive(Clone)]
pub struct Config {
    /// Its name: part of the slot's, of the claim's and of every record's headers.
    pub name: String,
    /// The topic that gets the changes.
    pub topic: String,
    /// Batches and buffer.
    pub limits: Limits,
    /// Rows that are copied in one transaction, at most.
    pub chunk_rows: usize,
    pub(crate) target: Target,
    pub(crate) tables: Vec<String>,
    pub(crate) own_publication: bool,
    pub(crate) publication: String,
    pub(crate) mapping: Mapping,
    pub(crate) exact_numbers: bool,
    pub(crate) snapshot: SnapshotMode,
    pub(crate) outbox: BTreeSet<String>,
    pub(crate) messages: BTreeMap<String, String>,
    pub(crate) policy: Policy,
    pub(crate) heartbeat: bool,
    pub(crate) wal: WalLimit,
    pub(crate) origin: Origin,
    pub(crate) failover: bool,
    pub(crate) parts: Parts,
    pub(crate) schema_header: bool,
}

impl Config {
    /// Checks the options of the source `name`. `password` wins over `password_file`.
    pub fn new(name: &str, options: &Options, password: Option<String>) -> Result<Self> {
        crate::config::check_name(name)?;
        let password = match (password, &options.password_file) {
            (Some(password), _) => Some(password),
            (None, Some(file)) => Some(read_password(file)?),
            (None, None) => None,
        };
        let files = TlsFiles {
            ca_file: options.ca_file.clone(),
            cert_file: options.cert_file.clone(),
            key_file: options.key_file.clone(),
        };
        let tables = tables(&options.tables)?;
        let columns = by_table("columns", &options.columns, &tables)?;
        let drops =
            columns.iter().map(|(table, rule)| (table.clone(), ColumnRule { drop: rule.drop.clone() }));
        let drops = drops.collect();
        let publication = options.publication.clone().unwrap_or_else(|| format!("firth_{name}"));
        if publication.is_empty() || publication.contains([',', ' ', '\0']) {
            return Err(Error::invalid("publication: give a name without commas and spaces"));
        }
        Ok(Self {
            name: name.to_owned(),
            topic: options.topic.clone(),
            limits: Limits::default(),
            chunk_rows: CHUNK_ROWS,
            target: Target::parse(&options.url, password, files)?,
            own_publication: options.publication.is_none(),
            publication,
            mapping: Mapping::new(
                &options.tenant,
                &options.collection,
                options.key.clone(),
                &drops,
                options.soft_delete.clone(),
            )?,
            parts: parts(options, &columns, &tables)?,
            failover: options.failover,
            exact_numbers: options.exact_numbers,
            snapshot: options.snapshot,
            tables: tables.into_iter().collect(),
            outbox: outbox(options)?,
            messages: messages(options)?,
            policy: policy(options)?,
            heartbeat: options.heartbeat,
            wal: WalLimit::new(&options.limits)?,
            origin: options.origin,
            schema_header: options.schema_header,
        })
    }

    /// All topics beside that of the events.
    pub fn further_topics(&self) -> BTreeSet<String> {
        self.outbox.iter().chain(&self.policy.dead_topic).cloned().collect()
    }

    /// Whether this is one of its tables; `public.` may be left out.
    pub fn has_table(&self, table: &str) -> bool {
        self.tables.contains(&qualified(table))
    }

    /// Whom the controls of a resync are for: each tenant, if tables have one, and collection.
    pub(crate) fn scopes(&self) -> Result<Vec<(Option<Tenant>, String)>> {
        let mut scopes = HashSet::new();
        for (schema, table) in self.tables.iter().filter_map(|table| table.split_once('.')) {
            scopes.insert(self.mapping.scope(schema, table)?);
        }
        let mut scopes: Vec<_> = scopes.into_iter().collect();
        scopes.sort_by_cached_key(|(tenant, collection)| {
            (tenant.as_ref().map(|tenant| tenant.as_str().to_owned()), collection.clone())
        });
        Ok(scopes)
    }

    /// The slot's name.
    pub fn slot(&self) -> String {
        format!("firth_{}", self.name)
    }

    /// How our sessions are named in the server's views.
    pub(crate) fn application(&self, epoch: u64) -> String {
        format!("{}{epoch}", self.application_prefix())
    }

    /// The part of that name which all readers of this source share.
    pub(crate) fn application_prefix(&self) -> String {
        // PostgreSQL cuts names off at 63 bytes; an epoch needs up to 20.
        format!("firth:{:.30}:", self.name)
    }
}

/// A loss is mended by a copy of all tables.
fn policy(options: &Options) -> Result<Policy> {
    if options.policy.on_lost == OnLost::Resync && options.snapshot == SnapshotMode::Never {
        return Err(Error::invalid(
            "on_lost is resync, which copies all tables anew, but snapshot is never: give on_lost: stop, or \
             snapshot: initial",
        ));
    }
    // A resync names each collection.
    Policy::new(&options.policy, &options.topic, Some(&options.collection))
}

/// The topics of the outbox: some, and not that of the events.
fn outbox(options: &Options) -> Result<BTreeSet<String>> {
    if options.outbox.len() > MAX_OUTBOX {
        let count = options.outbox.len();
        return Err(Error::invalid(format!("outbox has {count} topics; give at most {MAX_OUTBOX}")));
    }
    for name in &options.outbox {
        firth::TopicName::new(name).map_err(|error| Error::invalid(format!("outbox: {error}")))?;
        if *name == options.topic || Some(name) == policy(options)?.dead_topic.as_ref() {
            return Err(Error::invalid(format!("outbox names {name}, which is not for messages")));
        }
    }
    Ok(options.outbox.clone())
}

/// The topics of messages with other prefixes: each must be one of the outbox.
fn messages(options: &Options) -> Result<BTreeMap<String, String>> {
    let wrong = options.messages.iter().find_map(|(prefix, topic)| {
        if prefix.is_empty() || prefix.starts_with(OWN) {
            return Some(format!(
                "messages: {prefix:?} is no prefix: give one that does not begin with {OWN}"
            ));
        }
        let is_known = options.outbox.contains(topic);
        (!is_known).then(|| format!("messages.{prefix} names topic {topic}, which `outbox` does not name"))
    });
    wrong.map_or_else(|| Ok(options.messages.clone()), |wrong| Err(Error::invalid(wrong)))
}

fn tables(names: &[String]) -> Result<BTreeSet<String>> {
    if names.is_empty() || names.len() > MAX_TABLES {
        return Err(Error::invalid(format!("tables has {} entries; give 1 to {MAX_TABLES}", names.len())));
    }
    if let Some(bad) = names.iter().find(|name| name.is_empty() || name.contains(['\0', '\u{1f}', '*'])) {
        return Err(Error::invalid(format!("tables: {bad:?} is no table: name each one, as schema.table")));
    }
    let tables: BTreeSet<_> = names.iter().map(|name| qualified(name)).collect();
    let length: usize = tables.iter().map(String::len).sum();
    if length > MAX_TABLE_NAMES {
        return Err(Error::invalid(format!(
            "the names in tables have {length} bytes; give at most {MAX_TABLE_NAMES}, or several sources"
        )));
    }
    Ok(tables)
}

/// What an option says of tables, by their whole names; they must be among those of the source.
fn by_table<T: Clone>(
    option: &str,
    rules: &BTreeMap<String, T>,
    tables: &BTreeSet<String>,
) -> Result<BTreeMap<String, T>> {
    let rules: BTreeMap<_, _> = rules.iter().map(|(table, rule)| (qualified(table), rule.clone())).collect();
    match rules.keys().find(|table| !tables.contains(*table)) {
        Some(stranger) => Err(Error::invalid(format!("{option}.{stranger} is no table of `tables`"))),
        None => Ok(rules),
    }
}

/// What the source's own publication sends.
fn parts(
    options: &Options,
    columns: &BTreeMap<String, TableColumns>,
    tables: &BTreeSet<String>,
) -> Result<Parts> {
    let tenant = match &options.tenant {
        TenantRule::Column(column) => Some(column),
        TenantRule::Constant(_) | TenantRule::Schema(_) => None,
    };
    let key = match &options.key {
        KeyRule::Primary => &[][..],
        KeyRule::Columns(columns) => columns,
    };
    let needed: Vec<_> = tenant.into_iter().chain(&options.soft_delete).chain(key).collect();
    let parts = Parts::new(columns, &by_table("where", &options.filters, tables)?, &needed)?;
    if !parts.is_empty() && options.publication.is_some() {
        return Err(Error::invalid(
            "publication names one that an operator made: give its columns and rows there, not by `only` or `where`",
        ));
    }
    Ok(parts)
}

pub(super) fn qualified(table: &str) -> String {
    if table.contains('.') { table.to_owned() } else { format!("public.{table}") }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Config({}: {:?} to {})", self.name, self.target, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(name: &str, change: serde_json::Value) -> Result<Config> {
        let mut options = json!({
            "url": "postgres://firth@127.0.0.1/shop", "topic": "changes",
            "tables": ["orders", "shop.items"], "tenant": { "constant": "acme" },
        });
        let fields = options.as_object_mut().unwrap();
        fields.extend(change.as_object().unwrap().clone());
        let options: Options = serde_json::from_value(options).map_err(|e| Error::invalid(e.to_string()))?;
        Config::new(name, &options, None)
    }

    #[test]
    fn each_wrong_option_is_named() {
        for (name, change, expected) in [
            ("Shop", json!({}), "a source is named"),
            ("", json!({}), "a source is named"),
            ("shop", json!({ "tables": [] }), "tables has 0"),
            ("shop", json!({ "tables": ["*"] }), "tables"),
            ("shop", json!({ "columns": { "users": { "drop": ["x"] } } }), "columns.public.users"),
            ("shop", json!({ "publication": "a,b" }), "publication"),
            ("shop", json!({ "tenant": { "row": "x" } }), "unknown variant"),
            ("shop", json!({ "url": "postgres://firth:secret@h/d" }), "password"),
            ("shop", json!({ "password_file": "/nonexistent/file" }), "password_file"),
            ("shop", json!({ "snapshots": true }), "unknown field"),
            ("shop", json!({ "snapshot": "always" }), "unknown variant"),
            ("shop", json!({ "on_error": "skip" }), "unknown variant"),
            ("shop", json!({ "origin": "remote" }), "unknown variant"),
            ("shop", json!({ "where": { "users": "true" } }), "where.public.users is no table"),
            ("shop", json!({ "columns": { "orders": { "only": [] } } }), "columns.public.orders.only"),
            ("shop", json!({ "where": { "orders": "true" }, "publication": "p" }), "an operator made"),
            ("shop", json!({ "limits": { "wal": 7 } }), "limits.wal is 7 bytes"),
            ("shop", json!({ "limits": { "log": 7 } }), "unknown field"),
            ("shop", json!({ "on_lost": "resync", "snapshot": "never" }), "but snapshot is never"),
            ("shop", json!({ "outbox": ["changes"] }), "outbox names changes"),
            ("shop", json!({ "outbox": ["a b"] }), "outbox"),
            ("shop", json!({ "messages": { "audit": "log" } }), "messages.audit names topic log"),
            ("shop", json!({ "messages": { "firth.x": "log" } }), "does not begin with firth."),
            (
                "shop",
                json!({ "tables": (0..900).map(|n| format!("table_of_some_length_{n}")).collect::<Vec<_>>() }),
                "several sources",
            ),
        ] {
            let error = config(name, change).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_source_has_names_of_its_own() {
        let config = config("shop", json!({ "key": ["a", "b"] })).unwrap();
        assert_eq!(config.tables, ["public.orders", "shop.items"]);
        assert_eq!((config.slot(), &*config.publication), ("firth_shop".into(), "firth_shop"));
        assert!(config.application(u64::MAX).len() <= 63);
    }

    #[test]
    fn a_resync_names_each_collection_and_tenant_once() {
        let scopes = |change| {
            let scopes = config("shop", change).unwrap().scopes().unwrap();
            let shown = scopes.iter().map(|(tenant, collection)| {
                format!("{}/{collection}", tenant.as_ref().map_or("*", |tenant| tenant.as_str()))
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(scopes(json!({})), ["acme/items", "acme/orders"]);
        assert_eq!(scopes(json!({ "collection": "all" })), ["acme/all"]);
        let of_schema = json!({ "collection": "all", "tenant": { "schema": true } });
        assert_eq!(scopes(of_schema), ["public/all", "shop/all"]);
        assert_eq!(scopes(json!({ "collection": "all", "tenant": { "column": "t" } })), ["*/all"]);
    }
}
