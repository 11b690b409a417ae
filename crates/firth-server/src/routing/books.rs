//! The books of all nodes: each tells its own to the catalog, so that every server can add them up.
//!
//! A node that ends says so by taking its entry away; one that crashed is shown with its age, and
//! forgotten by the others after [`FORGOTTEN`].

use crate::wire::{BooksShown, unix_ms};
use firth::catalog::{EntryKey, Expect, SpaceName};
use firth::{Broker, Error, ErrorKind, Result};
use firth_router::node::RouterOptions;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// How long what a node told that is gone is kept.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// The most nodes that are shown.
const MAX_NODES: usize = 1000;

/// What a node told last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) at_ms: u64,
    pub(crate) books: BooksShown,
}

fn space() -> SpaceName {
    SpaceName::new("router.books").expect("a valid name")
}

fn key(topic: &str, group: &str, node: &str) -> Result<EntryKey> {
    EntryKey::new(space(), format!("{topic}/{group}/{node}"))
}

/// Tells the books of this node.
pub(super) async fn tell(broker: &Broker, options: &RouterOptions, books: BooksShown) -> Result<()> {
    let told = Told { at_ms: unix_ms(SystemTime::now()), books };
    let value = serde_json::to_vec(&told)
        .map_err(|error| Error::new(ErrorKind::Internal, "the books cannot be written").with_source(error))?;
    broker
        .catalog()
        .put(&key(&options.topic, &options.group, &options.node)?, value.into(), Expect::Any)
        .await?;
    Ok(())
}

/// This node ends.
pub(super) async fn withdraw(broker: &Broker, options: &RouterOptions) -> Result<()> {
    broker.catalog().remove(&key(&options.topic, &options.group, &options.node)?, Expect::Any).await?;
    Ok(())
}

/// What all nodes told, by their names, each with how long ago.
pub(super) async fn all(
    broker: &Broker,
    topic: &str,
    group: &str,
) -> Result<Vec<(String, Duration, BooksShown)>> {
    let prefix = format!("{topic}/{group}/");
    let now = unix_ms(SystemTime::now());
    let mut nodes = Vec::new();
    for entry in broker.catalog().list(&space(), &prefix, "", MAX_NODES).await? {
        let Ok(told) = serde_json::from_slice::<Told>(&entry.value) else { continue };
        let ago = Duration::from_millis(now.saturating_sub(told.at_ms));
        if ago > FORGOTTEN {
            broker
                .catalog()
                .remove(&EntryKey::new(space(), entry.name)?, Expect::Version(entry.version))
                .await?;
            continue;
        }
        nodes.push((entry.name[prefix.len()..].to_owned(), ago, told.books));
    }
    Ok(nodes)
}
