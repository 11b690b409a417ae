//! What can be chosen about the Redis engine, in the URL or in code.

use super::keys::DEFAULT_PREFIX;
use crate::error::{Error, Result};
use std::time::Duration;

/// What an acknowledgement of the Redis engine means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedisDurability {
    /// The server has it. A failover, or a crash of a server without an append-only file, may lose the last moments.
    Fast,
    /// This many replicas have it too (WAIT). Survives the loss of the master, also one that was cut off from its peers.
    Replicated(u32),
    /// It is on the server's disk: WAITAOF (Redis 7.2 and newer, Valkey), or `appendfsync always` on Redis 7.0.
    Synced,
}

/// Options of the Redis engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisOptions {
    /// What all keys and channels start with, so that tenants can share a server: `?prefix=`.
    pub prefix: String,
    /// What an acknowledgement means: `?durability=fast`, `replicated`, `replicated:2`, `synced`. `None` looks at the server:
    /// `Replicated(1)` where there are replicas, else `Fast`.
    pub durability: Option<RedisDurability>,
    /// How long a step waits for replicas or the disk before its outcome is reported as unknown.
    pub wait: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { prefix: DEFAULT_PREFIX.to_owned(), durability: None, wait: Duration::from_secs(2) }
    }
}

impl RedisOptions {
    /// Takes our options out of a URL; the rest is the client's.
    pub(crate) fn split_url(url: &str) -> Result<(String, Self)> {
        let mut options = Self::default();
        let Some((base, query)) = url.split_once('?') else {
            return Ok((url.to_owned(), options));
        };
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", prefix)) => options.prefix = prefix.to_owned(),
                Some(("durability", name)) => options.durability = Some(durability(name)?),
                _ => rest.push(pair),
            }
        }
        let query = rest.join("&");
        Ok((if query.is_empty() { base.to_owned() } else { format!("{base}?{query}") }, options))
    }
}

fn durability(name: &str) -> Result<RedisDurability> {
    let replicas = name.strip_prefix("replicated").map(|rest| match rest.strip_prefix(':') {
        Some(count) => count.parse().ok().filter(|count| *count > 0),
        None => rest.is_empty().then_some(1),
    });
    match (name, replicas) {
        ("fast", _) => Ok(RedisDurability::Fast),
        ("synced", _) => Ok(RedisDurability::Synced),
        (_, Some(Some(count))) => Ok(RedisDurability::Replicated(count)),
        _ => Err(Error::invalid(format!(
            "unknown durability {name:?}: use fast, replicated, replicated:2 or synced"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_options_are_taken_out_of_the_url() {
        let (url, options) = RedisOptions::split_url(
            "redis://h:1/2?name=x&durability=replicated:2&prefix=t:a&request_timeout=1s",
        )
        .unwrap();
        assert_eq!(url, "redis://h:1/2?name=x&request_timeout=1s");
        assert_eq!(
            (options.prefix.as_str(), options.durability),
            ("t:a", Some(RedisDurability::Replicated(2)))
        );
        let (url, options) = RedisOptions::split_url("redis://h?durability=synced").unwrap();
        assert_eq!((url.as_str(), options.durability), ("redis://h", Some(RedisDurability::Synced)));
        assert_eq!(RedisOptions::split_url("redis://h").unwrap().1, RedisOptions::default());
    }

    #[test]
    fn an_unknown_durability_is_refused_by_name() {
        for bad in ["quick", "replicated:", "replicated:0", "replicated:x", "replicatedx"] {
            let error = RedisOptions::split_url(&format!("redis://h?durability={bad}")).unwrap_err();
            assert!(error.context().contains(bad), "{error}");
        }
    }
}
