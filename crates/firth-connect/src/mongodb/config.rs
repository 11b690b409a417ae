//! [`MongoConfig`]: a MongoDB source, every option checked.

use crate::error::{Error, Result};
use crate::mapping::ColumnRule;
use crate::pump::Limits;
use crate::rules::{EventRules, OperationRule, Pick, RuleOptions};
use crate::secrets;
use crate::source::{Policy, PolicyOptions};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// Collections of one source, at most.
const MAX_COLLECTIONS: usize = 1_000;
/// Bytes of their names together: what a source saves holds them, and has 64 KiB.
const MAX_NAMES: usize = 20 << 10;

/// A MongoDB source as its section of the configuration has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MongoOptions {
    /// `mongodb://…` or `mongodb+srv://…`, without a user.
    pub url: String,
    /// The user, of the database `admin`.
    #[serde(default)]
    pub user: Option<String>,
    /// A file with the user's password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// The database.
    pub database: String,
    /// Its collections.
    pub collections: Vec<String>,
    /// The topic that gets the changes.
    pub topic: String,
    /// Whose the documents are.
    pub tenant: Pick,
    /// The collection of all events; that of MongoDB unless given.
    #[serde(default)]
    pub collection: Option<String>,
    /// What is special about the fields of a collection.
    #[serde(default)]
    pub columns: BTreeMap<String, ColumnRule>,
    /// Whether the collections keep images of documents before and after a change.
    #[serde(default)]
    pub images: bool,
    /// Whole numbers beyond 2^53 become text.
    #[serde(default)]
    pub exact_numbers: bool,
    /// What happens to documents that were there before.
    #[serde(default)]
    pub snapshot: CopyMode,
    /// What follows if something goes wrong.
    #[serde(flatten)]
    pub policy: PolicyOptions,
}

/// What happens to documents that were there before their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyMode {
    /// They are copied once, before the change stream is read.
    #[default]
    Initial,
    /// They are left alone.
    Never,
}

/// A checked MongoDB source.
#[derive(Clone)]
pub struct MongoConfig {
    /// Its name: part of every record's headers.
    pub name: String,
    /// The topic that gets the changes.
    pub topic: String,
    /// Batches and buffer.
    pub limits: Limits,
    /// Documents that are copied at a time.
    pub chunk: i64,
    pub(super) url: String,
    /// The user and the password.
    pub(super) login: Option<(String, String)>,
    pub(super) database: String,
    pub(super) collections: BTreeSet<String>,
    pub(super) collection: Option<String>,
    pub(super) rules: EventRules,
    pub(super) drops: BTreeMap<String, BTreeSet<String>>,
    pub(super) images: bool,
    pub(super) exact_numbers: bool,
    pub(super) snapshot: CopyMode,
    pub(super) policy: Policy,
}

impl MongoConfig {
    /// Checks the options of the source `name`. `password` wins over `password_file`.
    pub fn new(name: &str, options: &MongoOptions, password: Option<String>) -> Result<Self> {
        crate::config::check_name(name)?;
        check_url(&options.url)?;
        if matches!(options.tenant, Pick::Header(_) | Pick::Name(_)) {
            return Err(Error::invalid("tenant: give a text or { pointer: /field }"));
        }
        if matches!(options.tenant, Pick::Pointer(_)) && !options.images {
            return Err(Error::invalid(
                "tenant is a field, and a delete tells none: turn images on, or give a text",
            ));
        }
        let collections = collections(&options.collections)?;
        if let Some(stranger) = options.columns.keys().find(|name| !collections.contains(*name)) {
            return Err(Error::invalid(format!("columns.{stranger} is none of `collections`")));
        }
        if options.database.is_empty() || options.database.contains(['/', '.', ' ', '"', '$', '\0']) {
            return Err(Error::invalid("database: give the name of a database"));
        }
        let password = secrets::password(password, options.password_file.as_deref())?;
        let login = match (options.user.clone(), password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => return Err(Error::invalid("give both user and password_file, or none")),
        };
        let named = |part| Pick::Name(Some(part));
        let collection = options.collection.clone();
        let rules = EventRules::new(&RuleOptions {
            tenant: options.tenant.clone(),
            collection: collection.clone().map_or(named(1), Pick::Constant),
            key: named(2),
            op: OperationRule::default(),
            document: String::new(),
            when: None,
        })?;
        let drops = options.columns.iter();
        let drops = drops.map(|(name, rule)| (name.clone(), rule.drop.iter().cloned().collect()));
        Ok(Self {
            name: name.to_owned(),
            topic: options.topic.clone(),
            limits: Limits::default(),
            chunk: 1_000,
            url: options.url.clone(),
            login,
            database: options.database.clone(),
            // A resync names each collection.
            policy: Policy::new(&options.policy, &options.topic, Some(&options.database))?,
            collection,
            collections,
            rules,
            drops: drops.collect(),
            images: options.images,
            exact_numbers: options.exact_numbers,
            snapshot: options.snapshot,
        })
    }

    /// Where changes go that cannot be events.
    pub fn dead_topic(&self) -> Option<&str> {
        self.policy.dead_topic.as_deref()
    }

    /// The collection of the events of a collection.
    pub(super) fn shown<'a>(&'a self, collection: &'a str) -> &'a str {
        self.collection.as_deref().unwrap_or(collection)
    }
}

fn check_url(url: &str) -> Result<()> {
    if !url.starts_with("mongodb://") && !url.starts_with("mongodb+srv://") {
        return Err(Error::invalid("url: give mongodb://host1,host2/?replicaSet=… or mongodb+srv://…"));
    }
    if url.contains('@') {
        return Err(Error::invalid("url holds a user or a password: give user and password_file"));
    }
    Ok(())
}

fn collections(names: &[String]) -> Result<BTreeSet<String>> {
    let length: usize = names.iter().map(String::len).sum();
    if names.is_empty() || names.len() > MAX_COLLECTIONS || length > MAX_NAMES {
        let count = names.len();
        return Err(Error::invalid(format!(
            "collections has {count} entries of {length} bytes; give 1 to {MAX_COLLECTIONS}, at most {MAX_NAMES} bytes"
        )));
    }
    let is_wrong = |name: &&String| name.is_empty() || name.contains(['$', '\0', '\u{1f}']);
    match names.iter().find(is_wrong) {
        Some(name) => Err(Error::invalid(format!("collections: {name:?} is no collection"))),
        None => Ok(names.iter().cloned().collect()),
    }
}

impl fmt::Debug for MongoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MongoConfig({}: {} to {})", self.name, self.database, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::changed::{changed, each_is_named};
    use serde_json::{Value, json};

    fn config(change: &Value) -> Result<MongoConfig> {
        let usual = json!({
            "url": "mongodb://127.0.0.1", "user": "firth", "database": "shop", "collections": ["orders"],
            "topic": "changes", "tenant": { "pointer": "/tenant" }, "images": true,
        });
        MongoConfig::new("shop", &changed(usual, change)?, Some("planted".to_owned()))
    }

    #[test]
    fn each_wrong_option_is_named() {
        let cases = [
            (json!({ "url": "mongodb://u:planted@h" }), "url holds a user"),
            (json!({ "url": "postgres://h" }), "url: give mongodb://"),
            (json!({ "collections": [] }), "collections has 0"),
            (json!({ "collections": ["a$b"] }), "collections: "),
            (json!({ "columns": { "users": { "drop": ["x"] } } }), "columns.users"),
            (json!({ "tenant": { "header": "x" } }), "tenant: "),
            (json!({ "database": "a.b" }), "database: "),
            (json!({ "images": false }), "a delete tells none"),
            (json!({ "user": null }), "both user and password_file"),
            (json!({ "pipeline": [] }), "unknown field `pipeline`"),
        ];
        each_is_named(&cases, config);
        assert!(!format!("{:?}", config(&json!({})).unwrap()).contains("planted"));
    }
}
