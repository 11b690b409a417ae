//! Marks in the catalog of the groups by which this router feeds parked gateways. A client with
//! scope `consume` can make a group of such a name. The router leaves a group without a mark alone.
//!
//! A mark is made before its group and removed after it, by its version: the mark of a later owner
//! stays. A partition that is added to the topic gets the groups of the others without marks, so
//! the last mark of a gateway goes only after each of those has one (`Manager::unmark`).

use crate::error::{Error, ErrorKind, Result};
use crate::name::GatewayId;
use crate::node::RouterOptions;
use firth::catalog::{CatalogHandle, EntryKey, Expect, Put, SpaceName};
use std::collections::BTreeMap;

/// Where the marks of a router are kept.
pub(super) struct Marks {
    catalog: CatalogHandle,
    prefix: String,
}

impl Marks {
    pub(super) fn new(catalog: CatalogHandle, options: &RouterOptions) -> Self {
        Self { catalog, prefix: format!("{}/{}", options.topic, options.group) }
    }

    /// Marks the group of a gateway on a partition; answers the version of the mark.
    pub(super) async fn make(&self, partition: u32, gateway: &GatewayId) -> Result<u64> {
        match self.catalog.put(&self.key(partition, gateway)?, "".into(), Expect::Any).await? {
            Put::Done(version) => Ok(version),
            Put::Conflict(_) => Err(Error::new(ErrorKind::Unavailable, "the mark of a group was raced")),
        }
    }

    /// Removes a mark whose group is gone, unless a later owner has marked it anew. If that fails,
    /// the mark is left over, which does no harm.
    pub(super) async fn remove(&self, partition: u32, gateway: &GatewayId, version: u64) -> Result<()> {
        self.catalog.remove(&self.key(partition, gateway)?, Expect::Version(version)).await?;
        Ok(())
    }

    /// Marks the group of a gateway on a partition, unless another node has marked it.
    pub(super) async fn make_missing(&self, partition: u32, gateway: &GatewayId) -> Result<()> {
        self.catalog.put(&self.key(partition, gateway)?, "".into(), Expect::Absent).await?;
        Ok(())
    }

    /// All marks of the topic: the versions by gateway and partition.
    pub(super) async fn list(&self) -> Result<BTreeMap<GatewayId, BTreeMap<u32, u64>>> {
        let prefix = format!("{}/", self.prefix);
        let mut marks: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for entry in self.catalog.list_all(&space(), &prefix).await? {
            let named = entry.name.strip_prefix(&prefix).and_then(|name| name.split_once('/'));
            if let Some((at, id)) = named
                && let (Ok(at), Ok(gateway)) = (at.parse(), GatewayId::new(id))
            {
                marks.entry(gateway).or_default().insert(at, entry.version);
            }
        }
        Ok(marks)
    }

    fn key(&self, partition: u32, gateway: &GatewayId) -> Result<EntryKey> {
        Ok(EntryKey::new(space(), format!("{}/{partition}/{gateway}", self.prefix))?)
    }
}

fn space() -> SpaceName {
    SpaceName::new("router.parked").expect("a valid name")
}
