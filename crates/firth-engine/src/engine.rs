//! [`Engine`]: the cloneable handle on whichever engine a URL names.

use crate::error::{Error, ErrorKind, Result};
use crate::facet::{Backend, Entry, LeaseQuery};
use crate::limits::MAX_READ;
use crate::name::SpaceName;
use crate::watch::{CatalogWatch, LeaseWatch};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A handle on an engine. All facets are methods of it; clones share the engine.
///
/// ```
/// # use firth_engine::*;
/// # use firth_engine::facet::*;
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let engine = Engine::at("memory:").await?;
/// let orders = Partition::new(TopicName::new("orders")?, 0);
/// engine.create_partition(&orders).await?;
/// engine.append(&orders, Append::new([Content::new("first")])).await?;
/// let records = engine.read(&orders, RecordId::ZERO, ReadLimit::records(10)).await?;
/// assert_eq!(records[0].content.payload, "first");
/// # Ok::<_, Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Engine(Arc<dyn Backend>);

impl Engine {
    /// Opens the engine that `url` names.
    ///
    /// | form | engine |
    /// |---|---|
    /// | `memory:` | in this process, gone with it |
    /// | `file:DIR` | in a directory; `?durability=fast` or `synced` |
    /// | `redis://…`, `rediss://…`, `redis+unix://…`, `redis+sentinel://…`, `redis+cluster://…` | on Redis 7 or Valkey; `?durability=fast`, `replicated`, `replicated:2` or `synced`, `?prefix=` |
    pub async fn at(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::invalid("an engine URL looks like memory: or file:./data or redis://host"));
        };
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::memory()),
            #[cfg(feature = "embedded")]
            "file" => {
                let (path, options) = parse_file(rest)?;
                Self::file(path, options).await
            }
            #[cfg(not(feature = "embedded"))]
            "file" => Err(not_built("file:", "embedded")),
            #[cfg(feature = "redis")]
            _ if is_redis(scheme) => {
                let (url, options) = crate::redis::RedisOptions::split_url(url)?;
                Self::redis(&url, options).await
            }
            #[cfg(not(feature = "redis"))]
            _ if is_redis(scheme) => Err(not_built(&format!("{scheme}:"), "redis")),
            _ => Err(Error::invalid(format!(
                "unknown engine {scheme:?}: use memory: or file:./data or redis://host"
            ))),
        }
    }

    /// An engine in memory: for tests and for data that may go with the process.
    pub fn memory() -> Self {
        Self::new(crate::embedded::Embedded::memory(Default::default()))
    }

    /// An engine in the directory `path`, made if missing.
    #[cfg(feature = "embedded")]
    pub async fn file(
        path: impl AsRef<std::path::Path>,
        options: crate::embedded::FileOptions,
    ) -> Result<Self> {
        Self::open_file(path.as_ref().to_owned(), options, Default::default()).await
    }

    /// An engine on the Redis or Valkey server that `url` names (without the options of the
    /// engine).
    #[cfg(feature = "redis")]
    pub async fn redis(url: &str, options: crate::redis::RedisOptions) -> Result<Self> {
        crate::redis::RedisEngine::open(url, options).await.map(Self::new)
    }

    /// An engine in memory with planted bugs.
    #[cfg(feature = "testing")]
    pub fn memory_with(hooks: crate::embedded::Hooks) -> Self {
        Self::new(crate::embedded::Embedded::memory(hooks))
    }

    /// An engine on files with planted bugs or crash points.
    #[cfg(all(feature = "testing", feature = "embedded"))]
    pub async fn file_with(
        path: impl AsRef<std::path::Path>,
        options: crate::embedded::FileOptions,
        hooks: crate::embedded::Hooks,
    ) -> Result<Self> {
        Self::open_file(path.as_ref().to_owned(), options, hooks).await
    }

    #[cfg(feature = "embedded")]
    async fn open_file(
        path: std::path::PathBuf,
        options: crate::embedded::FileOptions,
        hooks: crate::embedded::Hooks,
    ) -> Result<Self> {
        let open = move || crate::embedded::Embedded::file(&path, options, hooks);
        let opened = tokio::task::spawn_blocking(open).await;
        let opened =
            opened.map_err(|error| Error::new(ErrorKind::Internal, "opening failed").with_source(error))?;
        opened.map(Self::new)
    }

    /// A handle on any implementation of the facets.
    pub fn new(backend: impl Backend) -> Self {
        Self(Arc::new(backend))
    }

    /// Watches leases for changes of holder, also by expiry.
    pub fn watch_leases(&self, query: LeaseQuery) -> LeaseWatch {
        LeaseWatch::new(self.clone(), query)
    }

    /// Watches the entries of a space whose names start with `prefix`.
    pub fn watch_catalog(&self, space: SpaceName, prefix: impl Into<String>) -> CatalogWatch {
        CatalogWatch::new(self.clone(), space, prefix.into())
    }

    /// All entries of a space whose names start with `prefix`, however many pages they take.
    pub async fn list_all(&self, space: &SpaceName, prefix: &str) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let page = self.list(space, prefix, &after, MAX_READ).await?;
            let is_last = page.len() < MAX_READ;
            if let Some(last) = page.last() {
                after.clone_from(&last.name);
            }
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }
}

/// The error for an engine that this build leaves out.
#[cfg(not(all(feature = "embedded", feature = "redis")))]
fn not_built(scheme: &str, feature: &str) -> Error {
    let why = format!("this build has no engine for {scheme} URLs: enable the feature `{feature}`");
    Error::new(ErrorKind::Unsupported, why)
}

fn is_redis(scheme: &str) -> bool {
    let plain = scheme.split_once('+').map_or(scheme, |(plain, _)| plain);
    matches!(plain, "redis" | "rediss")
}

#[cfg(feature = "embedded")]
fn parse_file(rest: &str) -> Result<(&str, crate::embedded::FileOptions)> {
    use crate::durability::Durability;
    use crate::embedded::FileOptions;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() {
        return Err(Error::invalid("file: needs a directory, for example file:./data"));
    }
    let mut options = FileOptions::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        options.durability = match pair {
            "durability=synced" => Durability::Synced,
            "durability=fast" => Durability::Fast,
            _ => {
                return Err(Error::invalid(format!(
                    "unknown option {pair:?}: use durability=synced or durability=fast"
                )));
            }
        };
    }
    Ok((path, options))
}

impl Deref for Engine {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.0.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn kind_of(url: &str) -> ErrorKind {
        Engine::at(url).await.expect_err("the URL is wrong").kind()
    }

    #[tokio::test]
    async fn a_url_chooses_the_engine_or_says_what_is_wrong() {
        assert_eq!(format!("{:?}", Engine::at("memory:").await.unwrap()), "Engine(memory:)");
        assert_eq!(kind_of("orders").await, ErrorKind::Invalid);
        assert_eq!(kind_of("memory:x").await, ErrorKind::Invalid);
        assert_eq!(kind_of("kafka://x").await, ErrorKind::Invalid);
        assert_eq!(kind_of("redistribute://x").await, ErrorKind::Invalid);
    }

    #[cfg(not(feature = "redis"))]
    #[tokio::test]
    async fn a_build_without_redis_says_so() {
        for url in ["redis://h", "rediss://h", "redis+cluster://h", "redis+sentinel://h"] {
            assert_eq!(kind_of(url).await, ErrorKind::Unsupported);
        }
    }

    #[cfg(not(feature = "embedded"))]
    #[tokio::test]
    async fn a_build_without_files_says_so() {
        assert_eq!(kind_of("file:./data").await, ErrorKind::Unsupported);
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_redis_url_that_cannot_work_is_refused_and_a_silent_server_is_unavailable() {
        assert_eq!(kind_of("redis://127.0.0.1:1").await, ErrorKind::Unavailable);
        assert_eq!(kind_of("redis+cluster://127.0.0.1:1").await, ErrorKind::Unavailable);
        for bad in
            ["redis://h?durability=never", "redis://h?prefix={x}", "redis://h?unknown=1", "redis+what://h"]
        {
            assert_eq!(kind_of(bad).await, ErrorKind::Invalid, "{bad}");
        }
    }

    #[cfg(feature = "embedded")]
    #[tokio::test]
    async fn a_file_url_has_a_directory_and_maybe_a_durability() {
        use crate::durability::Durability;
        assert_eq!(kind_of("file:").await, ErrorKind::Invalid);
        assert_eq!(kind_of("file:./x?durability=never").await, ErrorKind::Invalid);
        assert_eq!(parse_file("./data").unwrap().0, "./data");
        assert_eq!(parse_file("///var/data?durability=fast").unwrap().0, "/var/data");
        assert_eq!(parse_file("d?durability=fast").unwrap().1.durability, Durability::Fast);
        assert_eq!(parse_file("d").unwrap().1.durability, Durability::Synced);
    }
}
