//! [`SourceConfig`]: a checked source of any kind. The kind chooses what reads it.

use crate::doctor::{Finding, Level};
use crate::error::{Error, Result};
#[cfg(feature = "mongodb")]
use crate::mongodb::MongoConfig;
#[cfg(feature = "nats")]
use crate::nats::NatsConfig;
#[cfg(feature = "postgres")]
use crate::postgres;
#[cfg(feature = "redis")]
use crate::redis_keys::RedisKeysConfig;
use crate::webhook::WebhookConfig;
use std::collections::BTreeSet;
use std::sync::Arc;

/// PostgreSQL's limit on the names of slots, less `firth_`.
const MAX_SOURCE: usize = 57;

/// A checked source.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SourceConfig {
    /// A PostgreSQL database, read by logical replication.
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Config>),
    /// Requests of another program.
    Webhook(Arc<WebhookConfig>),
    /// A MongoDB database, read by its change stream.
    #[cfg(feature = "mongodb")]
    Mongo(Arc<MongoConfig>),
    /// Messages of NATS.
    #[cfg(feature = "nats")]
    Nats(Arc<NatsConfig>),
    /// Keys of Redis.
    #[cfg(feature = "redis")]
    RedisKeys(Arc<RedisKeysConfig>),
}

impl SourceConfig {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => &config.name,
            Self::Webhook(config) => &config.name,
            #[cfg(feature = "mongodb")]
            Self::Mongo(config) => &config.name,
            #[cfg(feature = "nats")]
            Self::Nats(config) => &config.name,
            #[cfg(feature = "redis")]
            Self::RedisKeys(config) => &config.name,
        }
    }

    /// The topic that gets its changes.
    pub fn topic(&self) -> &str {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => &config.topic,
            Self::Webhook(config) => &config.topic,
            #[cfg(feature = "mongodb")]
            Self::Mongo(config) => &config.topic,
            #[cfg(feature = "nats")]
            Self::Nats(config) => &config.topic,
            #[cfg(feature = "redis")]
            Self::RedisKeys(config) => &config.topic,
        }
    }

    /// The topics beside it.
    pub fn further_topics(&self) -> BTreeSet<String> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => config.further_topics(),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.dead_topic().into_iter().map(str::to_owned).collect(),
            #[cfg(feature = "mongodb")]
            Self::Mongo(config) => config.dead_topic().into_iter().map(str::to_owned).collect(),
            #[cfg(feature = "redis")]
            Self::RedisKeys(config) => config.dead_topic().into_iter().map(str::to_owned).collect(),
            Self::Webhook(_) => BTreeSet::new(),
        }
    }

    /// The webhook, if it is one.
    pub(crate) fn webhook(&self) -> Option<&Arc<WebhookConfig>> {
        match self {
            Self::Webhook(config) => Some(config),
            #[cfg(feature = "_reader")]
            _ => None,
        }
    }

    /// The word after `kind:`.
    pub const fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "postgres",
            Self::Webhook(_) => WEBHOOK,
            #[cfg(feature = "mongodb")]
            Self::Mongo(_) => "mongodb",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "nats",
            #[cfg(feature = "redis")]
            Self::RedisKeys(_) => "redis-keys",
        }
    }
}

/// The kind of sources that come to every node; the others are read by one node at a time.
pub const WEBHOOK: &str = "webhook";

#[cfg(feature = "postgres")]
impl From<postgres::Config> for SourceConfig {
    fn from(config: postgres::Config) -> Self {
        Self::Postgres(Box::new(config))
    }
}

#[cfg(feature = "mongodb")]
impl From<MongoConfig> for SourceConfig {
    fn from(config: MongoConfig) -> Self {
        Self::Mongo(Arc::new(config))
    }
}

#[cfg(feature = "nats")]
impl From<NatsConfig> for SourceConfig {
    fn from(config: NatsConfig) -> Self {
        Self::Nats(Arc::new(config))
    }
}

#[cfg(feature = "redis")]
impl From<RedisKeysConfig> for SourceConfig {
    fn from(config: RedisKeysConfig) -> Self {
        Self::RedisKeys(Arc::new(config))
    }
}

impl From<WebhookConfig> for SourceConfig {
    fn from(config: WebhookConfig) -> Self {
        Self::Webhook(Arc::new(config))
    }
}

/// Whether sources of this kind can copy what they hold beside their changes.
pub fn can_copy(kind: &str) -> bool {
    kind == "postgres"
}

/// Looks whether the other side of a source is fit; the worst first, nothing if all is well.
pub async fn examine(config: &SourceConfig) -> Vec<Finding> {
    match config {
        #[cfg(feature = "postgres")]
        SourceConfig::Postgres(config) => postgres::examine(config).await,
        // Told, so that silence is not taken for health.
        other => {
            let text = format!(
                "a source of kind {} is checked by its reader only: its status says what is wrong",
                other.kind()
            );
            vec![Finding::new(Level::Note, text, [])]
        }
    }
}

/// Names become parts of slots, paths and variables.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.is_empty() || name.len() > MAX_SOURCE || !name.bytes().all(is_name) {
        return Err(Error::invalid(format!(
            "a source is named {name:?}: give 1 to {MAX_SOURCE} of a-z, 0-9 and _, as it becomes part of a slot's name"
        )));
    }
    Ok(())
}

/// What the tests of each kind's options share.
#[cfg(test)]
pub(crate) mod changed {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::Value;
    use std::fmt::Debug;

    /// The usual options with a change.
    pub(crate) fn changed<T: DeserializeOwned>(mut usual: Value, change: &Value) -> Result<T> {
        usual.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(usual).map_err(|error| Error::invalid(error.to_string()))
    }

    /// Each change is refused with the text beside it, which holds no secret of the options.
    pub(crate) fn each_is_named<T: Debug>(cases: &[(Value, &str)], read: impl Fn(&Value) -> Result<T>) {
        for (change, expected) in cases {
            let error = read(change).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("planted"), "{error}");
        }
    }
}
