//! [`RedisKeysConfig`]: a source of Redis keys, every option checked.

use crate::error::{Error, Result};
use crate::pump::Limits;
use crate::rules::{EventRules, OperationRule, Pick, RuleOptions};
use crate::secrets;
use crate::source::{OnLost, Policy, PolicyOptions};
use firth_redis::config::{Config, Server};
use firth_redis::{IntoConfig, Secret};
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 512;

/// A source of Redis keys as its section of the configuration has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisKeysOptions {
    /// The server, sentinels or cluster, as the engine's URLs name them.
    pub url: String,
    /// The ACL user.
    #[serde(default)]
    pub user: Option<String>,
    /// A file with the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's, PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Which keys, as a pattern of Redis.
    pub pattern: String,
    /// What a key holds.
    pub read: ReadAs,
    /// What stands between the parts of a key.
    #[serde(default = "colon")]
    pub separator: char,
    /// The topic that gets the events.
    pub topic: String,
    /// Whose the documents are.
    pub tenant: Pick,
    /// Their collection.
    pub collection: String,
    /// The document's key; that of Redis unless given.
    #[serde(default = "whole")]
    pub key: Pick,
    /// Whether all keys are read at the start and after each gap.
    #[serde(default)]
    pub rescan: bool,
    /// What follows if something goes wrong.
    #[serde(flatten)]
    pub policy: PolicyOptions,
}

/// What a key holds, and how it becomes a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadAs {
    /// A string that is a JSON object.
    String,
    /// Any string: `{"value": "…"}`.
    Text,
    /// A hash: an object of texts.
    Hash,
    /// A value of the JSON module.
    Json,
}

impl ReadAs {
    /// The class of its notifications.
    fn class(self) -> char {
        match self {
            Self::String | Self::Text => '$',
            Self::Hash => 'h',
            Self::Json => 'd',
        }
    }

    /// What of these settings of a server is missing for it to tell every change.
    pub(super) fn missing(self, flags: &str) -> String {
        let has = |flag: char| {
            let is_one_of_all = flag != 'K' && flags.contains('A');
            is_one_of_all || flags.contains(flag)
        };
        ['K', 'g', 'x', 'e', self.class()].into_iter().filter(|flag| !has(*flag)).collect()
    }
}

fn colon() -> char {
    ':'
}

fn whole() -> Pick {
    Pick::Name(None)
}

/// A checked source of Redis keys.
#[derive(Clone)]
pub struct RedisKeysConfig {
    /// Its name: part of every record's headers.
    pub name: String,
    /// The topic that gets the events.
    pub topic: String,
    /// Batches and buffer.
    pub limits: Limits,
    pub(super) redis: Config,
    pub(super) pattern: String,
    pub(super) read: ReadAs,
    pub(super) separator: char,
    pub(super) collection: String,
    pub(super) rules: EventRules,
    pub(super) rescan: bool,
    pub(super) policy: Policy,
}

impl RedisKeysConfig {
    /// Checks the options of the source `name`. `password` wins over `password_file`.
    pub fn new(name: &str, options: &RedisKeysOptions, password: Option<String>) -> Result<Self> {
        crate::config::check_name(name)?;
        let RedisKeysOptions { pattern, collection, topic, .. } = options;
        if pattern.is_empty() || pattern.len() > MAX_PATTERN {
            return Err(Error::invalid(format!("pattern: give 1 to {MAX_PATTERN} bytes")));
        }
        if options.policy.on_lost == OnLost::Resync {
            return Err(Error::invalid("on_lost: keys have no history to lose; give `rescan: true`"));
        }
        let picks = [("tenant", &options.tenant), ("key", &options.key)];
        let of_value = |pick: &Pick| matches!(pick, Pick::Pointer(_) | Pick::Header(_));
        if let Some((field, _)) = picks.into_iter().find(|(_, pick)| of_value(pick)) {
            return Err(Error::invalid(format!(
                "{field}: a key that was deleted has no value, so give a text or {{ name: … }}"
            )));
        }
        let rules = EventRules::new(&RuleOptions {
            tenant: options.tenant.clone(),
            collection: Pick::Constant(collection.clone()),
            key: options.key.clone(),
            op: OperationRule::default(),
            document: String::new(),
            when: None,
        })?;
        Ok(Self {
            name: name.to_owned(),
            topic: topic.clone(),
            limits: Limits::default(),
            redis: redis(name, options, password)?,
            pattern: pattern.clone(),
            read: options.read,
            separator: options.separator,
            collection: collection.clone(),
            rules,
            rescan: options.rescan,
            policy: Policy::new(&options.policy, topic, Some(collection))?,
        })
    }

    /// Where values go that cannot be events.
    pub fn dead_topic(&self) -> Option<&str> {
        self.policy.dead_topic.as_deref()
    }
}

fn redis(name: &str, options: &RedisKeysOptions, password: Option<String>) -> Result<Config> {
    // The reason is left out: it may quote the URL.
    let wrong =
        || Error::invalid("url: give redis://host:port, rediss://…, redis+cluster://… or a sentinel's");
    if options.url.contains('@') {
        return Err(Error::invalid("url holds a user or a password: give user and password_file"));
    }
    let mut config = options.url.as_str().into_config().map_err(|_| wrong())?;
    if matches!(config.server, Server::Cluster(_)) && config.database != 0 {
        return Err(wrong());
    }
    let password = secrets::password(password, options.password_file.as_deref())?;
    config.username.clone_from(&options.user);
    config.password = password.map(Secret::new);
    config.client_name = Some(format!("firth-source-{name}"));
    if let Some(file) = &options.ca_file {
        let tls = config.tls.as_mut().ok_or_else(|| Error::invalid("ca_file needs a URL with rediss://"))?;
        tls.files.ca = Some(file.clone());
    }
    Ok(config)
}

impl fmt::Debug for RedisKeysConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisKeysConfig({}: {} to {})", self.name, self.pattern, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::changed::{changed, each_is_named};
    use serde_json::{Value, json};

    fn config(change: &Value) -> Result<RedisKeysConfig> {
        let usual = json!({
            "url": "redis://127.0.0.1:6379", "pattern": "cart:*", "read": "hash", "topic": "changes",
            "tenant": { "name": 2 }, "collection": "carts",
        });
        RedisKeysConfig::new("carts", &changed(usual, change)?, Some("planted".to_owned()))
    }

    #[test]
    fn each_wrong_option_is_named() {
        let cases = [
            (json!({ "url": "redis://u:planted@h" }), "url holds a user"),
            (json!({ "url": "nats://h" }), "url: give redis://"),
            (json!({ "pattern": "" }), "pattern: "),
            (json!({ "tenant": { "pointer": "/t" } }), "tenant: a key that was deleted"),
            (json!({ "key": { "header": "h" } }), "key: a key that was deleted"),
            (json!({ "key": "fixed" }), "key is a constant"),
            (json!({ "read": "list" }), "unknown variant `list`"),
            (json!({ "ca_file": "x" }), "rediss://"),
            (json!({ "on_lost": "resync" }), "rescan: true"),
            (json!({ "when": "true" }), "unknown field `when`"),
        ];
        each_is_named(&cases, config);
        assert!(!format!("{:?}", config(&json!({})).unwrap()).contains("planted"));
    }

    #[test]
    fn a_server_must_tell_all_that_happens_to_keys_of_the_kind() {
        assert_eq!(ReadAs::Hash.missing(""), "Kgxeh");
        assert_eq!(ReadAs::Hash.missing("AKE"), "");
        assert_eq!(ReadAs::Hash.missing("AE"), "K");
        assert_eq!(ReadAs::String.missing("Kgxe$"), "");
        assert_eq!(ReadAs::Json.missing("Kgxe$"), "d");
    }
}
