//! What one node knows of the registry: the index, the gateways, who expires when. Pure: entries
//! come in with their versions, in any order and any number of times, and the newest version wins.

use super::shards::Shards;
use super::subscription::{Gateway, Subscription};
use super::tables::Tables;
use crate::config::Subscriptions;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::matching::{Hit, Index};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::routing::Target;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A subscription's full name.
pub(super) type Key = (Tenant, SubscriptionId);

pub(super) struct Known {
    version: u64,
    deadline: Instant,
    subscription: Arc<Subscription>,
}

struct KnownGateway {
    version: u64,
    seen: Instant,
    gateway: Gateway,
}

pub(super) struct State {
    index: Index<Arc<Subscription>>,
    known: Shards,
    /// Removals that an older put may not undo.
    gone: HashMap<Key, u64>,
    deadlines: BTreeSet<(Instant, Key)>,
    by_gateway: BTreeMap<GatewayId, BTreeSet<Key>>,
    /// Those whose gateway is found by hash.
    hashed: BTreeSet<Key>,
    gateways: BTreeMap<GatewayId, KnownGateway>,
    gone_gateways: HashMap<GatewayId, u64>,
    tables: Arc<Tables>,
    quotas: Subscriptions,
    unreadable: u64,
    /// Changes whenever a gateway gives a sign of life or goes.
    signs: watch::Sender<u64>,
}

/// How many removals are remembered. More than that many in flight at once between two nodes would
/// need a slower bus than any.
const MAX_GONE: usize = 100_000;

impl State {
    pub(super) fn new(quotas: Subscriptions) -> Self {
        Self {
            index: Index::new(quotas.unindexed_per_tenant),
            known: Shards::default(),
            gone: HashMap::new(),
            deadlines: BTreeSet::new(),
            by_gateway: BTreeMap::new(),
            hashed: BTreeSet::new(),
            gateways: BTreeMap::new(),
            gone_gateways: HashMap::new(),
            tables: Arc::new(Tables::new([])),
            quotas,
            unreadable: 0,
            signs: watch::Sender::new(0),
        }
    }

    /// Whether there is room for it. Replacing one's own is always allowed, except by a filter for
    /// which the index has no room.
    pub(super) fn admit(&self, subscription: &Subscription) -> Result<()> {
        self.index.admits(&subscription.id, &subscription.interest()?)?;
        let key = (subscription.tenant.clone(), subscription.id.clone());
        let old = self.known.get(&key);
        let of_gateway = match &subscription.target {
            Target::Direct(gateway)
                if old.is_none_or(|old| old.subscription.target != subscription.target) =>
            {
                self.by_gateway.get(gateway).map_or(0, BTreeSet::len)
            }
            _ => 0,
        };
        let (tenant, total) = match old {
            Some(_) => (0, 0),
            None => (self.index.len_of(&subscription.tenant), self.index.len()),
        };
        let quotas = [
            ("per_gateway", of_gateway, self.quotas.per_gateway),
            ("per_tenant", tenant, self.quotas.per_tenant),
            ("total", total, self.quotas.total),
        ];
        match quotas.iter().find(|(_, used, quota)| used >= quota) {
            None => Ok(()),
            Some((name, _, quota)) => Err(Error::new(
                ErrorKind::Quota,
                format!(
                    "the quota routing.subscriptions.{name} of {quota} is used up; unregister some, or raise it"
                ),
            )),
        }
    }

    /// A subscription as it stands in the catalog.
    pub(super) fn put(&mut self, subscription: Subscription, version: u64, now: Instant) -> Result<()> {
        let key = (subscription.tenant.clone(), subscription.id.clone());
        if self.gone.get(&key).is_some_and(|gone| *gone >= version) {
            return Ok(());
        }
        let deadline = now + subscription.ttl();
        if let Some(known) = self.known.get_mut(&key) {
            if known.version >= version {
                return Ok(());
            }
            if *known.subscription == subscription {
                self.deadlines.remove(&(known.deadline, key.clone()));
                (known.version, known.deadline) = (version, deadline);
                self.deadlines.insert((deadline, key));
                return Ok(());
            }
        }
        let interest = subscription.interest().inspect_err(|_| self.unreadable += 1)?;
        let subscription = Arc::new(subscription);
        // If the index refuses it, what was known before stays.
        self.index.insert(key.1.clone(), interest, Arc::clone(&subscription))?;
        self.unlink(&key);
        match &subscription.target {
            Target::Direct(gateway) => {
                self.by_gateway.entry(gateway.clone()).or_default().insert(key.clone());
            }
            Target::Hash => drop(self.hashed.insert(key.clone())),
            Target::Broadcast => {}
        }
        self.deadlines.insert((deadline, key.clone()));
        self.known.insert(key, Known { version, deadline, subscription });
        Ok(())
    }

    /// A subscription that was removed from the catalog, by a step with this version.
    pub(super) fn forget(&mut self, key: &Key, version: u64) {
        if self.known.get(key).is_some_and(|known| known.version > version) {
            return;
        }
        self.drop_known(key);
        if self.gone.len() >= MAX_GONE {
            self.gone.clear();
        }
        let gone = self.gone.entry(key.clone()).or_default();
        *gone = version.max(*gone);
    }

    fn drop_known(&mut self, key: &Key) {
        if self.unlink(key) {
            self.index.remove(&key.0, &key.1);
        }
    }

    /// Takes a subscription out of everything but the index; false if it was not known.
    fn unlink(&mut self, key: &Key) -> bool {
        let Some(known) = self.known.remove(key) else { return false };
        self.hashed.remove(key);
        self.deadlines.remove(&(known.deadline, key.clone()));
        if let Target::Direct(gateway) = &known.subscription.target
            && let Some(keys) = self.by_gateway.get_mut(gateway)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_gateway.remove(gateway);
            }
        }
        true
    }

    pub(super) fn put_gateway(&mut self, gateway: Gateway, version: u64, now: Instant) {
        if self.gone_gateways.get(&gateway.id).is_some_and(|gone| *gone >= version) {
            return;
        }
        let id = gateway.id.clone();
        let is_other = match self.gateways.get(&id) {
            Some(known) if known.version >= version => return,
            known => known.is_none_or(|known| known.gateway.tenants != gateway.tenants),
        };
        self.gateways.insert(id, KnownGateway { version, seen: now, gateway });
        self.signs.send_modify(|signs| *signs += 1);
        if is_other {
            self.refill();
        }
    }

    pub(super) fn forget_gateway(&mut self, id: &GatewayId, version: u64) {
        if self.gateways.get(id).is_some_and(|known| known.version > version) {
            return;
        }
        if self.gone_gateways.len() >= MAX_GONE {
            self.gone_gateways.clear();
        }
        let gone = self.gone_gateways.entry(id.clone()).or_default();
        *gone = version.max(*gone);
        if self.gateways.remove(id).is_some() {
            self.signs.send_modify(|signs| *signs += 1);
            self.refill();
        }
    }

    fn refill(&mut self) {
        self.tables = Arc::new(Tables::new(self.gateways.values().map(|known| &known.gateway)));
    }

    /// Subscriptions whose time is over and whose gateway gives no sign of life either, with the
    /// versions to remove. Those that their gateway keeps alive get more time.
    pub(super) fn expired(&mut self, now: Instant, max: usize) -> Vec<(Key, u64)> {
        let mut over = Vec::new();
        while over.len() < max
            && let Some((deadline, _)) = self.deadlines.first()
            && *deadline <= now
        {
            let (_, key) = self.deadlines.pop_first().expect("there is a first one");
            let Some(known) = self.known.get_mut(&key) else { continue };
            let kept = match &known.subscription.target {
                Target::Direct(gateway) => self.gateways.get(gateway).map(KnownGateway::until),
                Target::Hash | Target::Broadcast => None,
            };
            // If the subscription is to be removed, check it again soon, in case the removal fails.
            known.deadline = kept.filter(|until| *until > now).unwrap_or(now + Duration::from_secs(5));
            if kept.is_none_or(|until| until <= now) {
                over.push((key.clone(), known.version));
            }
            self.deadlines.insert((known.deadline, key));
        }
        over
    }

    /// Gateways that gave no sign of life for too long.
    pub(super) fn expired_gateways(&self, now: Instant) -> Vec<(GatewayId, u64)> {
        let over = |known: &&KnownGateway| known.gateway.ttl().is_some_and(|ttl| known.seen + ttl <= now);
        self.gateways.values().filter(over).map(|known| (known.gateway.id.clone(), known.version)).collect()
    }

    /// What is known of one shard.
    pub(super) fn versions(&self, shard: u64) -> impl Iterator<Item = (&Key, u64)> {
        self.known.of(shard).map(|(key, known)| (key, known.version))
    }

    /// Whether this version of it, or a newer one, is known.
    pub(super) fn knows(&self, key: &Key, version: u64) -> bool {
        self.known.get(key).is_some_and(|known| known.version >= version)
    }

    /// As [`knows`](Self::knows), or it is known to be removed since.
    pub(super) fn is_past(&self, key: &Key, version: u64) -> bool {
        self.knows(key, version) || self.gone.get(key).is_some_and(|gone| *gone >= version)
    }

    pub(super) fn version(&self, key: &Key) -> Option<(u64, Arc<Subscription>)> {
        self.known.get(key).map(|known| (known.version, Arc::clone(&known.subscription)))
    }

    pub(super) fn gateway(&self, id: &GatewayId) -> Option<(u64, Gateway)> {
        self.gateways.get(id).map(|known| (known.version, known.gateway.clone()))
    }

    /// The version of a gateway's entry, which grows with each sign of life.
    pub(super) fn gateway_version(&self, id: &GatewayId) -> Option<u64> {
        self.gateways.get(id).map(|known| known.version)
    }

    pub(super) fn signs(&self) -> watch::Receiver<u64> {
        self.signs.subscribe()
    }

    /// Gateways that are there, and those that are not but that subscriptions name.
    pub(super) fn receivers(&self) -> BTreeSet<GatewayId> {
        self.gateways.keys().chain(self.by_gateway.keys()).cloned().collect()
    }

    pub(super) fn gateways(&self) -> Vec<Gateway> {
        self.gateways.values().map(|known| known.gateway.clone()).collect()
    }

    pub(super) fn of_gateway(&self, gateway: &GatewayId) -> Vec<Key> {
        self.by_gateway.get(gateway).map_or_else(Vec::new, |keys| keys.iter().cloned().collect())
    }

    pub(super) fn keys_of(&self, gateway: &GatewayId) -> impl Iterator<Item = &Key> {
        self.by_gateway.get(gateway).into_iter().flatten()
    }

    pub(super) fn hashed(&self) -> impl Iterator<Item = &Key> {
        self.hashed.iter()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.known.keys()
    }

    /// A subscription, and when its time is over.
    pub(super) fn life(&self, key: &Key) -> Option<(Arc<Subscription>, Instant)> {
        self.known.get(key).map(|known| (Arc::clone(&known.subscription), known.deadline))
    }

    /// The gateways, and when each was last seen alive.
    pub(super) fn known_gateways(&self) -> impl Iterator<Item = (&Gateway, Instant)> {
        self.gateways.values().map(|known| (&known.gateway, known.seen))
    }

    pub(super) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn index(&self) -> &Index<Arc<Subscription>> {
        &self.index
    }

    pub(super) fn matches(&self, event: &Event, hits: &mut Vec<Hit>) -> Result<()> {
        self.index.matches_into(event, hits)
    }
}

impl KnownGateway {
    /// When it counts as gone; far away if it never expires.
    fn until(&self) -> Instant {
        self.seen + self.gateway.ttl().unwrap_or(Duration::from_secs(86_400 * 365))
    }
}

#[cfg(test)]
mod tests;
