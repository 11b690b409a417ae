//! Claims: named, long-running units of work, each owned by exactly one living worker.
#![doc = include_str!("../../docs/claims.md")]

mod abort;
mod admin;
mod claim;
mod common;
mod config;
mod coordinator;
mod events;
mod heartbeat;
mod meter;
mod plan;
mod run;
mod service;
mod shard;
mod stalled_members;
mod unit;
mod unit_data;
mod worker;

pub use admin::{ClaimsStatus, OfferInfo, OfferOwner, WorkerInfo};
pub use claim::Claim;
pub use config::{WorkerConfig, worker_id_from_env};
pub use firth_engine::{MemberName, OfferName, ServiceName};
pub use run::GivenUp;
pub use service::MAX_SHARDS;
pub(crate) use service::SPACE;
pub use unit_data::{UnitData, UnitDataBuilder};
pub use worker::{Event, Worker, WorkerBuilder, WorkerHandle, WorkerHealth};

use crate::broker::Broker;
use crate::error::Result;
use bytes::Bytes;
use firth_engine::Backoff;
use firth_engine::facet::{ClaimShard, NewOffer};
use firth_engine::limits::{MAX_BATCH_BYTES, MAX_CLAIM_SHARD_BATCH};
use service::Service;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// How often what everyone may repeat is tried again.
const RETRIES: u32 = 5;
const RETRY_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));

/// A service: offer work, make workers, look at who has what. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Claims {
    broker: Broker,
    name: String,
    shards: Option<u32>,
    service: Arc<OnceCell<Service>>,
}

impl Claims {
    pub(crate) fn new(broker: Broker, name: &str) -> Self {
        Self { broker, name: name.to_owned(), shards: None, service: Arc::default() }
    }

    /// Spreads the service over this many shards, each on its own node of a cluster; 1 unless set.
    /// Fixed when the service is first used. A worker renews all its claims with one call per shard
    /// and tick.
    #[must_use]
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self.service = Arc::default();
        self
    }

    /// Offers a unit of work; true if it is new. Offering the same name again changes nothing,
    /// whether a worker has the unit or not.
    pub async fn offer(&self, name: &str, payload: impl Into<Bytes>) -> Result<bool> {
        Ok(self.offer_all([(name, payload)]).await? == 1)
    }

    /// Offers many units; how many of them are new.
    pub async fn offer_all<N, P>(&self, units: impl IntoIterator<Item = (N, P)>) -> Result<usize>
    where
        N: AsRef<str>,
        P: Into<Bytes>,
    {
        let mut claim_shards: BTreeMap<ClaimShard, Vec<NewOffer>> = BTreeMap::new();
        let service = self.service().await?;
        for (name, payload) in units {
            let name = OfferName::new(name)?;
            claim_shards
                .entry(service.claim_shard_of(&name))
                .or_default()
                .push(NewOffer { name, payload: payload.into() });
        }
        let mut made = 0;
        for (claim_shard, offers) in claim_shards {
            for page in pages(offers) {
                let step = || self.broker.engine().offer(&claim_shard, page.clone());
                made += retrying(RETRIES, RETRY_BACKOFF, step).await?.into_iter().filter(|new| *new).count();
            }
        }
        Ok(made)
    }

    /// Takes a unit off the service, owned or not; false if there was none. Its owner loses the
    /// claim.
    pub async fn withdraw(&self, name: &str) -> Result<bool> {
        let name = OfferName::new(name)?;
        let claim_shard = self.service().await?.claim_shard_of(&name);
        let names = [name];
        Ok(self.broker.engine().withdraw(&claim_shard, &names).await?.first() == Some(&true))
    }

    /// A worker by this lasting name: a pod's name, say. The same name joining again ends its
    /// former session at once. See [`WorkerBuilder`] for what can be set, and
    /// [`worker_id_from_env`] for where a name may come from.
    pub fn worker(&self, id: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(self.clone(), id.into())
    }

    pub(crate) async fn service(&self) -> Result<&Service> {
        self.service.get_or_try_init(|| Service::open(&self.broker, &self.name, self.shards)).await
    }

    pub(crate) fn broker(&self) -> &Broker {
        &self.broker
    }
}

/// Cuts offers into what one step takes.
fn pages(offers: Vec<NewOffer>) -> Vec<Vec<NewOffer>> {
    let mut pages = Vec::new();
    let mut page = Vec::new();
    let mut bytes = 0;
    for offer in offers {
        if page.len() == MAX_CLAIM_SHARD_BATCH || bytes + offer.payload.len() > MAX_BATCH_BYTES {
            pages.push(std::mem::take(&mut page));
            bytes = 0;
        }
        bytes += offer.payload.len();
        page.push(offer);
    }
    pages.push(page);
    pages.retain(|page| !page.is_empty());
    pages
}

/// Tries a step that may be repeated again after passing failures.
async fn retrying<T, F: Future<Output = Result<T>>>(
    retries: u32,
    backoff: Backoff,
    step: impl Fn() -> F,
) -> Result<T> {
    let mut failures = 0;
    loop {
        match step().await {
            Err(error) if error.is_retryable() && failures < retries => {
                failures += 1;
                tokio::time::sleep(backoff.delay(failures)).await;
            }
            done => return done,
        }
    }
}
