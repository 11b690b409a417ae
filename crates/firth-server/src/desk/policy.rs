//! How groups that are consumed over HTTP treat failures, kept in the engine's catalog, so that every server and every restart knows it.

use crate::wire::GroupPolicy;
use firth::{Broker, Error, ErrorKind, Result};
use firth_engine::SpaceName;
use firth_engine::facet::{EntryKey, Expect};

/// Entries of one look at the catalog.
const PAGE: usize = 500;

fn space() -> SpaceName {
    SpaceName::new("policies").expect("a valid name")
}

fn key((topic, group): (&str, &str)) -> Result<EntryKey> {
    EntryKey::new(space(), format!("{topic}/{group}"))
}

/// What was set, or the defaults.
pub(super) async fn get(broker: &Broker, place: (&str, &str)) -> Result<GroupPolicy> {
    match broker.engine().get(&key(place)?).await? {
        None => Ok(GroupPolicy::default()),
        Some(entry) => serde_json::from_slice(&entry.value).map_err(|error| {
            let (topic, group) = place;
            let why = format!("the policy of {group} on {topic} cannot be read: set it again");
            Error::new(ErrorKind::Corrupt, why).with_source(error)
        }),
    }
}

pub(super) async fn set(broker: &Broker, place: (&str, &str), policy: &GroupPolicy) -> Result<()> {
    let value = serde_json::to_vec(policy)
        .map_err(|error| Error::new(ErrorKind::Internal, "a policy cannot be written").with_source(error))?;
    broker.engine().put(&key(place)?, value.into(), Expect::Any).await?;
    Ok(())
}

/// Forgets that of a group, or those of all groups of a topic.
pub(super) async fn forget(broker: &Broker, topic: &str, group: Option<&str>) -> Result<()> {
    if let Some(group) = group {
        broker.engine().remove(&key((topic, group))?, Expect::Any).await?;
        return Ok(());
    }
    let (prefix, mut after) = (format!("{topic}/"), String::new());
    loop {
        let page = broker.engine().list(&space(), &prefix, &after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after.clone_from(&last.name);
        for entry in page {
            broker.engine().remove(&EntryKey::new(space(), entry.name)?, Expect::Any).await?;
        }
    }
}
