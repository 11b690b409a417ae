//! Small shared facts, and hints from process to process, beside the topics of a broker.
//!
//! The catalog holds named values in spaces; a value changes by compare-and-set. The bus carries
//! hints: a hint may be lost, and then the subscriber hears of a [`Gap`](Signal::Gap) and reads the
//! catalog. Programs on top of firth keep there what their processes share.
//!
//! ```
//! use firth::catalog::{EntryKey, Expect, Put, SpaceName};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! # let broker = firth::Broker::memory();
//! let key = EntryKey::new(SpaceName::new("app.settings")?, "colour")?;
//! let Put::Done(version) = broker.catalog().put(&key, "red".into(), Expect::Absent).await? else {
//!     panic!("another process was first")
//! };
//! let raced = broker.catalog().put(&key, "blue".into(), Expect::Version(version + 1)).await?;
//! assert!(matches!(raced, Put::Conflict(Some(entry)) if entry.value == "red"));
//! # broker.close().await }).unwrap();
//! ```

pub use firth_engine::facet::{Entry, EntryKey, Expect, Put, Signal, Subscription as Listener};
pub use firth_engine::{CatalogWatch, ChannelName, SpaceName};

use crate::error::{Result, invalid};
use bytes::Bytes;
use firth_engine::Engine;
use std::fmt;

/// Spaces that firth itself writes.
const OWN_SPACES: [&str; 2] = [crate::topic::SPACE, crate::claims::SPACE];

/// Named values in spaces that all processes of an engine share; see [the module](self).
#[derive(Clone)]
pub struct CatalogHandle {
    engine: Engine,
}

impl CatalogHandle {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// The entry, if there is one.
    pub async fn get(&self, key: &EntryKey) -> Result<Option<Entry>> {
        self.engine.get(key).await
    }

    /// Stores a value if the entry is as expected. Refused in the spaces of firth itself.
    pub async fn put(&self, key: &EntryKey, value: Bytes, expect: Expect) -> Result<Put> {
        check(key)?;
        self.engine.put(key, value, expect).await
    }

    /// Removes an entry if it is as expected. Refused in the spaces of firth itself.
    pub async fn remove(&self, key: &EntryKey, expect: Expect) -> Result<Put> {
        check(key)?;
        self.engine.remove(key, expect).await
    }

    /// Entries of a space whose names start with `prefix` and come after `after`, sorted by name,
    /// at most `max`.
    pub async fn list(&self, space: &SpaceName, prefix: &str, after: &str, max: usize) -> Result<Vec<Entry>> {
        self.engine.list(space, prefix, after, max).await
    }

    /// All entries of a space whose names start with `prefix`, sorted by name.
    pub async fn list_all(&self, space: &SpaceName, prefix: &str) -> Result<Vec<Entry>> {
        self.engine.list_all(space, prefix).await
    }

    /// All entries of a space whose names start with `prefix`, now and after each change.
    pub fn watch(&self, space: SpaceName, prefix: &str) -> CatalogWatch {
        self.engine.watch_catalog(space, prefix)
    }
}

impl fmt::Debug for CatalogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CatalogHandle({:?})", self.engine)
    }
}

/// Hints to all processes of an engine that listen now; see [the module](self).
#[derive(Clone)]
pub struct BusHandle {
    engine: Engine,
}

impl BusHandle {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// Sends a payload to the current subscribers. A subscriber that is too slow gets a
    /// [`Gap`](Signal::Gap) instead.
    pub async fn publish(&self, channel: &ChannelName, payload: Bytes) -> Result<()> {
        self.engine.publish(channel, payload).await
    }

    /// Listens from now on. When it returns, nothing that is published later can be missed.
    pub async fn subscribe(&self, channel: &ChannelName) -> Result<Listener> {
        self.engine.subscribe(channel).await
    }
}

impl fmt::Debug for BusHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BusHandle({:?})", self.engine)
    }
}

fn check(key: &EntryKey) -> Result<()> {
    let space = key.space().as_str();
    if OWN_SPACES.contains(&space) {
        let context = format!("space {space} is firth's own: keep entries in a space of another name");
        return Err(invalid(context).with_field("space"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Broker, ErrorKind};

    #[tokio::test]
    async fn the_spaces_of_firth_itself_are_read_only() {
        let broker = Broker::memory();
        broker.create_topic("orders").await.unwrap();
        let space = SpaceName::new("topics").unwrap();
        let key = EntryKey::new(space.clone(), "orders").unwrap();
        let put = broker.catalog().put(&key, "x".into(), Expect::Any).await;
        assert_eq!(put.unwrap_err().kind(), ErrorKind::Invalid);
        let removed = broker.catalog().remove(&key, Expect::Any).await;
        assert_eq!(removed.unwrap_err().field(), Some("space"));
        assert_eq!(broker.catalog().list_all(&space, "").await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_subscriber_hears_what_is_published_later() {
        let broker = Broker::memory();
        let channel = ChannelName::new("app.news").unwrap();
        let mut listener = broker.bus().subscribe(&channel).await.unwrap();
        broker.bus().publish(&channel, "hello".into()).await.unwrap();
        assert_eq!(listener.next().await.unwrap(), Signal::Message("hello".into()));
    }
}
