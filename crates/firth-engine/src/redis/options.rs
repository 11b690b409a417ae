//! What can be chosen about the Redis engine, in the URL or in code.

use super::keys::DEFAULT_PREFIX;
use crate::durability::Durability;
use crate::error::Result;
use std::time::Duration;

/// Options of the Redis engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisOptions {
    /// What all keys and channels start with, so that tenants can share a server: `?prefix=`.
    pub prefix: String,
    /// What an acknowledgement means: `?durability=fast`, `replicated`, `replicated:2`, `synced`.
    /// `None` looks at the server: `Replicated(1)` where there are replicas, else `Fast`.
    pub durability: Option<Durability>,
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
                Some(("durability", name)) => options.durability = Some(name.parse()?),
                _ => rest.push(pair),
            }
        }
        let query = rest.join("&");
        Ok((if query.is_empty() { base.to_owned() } else { format!("{base}?{query}") }, options))
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
        assert_eq!((options.prefix.as_str(), options.durability), ("t:a", Some(Durability::Replicated(2))));
        let (url, options) = RedisOptions::split_url("redis://h?durability=synced").unwrap();
        assert_eq!((url.as_str(), options.durability), ("redis://h", Some(Durability::Synced)));
        assert_eq!(RedisOptions::split_url("redis://h").unwrap().1, RedisOptions::default());
    }
}
