//! How groups that are consumed over HTTP treat failures, kept in the engine's catalog, so that
//! every server and every restart knows it.

use crate::wire::GroupPolicy;
use firth::catalog::{CatalogWatch, EntryKey, Expect, SpaceName};
use firth::{Broker, Error, ErrorKind, Result};
use std::collections::HashMap;

/// Entries of one look at the catalog.
const PAGE: usize = 500;

fn space() -> SpaceName {
    SpaceName::new("policies").expect("a valid name")
}

fn key((topic, group): (&str, &str)) -> Result<EntryKey> {
    EntryKey::new(space(), name((topic, group)))
}

pub(super) fn name((topic, group): (&str, &str)) -> String {
    format!("{topic}/{group}")
}

/// What was set, or the defaults.
pub(super) async fn get(broker: &Broker, pair: (&str, &str)) -> Result<GroupPolicy> {
    match broker.catalog().get(&key(pair)?).await? {
        None => Ok(GroupPolicy::default()),
        Some(entry) => read(&entry.value).map_err(|error| error.during(format!("{} on {}", pair.1, pair.0))),
    }
}

fn read(value: &[u8]) -> Result<GroupPolicy> {
    serde_json::from_slice(value).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "the group's policy cannot be read: set it again").with_source(error)
    })
}

/// Every policy that was set, by topic and group, whenever one changes, here or at another server.
pub(super) struct Watch(CatalogWatch);

impl Watch {
    pub(super) fn new(broker: &Broker) -> Self {
        Self(broker.catalog().watch(space(), ""))
    }

    /// As [`CatalogWatch::changed`]. One that cannot be read is left out: joining tells of it.
    pub(super) async fn changed(&mut self) -> Result<HashMap<String, GroupPolicy>> {
        let entries = self.0.changed().await?.into_iter();
        Ok(entries.filter_map(|entry| Some((entry.name, read(&entry.value).ok()?))).collect())
    }
}

pub(super) async fn set(broker: &Broker, pair: (&str, &str), policy: &GroupPolicy) -> Result<()> {
    let value = serde_json::to_vec(policy)
        .map_err(|error| Error::new(ErrorKind::Internal, "a policy cannot be written").with_source(error))?;
    broker.catalog().put(&key(pair)?, value.into(), Expect::Any).await?;
    Ok(())
}

/// Forgets that of a group, or those of all groups of a topic.
pub(super) async fn forget(broker: &Broker, topic: &str, group: Option<&str>) -> Result<()> {
    if let Some(group) = group {
        broker.catalog().remove(&key((topic, group))?, Expect::Any).await?;
        return Ok(());
    }
    let prefix = format!("{topic}/");
    let mut after = String::new();
    loop {
        let page = broker.catalog().list(&space(), &prefix, &after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after.clone_from(&last.name);
        for entry in page {
            broker.catalog().remove(&EntryKey::new(space(), entry.name)?, Expect::Any).await?;
        }
    }
}
