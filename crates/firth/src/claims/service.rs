//! [`Service`]: how many shards a service has. The number stands in the catalog and never changes,
//! because names are spread by it.

use crate::broker::Broker;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::partitioner::key_hash;
use firth_engine::facet::{ClaimShard, EntryKey, Expect, Put};
use firth_engine::{OfferName, ServiceName, SpaceName};
use serde::{Deserialize, Serialize};

/// The most shards of a service.
pub const MAX_SHARDS: u32 = 256;

#[derive(Serialize, Deserialize)]
struct StoredService {
    shards: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: ServiceName,
    pub(crate) shards: u32,
}

impl Service {
    /// The service as it stands in the catalog; made with `wanted` shards (1 unless given) if it is
    /// new.
    pub(crate) async fn open(broker: &Broker, name: &str, wanted: Option<u32>) -> Result<Self> {
        let name = ServiceName::new(name)?;
        if let Some(bad) = wanted.filter(|shards| !(1..=MAX_SHARDS).contains(shards)) {
            let error = invalid(format!("{bad} shards; give 1 to {MAX_SHARDS}"));
            return Err(error.with_field("shards").with_limit(MAX_SHARDS.into()));
        }
        let key = EntryKey::new(space(), name.as_str())?;
        let value =
            serde_json::to_vec(&StoredService { shards: wanted.unwrap_or(1) }).expect("plain data is JSON");
        let known = match broker.engine().get(&key).await? {
            Some(known) => known,
            None => match broker.engine().put(&key, value.into(), Expect::Absent).await? {
                Put::Done(_) => return Ok(Self { name, shards: wanted.unwrap_or(1) }),
                Put::Conflict(Some(known)) => known,
                Put::Conflict(None) => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the service was removed meanwhile: try again",
                    ));
                }
            },
        };
        let stored: StoredService = serde_json::from_slice(&known.value).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("the entry of service {name} is damaged"))
                .with_source(error)
        })?;
        match wanted {
            Some(wanted) if wanted != stored.shards => Err(invalid(format!(
                "service {name} has {} shards, not {wanted}: the number is fixed when the service is first used",
                stored.shards
            ))),
            _ => Ok(Self { name, shards: stored.shards }),
        }
    }

    /// The names of all services.
    pub(crate) async fn all(broker: &Broker) -> Result<Vec<String>> {
        let entries = broker.engine().list_all(&space(), "").await?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    pub(crate) fn claim_shards(&self) -> impl ExactSizeIterator<Item = ClaimShard> + use<> {
        let name = self.name.clone();
        (0..self.shards).map(move |shard| ClaimShard::new(name.clone(), shard))
    }

    /// Shard of a unit.
    pub(crate) fn shard_of(&self, name: &OfferName) -> usize {
        (key_hash(name.as_str().as_bytes()) % u64::from(self.shards)) as usize
    }

    pub(crate) fn claim_shard_of(&self, name: &OfferName) -> ClaimShard {
        ClaimShard::new(self.name.clone(), self.shard_of(name) as u32)
    }
}

/// Space of the catalog that names the services.
pub(crate) const SPACE: &str = "claims";

fn space() -> SpaceName {
    SpaceName::new(SPACE).expect("a valid name")
}
