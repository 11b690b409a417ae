//! Marks in the catalog of the groups by which this router feeds parked gateways. Anyone who may consume can make a group of such a name; one
//! without a mark, for a gateway that no subscription knows, is a stranger's, and is left alone.
//!
//! A mark is made before its group and removed after it, by its version: the mark of a later owner stays.

use super::RouterOptions;
use crate::error::Result;
use crate::name::GatewayId;
use firth_engine::facet::{EntryKey, Expect, Put};
use firth_engine::{Engine, SpaceName};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The marks that this node has made or found.
pub(super) struct Marks {
    engine: Engine,
    prefix: String,
    /// By partition and gateway, with their versions.
    known: Mutex<HashMap<(u32, GatewayId), u64>>,
}

impl Marks {
    pub(super) fn new(engine: Engine, options: &RouterOptions) -> Self {
        let prefix = format!("{}/{}", options.topic, options.group);
        Self { engine, prefix, known: Mutex::default() }
    }

    /// Marks the group of a gateway on a partition.
    pub(super) async fn make(&self, partition: u32, gateway: &GatewayId) -> Result<()> {
        let put = self.engine.put(&self.key(partition, gateway)?, "".into(), Expect::Any).await?;
        if let Put::Done(version) = put {
            self.lock().insert((partition, gateway.clone()), version);
        }
        Ok(())
    }

    /// Removes a mark whose group is gone. If that fails, the mark is left over, which does no harm.
    pub(super) async fn remove(&self, partition: u32, gateway: &GatewayId) -> Result<()> {
        let known = self.lock().remove(&(partition, gateway.clone()));
        if let Some(version) = known {
            self.engine.remove(&self.key(partition, gateway)?, Expect::Version(version)).await?;
        }
        Ok(())
    }

    /// Reads the marks of a partition, for its owner; answers all marks of the topic, by gateway. A partition that was added has the groups of the others,
    /// and no marks.
    pub(super) async fn read(&self, partition: u32) -> Result<BTreeMap<GatewayId, BTreeSet<u32>>> {
        let prefix = format!("{}/", self.prefix);
        let entries = self.engine.list_all(&space(), &prefix).await?;
        let mut marks: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        let mut known = self.lock();
        known.retain(|(of, _), _| *of != partition);
        for entry in &entries {
            let place = entry.name.strip_prefix(&prefix).and_then(|name| name.split_once('/'));
            let Some((Ok(at), Ok(gateway))) = place.map(|(at, id)| (at.parse(), GatewayId::new(id))) else {
                continue;
            };
            if at == partition {
                known.insert((partition, gateway.clone()), entry.version);
            }
            marks.entry(gateway).or_default().insert(at);
        }
        Ok(marks)
    }

    fn key(&self, partition: u32, gateway: &GatewayId) -> Result<EntryKey> {
        Ok(EntryKey::new(space(), format!("{}/{partition}/{gateway}", self.prefix))?)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, GatewayId), u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn space() -> SpaceName {
    SpaceName::new("router.parked").expect("a valid name")
}
