//! The section `connect:` of a configuration: sources by their names. Pure but for reading the
//! files of passwords.

use crate::config::SourceConfig;
use crate::error::{Error, Result};
#[cfg(feature = "mongodb")]
use crate::mongodb::{MongoConfig, MongoOptions};
#[cfg(feature = "nats")]
use crate::nats::{NatsConfig, NatsOptions};
#[cfg(feature = "postgres")]
use crate::postgres;
#[cfg(feature = "redis")]
use crate::redis_keys::{RedisKeysConfig, RedisKeysOptions};
use crate::sources::MAX_SOURCES;
use crate::webhook::{WebhookConfig, WebhookOptions};
use serde::Deserialize;
use serde_json::Value;

/// One source, as its `kind` says.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum SourceOptions {
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Options>),
    Webhook(Box<WebhookOptions>),
    #[cfg(feature = "mongodb")]
    Mongodb(Box<MongoOptions>),
    #[cfg(feature = "nats")]
    Nats(Box<NatsOptions>),
    #[cfg(feature = "redis")]
    #[serde(rename = "redis-keys")]
    RedisKeys(Box<RedisKeysOptions>),
}

impl SourceOptions {
    fn check(&self, name: &str, password: Option<String>) -> Result<SourceConfig> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => postgres::Config::new(name, options, password).map(Into::into),
            Self::Webhook(options) => WebhookConfig::new(name, options, password).map(Into::into),
            #[cfg(feature = "mongodb")]
            Self::Mongodb(options) => MongoConfig::new(name, options, password).map(Into::into),
            #[cfg(feature = "nats")]
            Self::Nats(options) => NatsConfig::new(name, options, password).map(Into::into),
            #[cfg(feature = "redis")]
            Self::RedisKeys(options) => RedisKeysConfig::new(name, options, password).map(Into::into),
        }
    }
}

/// Reads the section. `password` is asked with the name of each source; what it knows wins over
/// `password_file`.
pub fn read_section(section: &Value, password: impl Fn(&str) -> Option<String>) -> Result<Vec<SourceConfig>> {
    let Value::Object(sources) = section else {
        return Err(Error::invalid("connect: write one section per source, named as the source"));
    };
    if sources.len() > MAX_SOURCES {
        let count = sources.len();
        return Err(Error::invalid(format!("connect has {count} sources; give at most {MAX_SOURCES}")));
    }
    let read = |(name, options): (&String, &Value)| {
        let within = |error: &dyn std::fmt::Display| Error::invalid(format!("connect.{name}: {error}"));
        let source = SourceOptions::deserialize(options).map_err(|error| within(&without_values(&error)))?;
        source.check(name, password(name)).map_err(|error| within(&error))
    };
    sources.iter().map(read).collect()
}

/// Errors of serde name fields, kinds and types; a value could be a secret in the wrong place.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once("invalid type: ") {
        Some((_, rest)) => {
            let wanted = rest.rsplit_once("expected ").map_or(rest, |(_, wanted)| wanted);
            format!("a value has the wrong type: write {wanted}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(section: &Value) -> Result<Vec<SourceConfig>> {
        read_section(section, |name| (name == "shop").then(|| "hidden".to_owned()))
    }

    #[test]
    fn a_section_names_its_sources() {
        let options = json!({
            "kind": "postgres", "url": "postgres://firth@db/shop", "topic": "changes",
            "tables": ["orders"], "tenant": { "column": "tenant_id" }, "key": "primary",
            "columns": { "orders": { "drop": ["card"] } }, "soft_delete": "deleted_at",
        });
        let configs = read(&json!({ "shop": options })).unwrap();
        assert_eq!((configs.len(), configs[0].name()), (1, "shop"));
        assert!(!format!("{configs:?}").contains("hidden"));
    }

    #[cfg(all(feature = "nats", feature = "redis"))]
    #[test]
    fn each_kind_has_options_of_its_own() {
        let nats = json!({
            "kind": "nats", "url": "tls://nats", "stream": "ORDERS", "topic": "changes",
            "tenant": { "name": 2 }, "collection": "orders", "key": { "name": 3 }, "on_lost": "resync",
        });
        let keys = json!({
            "kind": "redis-keys", "url": "redis+cluster://a,b", "pattern": "cart:*", "read": "hash",
            "topic": "changes", "tenant": "acme", "collection": "carts", "rescan": true,
        });
        let configs = read(&json!({ "orders": nats, "carts": keys })).unwrap();
        let kinds: Vec<_> = configs.iter().map(|config| (config.name(), config.kind())).collect();
        assert_eq!(kinds, [("carts", "redis-keys"), ("orders", "nats")]);
        let wrong = read(&json!({ "orders": { "kind": "nats", "streams": 7 } })).unwrap_err().to_string();
        assert!(wrong.starts_with("connect.orders: "), "{wrong}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_source() {
        for (section, expected) in [
            (json!([]), "one section per source"),
            (json!({ "shop": { "kind": "mysql" } }), "connect.shop: unknown variant `mysql`"),
            (json!({ "shop": {} }), "connect.shop: missing field `kind`"),
            (json!({ "shop": { "kind": "postgres" } }), "connect.shop: missing field"),
            (json!({ "shop": { "kind": "postgres", "url": 7 } }), "connect.shop: a value has the wrong type"),
        ] {
            let error = read(&section).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
