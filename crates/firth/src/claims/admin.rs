//! The operator's view of a service: offers, owners, ages; and taking a claim away by force.

use super::Claims;
use super::service::Service;
use crate::broker::Broker;
use crate::error::{Result, invalid};
use firth_engine::facet::OfferState;
use firth_engine::limits::MAX_READ;
use firth_engine::{Epoch, OfferName};
use std::collections::BTreeMap;
use std::time::Duration;

/// An offer as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferInfo {
    /// Its name.
    pub name: String,
    /// Who has it.
    pub owner: OfferOwner,
    /// The newest grant; zero before the first.
    pub epoch: Epoch,
    /// How long its owner has been the same.
    pub since: Duration,
    /// How long it has been offered.
    pub age: Duration,
}

/// Who has an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferOwner {
    /// No worker; a worker may have had it before.
    Free {
        /// Who had it last.
        last: Option<String>,
    },
    /// A worker.
    Worker(String),
    /// A worker that vanished; the next grant takes it.
    Orphaned {
        /// Who had it.
        last: String,
    },
}

/// A worker as it stands, over all shards.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Its name.
    pub id: String,
    /// The number of its newest session.
    pub session: Epoch,
    /// Whether it is there on every shard on which it is known.
    pub is_alive: bool,
    /// How long until it runs out without another beat.
    pub remaining: Duration,
    /// How many claims it has.
    pub claims: u64,
    /// How many it takes at most; zero if it takes only what it asks for by name.
    pub max_claims: u64,
    /// How long ago it joined.
    pub age: Duration,
}

/// A service in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimsStatus {
    /// All offers.
    pub offers: u64,
    /// Offers that a living worker has.
    pub owned: u64,
    /// Free offers: no worker has them, and none vanished with them.
    pub free: u64,
    /// Offers whose workers vanished.
    pub orphaned: u64,
    /// Longest time that an offer, free or orphaned, has been without a living owner.
    pub longest_unowned: Option<Duration>,
    /// Workers that are there.
    pub workers: u64,
}

impl Claims {
    /// Offers in the order of their names, after `after`, at most `max` (up to 10 000).
    pub async fn offers(&self, after: Option<&str>, max: usize) -> Result<Vec<OfferInfo>> {
        if max == 0 || max > MAX_READ {
            return Err(invalid(format!("a page of {max} offers; give 1 to {MAX_READ}")));
        }
        let after = after.map(OfferName::new).transpose()?;
        let mut found = Vec::new();
        for claim_shard in self.service().await?.claim_shards() {
            found.extend(self.broker().engine().offers(&claim_shard, after.as_ref(), max).await?);
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.truncate(max);
        Ok(found.into_iter().map(offer_info).collect())
    }

    /// All workers by name, also those that are gone while something of theirs is left.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>> {
        let mut workers: BTreeMap<String, WorkerInfo> = BTreeMap::new();
        for claim_shard in self.service().await?.claim_shards() {
            for membership in self.broker().engine().members(&claim_shard).await? {
                let remaining = membership.remaining.unwrap_or_default();
                let worker = workers.entry(membership.member.to_string()).or_insert_with(|| WorkerInfo {
                    id: membership.member.to_string(),
                    session: membership.number,
                    is_alive: membership.remaining.is_some(),
                    remaining,
                    claims: 0,
                    max_claims: membership.capacity,
                    age: membership.age,
                });
                worker.claims += membership.held;
                worker.is_alive |= membership.remaining.is_some();
                worker.remaining = worker.remaining.max(remaining);
                worker.age = worker.age.min(membership.age);
                worker.session = worker.session.max(membership.number);
            }
        }
        Ok(workers.into_values().collect())
    }

    /// The service in figures. Looks at every offer, page by page: for people, not for a loop.
    pub async fn status(&self) -> Result<ClaimsStatus> {
        let mut status = ClaimsStatus::default();
        let mut after: Option<String> = None;
        loop {
            let page = self.offers(after.as_deref(), MAX_READ).await?;
            for offer in &page {
                status.offers += 1;
                match offer.owner {
                    OfferOwner::Worker(_) => {
                        status.owned += 1;
                        continue;
                    }
                    OfferOwner::Free { .. } => status.free += 1,
                    OfferOwner::Orphaned { .. } => status.orphaned += 1,
                }
                status.longest_unowned = status.longest_unowned.max(Some(offer.since));
            }
            match page.last() {
                Some(last) if page.len() == MAX_READ => after = Some(last.name.clone()),
                _ => break,
            }
        }
        status.workers = self.workers().await?.iter().filter(|worker| worker.is_alive).count() as u64;
        Ok(status)
    }

    /// Takes a unit away from its owner; false if it had none. The unit is free at once, and the
    /// owner loses the claim.
    pub async fn force_release(&self, name: &str) -> Result<bool> {
        let name = OfferName::new(name)?;
        let claim_shard = self.service().await?.claim_shard_of(&name);
        let names = [name];
        Ok(self.broker().engine().force_release(&claim_shard, &names).await?.first() == Some(&true))
    }
}

impl Broker {
    /// The names of all services that were ever used, sorted.
    pub async fn list_services(&self) -> Result<Vec<String>> {
        Service::all(self).await
    }
}

fn offer_info(offer: firth_engine::facet::OfferInfo) -> OfferInfo {
    let owner = match offer.state {
        OfferState::Free { last } => OfferOwner::Free { last: last.map(|last| last.to_string()) },
        OfferState::Owned { by, .. } => OfferOwner::Worker(by.to_string()),
        OfferState::Orphaned { last } => OfferOwner::Orphaned { last: last.to_string() },
    };
    OfferInfo { name: offer.name.to_string(), owner, epoch: offer.epoch, since: offer.since, age: offer.age }
}
