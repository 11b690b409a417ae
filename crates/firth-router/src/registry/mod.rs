//! The registry of subscriptions and gateways, shared by all router nodes through the engine's
//! catalog.
//!
//! ```text
//! register ─► catalog (the truth, with versions) ─► bus "these changed" ─► every node reads them ─► its own index
//!                                                    gap on the bus ─► the node reads everything again
//! ```
//! The catalog decides; the bus only says where to look. A slow round over all entries finds what a
//! crash between the two left unsaid. The registry answers a registration when every node that
//! matches events has it in its index (`members`, `confirm`). A node that hears news twice, late or
//! in another order ends with the same index (`state`).
//!
//! Each node counts time on its own clock, from when it last saw an entry change. If a node finds
//! an entry expired, it removes the entry by compare-and-set, so a heartbeat in the same moment
//! wins. The node that registers checks quotas against what it knows. So nodes that register in the
//! same moment may together exceed a quota by a few.

mod access;
mod catalog;
mod confirm;
mod explain;
mod finder;
mod members;
mod service;
mod shards;
mod state;
mod subscription;
mod sync;
mod tables;
mod view;

pub use access::{Access, LimitedRegistry};
pub use explain::Verdict;
pub(crate) use finder::{Destinations, Finder};
pub use service::{
    Admitted, CallOutcome, Callers, GrpcBody, Refused, RegistryCall, RegistryClient, RegistryService, Report,
    ServerTls,
};
pub use subscription::{Gateway, Overflow, Subscription, TTL};
pub(crate) use tables::Tables;
pub use view::{GatewaySeen, Seen, Select};

use crate::config::Subscriptions;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::matching::Hit;
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::routing::{SlotTable, Target};
use catalog::{Member, News, Store};
use confirm::Confirm;
use firth::Broker;
use firth::catalog::{Expect, Put};
use futures_util::{StreamExt, TryStreamExt, stream};
use members::MemberState;
use state::State;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use sync::Sync;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A matched subscription.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Who wants the event.
    pub subscription: Arc<Subscription>,
    /// The document matched before the change and does not any more.
    pub leaves: bool,
}

/// How often a lost race for an entry is run again.
const RACES: usize = 16;
/// How many subscriptions of a gateway are removed at a time.
const REMOVALS: usize = 64;

/// A node's handle on the registry; clones share its index. [`close`](Self::close) stops keeping it
/// in step.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    sync: Sync,
    confirm: Confirm,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Registry {
    /// Reads the registry and keeps it in step from then on.
    pub async fn open(broker: &Broker, quotas: Subscriptions) -> Result<Self> {
        let me = format!("{:032x}", fastrand::u128(..));
        let sync = Sync {
            store: Store::new(broker),
            state: Arc::new(RwLock::new(State::new(quotas))),
            member_state: Arc::new(MemberState::default()),
            me: me.as_str().into(),
        };
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let follower = sync::Follower::start(sync.clone()).await?;
        let confirm = Confirm::start(sync.store.clone(), me, stop.clone(), &tasks).await?;
        tasks.spawn(follower.run(stop.clone()));
        Ok(Self(Arc::new(Inner { sync, confirm, stop, tasks })))
    }

    /// Matches events of a topic from now on, as a member of a group, under a name for people:
    /// registrations, here and elsewhere, are answered when this node has them too. Until
    /// [`close`](Self::close). Refused while another group routes the topic.
    pub async fn join(&self, node: &str, topic: &str, group: &str) -> Result<()> {
        let Inner { sync, stop, tasks, .. } = &*self.0;
        if sync.member_state.is_member() {
            return Ok(());
        }
        let id = sync.me.to_string();
        let member = Member { id, node: node.to_owned(), topic: topic.to_owned(), group: group.to_owned() };
        sync.store.put_member(&member).await?;
        members::check(&sync.store, &member).await?;
        members::enter(&sync.store, &member, &sync.member_state).await?;
        tasks.spawn(members::keep(sync.store.clone(), member, Arc::clone(&sync.member_state), stop.clone()));
        // What was registered before the others knew of this node was answered without it.
        sync.read_all().await
    }

    /// Adds a subscription, or replaces the tenant's one with this id: a client that reconnects
    /// just registers again. Returns when every node that matches events knows it, so that no event
    /// sent later is missed. If the registration is refused, the previous subscription stays.
    pub async fn register(&self, subscription: Subscription) -> Result<()> {
        let before = {
            let state = self.read();
            state.admit(&subscription)?;
            let key = (subscription.tenant.clone(), subscription.id.clone());
            state.version(&key).map(|(_, before)| before)
        };
        match self.store().put(&subscription, Expect::Any).await? {
            Put::Done(version) => self.take_in(subscription, version, before).await,
            Put::Conflict(_) => Err(raced()),
        }
    }

    /// As [`register`](Self::register), if the stored subscription that it replaces passes `check`.
    /// The catalog decides what is stored: this node may not have heard of it yet.
    pub(super) async fn register_over(
        &self,
        subscription: Subscription,
        check: impl Fn(&Subscription) -> Result<()>,
    ) -> Result<()> {
        self.read().admit(&subscription)?;
        for _ in 0..RACES {
            let stored = self.store().get(&subscription.tenant, &subscription.id).await?;
            let (expect, before) = match stored {
                Some((version, before)) => (Expect::Version(version), Some(before)),
                None => (Expect::Absent, None),
            };
            before.as_deref().map_or(Ok(()), &check)?;
            if let Put::Done(version) = self.store().put(&subscription, expect).await? {
                return self.take_in(subscription, version, before).await;
            }
        }
        Err(raced())
    }

    /// Takes a subscription into the index that has just been stored, here and at every member.
    async fn take_in(
        &self,
        subscription: Subscription,
        version: u64,
        before: Option<Arc<Subscription>>,
    ) -> Result<()> {
        let key = (subscription.tenant.clone(), subscription.id.clone());
        let known = self.write().put(subscription, version, Instant::now());
        let news = News::subscription(&key.0, &key.1, version);
        let taken = match known {
            Ok(()) => self.0.confirm.wait(news).await,
            Err(refused) => Err(refused),
        };
        match taken {
            Err(refused) if refused.kind() == ErrorKind::Quota => {
                self.undo(&key, version, before).await?;
                Err(refused)
            }
            taken => taken,
        }
    }

    /// Puts back what was there before a registration that some node cannot take, unless it was
    /// changed since.
    async fn undo(
        &self,
        (tenant, id): &(Tenant, SubscriptionId),
        version: u64,
        before: Option<Arc<Subscription>>,
    ) -> Result<()> {
        let expected = Expect::Version(version);
        let undone = match &before {
            Some(before) => self.store().put(before, expected).await?,
            None => self.store().remove(tenant, id, expected).await?,
        };
        let Put::Done(version) = undone else { return Ok(()) };
        match before {
            Some(before) => self.write().put((*before).clone(), version, Instant::now())?,
            None => self.write().forget(&(tenant.clone(), id.clone()), version),
        }
        self.store().tell(&[News::subscription(tenant, id, version)]).await;
        Ok(())
    }

    /// A sign of life of one subscription; its time starts anew.
    pub async fn heartbeat(&self, tenant: &Tenant, id: &SubscriptionId) -> Result<()> {
        self.heartbeat_if(tenant, id, |_| Ok(())).await
    }

    /// As [`heartbeat`](Self::heartbeat), if the stored subscription passes `check`.
    pub(super) async fn heartbeat_if(
        &self,
        tenant: &Tenant,
        id: &SubscriptionId,
        check: impl Fn(&Subscription) -> Result<()>,
    ) -> Result<()> {
        let key = (tenant.clone(), id.clone());
        // What this node knows may be old: then the version differs, and the stored one is checked.
        let known = self.read().version(&key).filter(|(_, known)| check(known).is_ok());
        let (mut version, mut subscription) = match known {
            Some(known) => known,
            None => self.store().get(tenant, id).await?.ok_or_else(|| unknown(id))?,
        };
        for _ in 0..RACES {
            check(&subscription)?;
            match self.store().put(&subscription, Expect::Version(version)).await? {
                Put::Done(version) => {
                    self.write().put((*subscription).clone(), version, Instant::now())?;
                    self.store().tell(&[News::subscription(tenant, id, version)]).await;
                    return Ok(());
                }
                Put::Conflict(None) => {
                    self.write().forget(&key, version);
                    return Err(unknown(id));
                }
                Put::Conflict(Some(entry)) => {
                    (version, subscription) = (entry.version, Arc::new(Subscription::decode(&entry.value)?));
                }
            }
        }
        Err(raced())
    }

    /// Removes a subscription; false if there was none.
    pub async fn unregister(&self, tenant: &Tenant, id: &SubscriptionId) -> Result<bool> {
        let was_there = self.store().get(tenant, id).await?.is_some();
        let news = self.remove(tenant, id, Expect::Any).await?;
        self.store().tell(&news.into_iter().collect::<Vec<_>>()).await;
        Ok(was_there)
    }

    /// As [`unregister`](Self::unregister), if the stored subscription passes `check`.
    pub(super) async fn unregister_if(
        &self,
        tenant: &Tenant,
        id: &SubscriptionId,
        check: impl Fn(&Subscription) -> Result<()>,
    ) -> Result<bool> {
        for _ in 0..RACES {
            let Some((version, stored)) = self.store().get(tenant, id).await? else { return Ok(false) };
            check(&stored)?;
            if let Some(news) = self.remove(tenant, id, Expect::Version(version)).await? {
                self.store().tell(&[news]).await;
                return Ok(true);
            }
        }
        Err(raced())
    }

    /// Removes a subscription; answers what the other nodes are to be told.
    async fn remove(&self, tenant: &Tenant, id: &SubscriptionId, expect: Expect) -> Result<Option<News>> {
        let Put::Done(version) = self.store().remove(tenant, id, expect).await? else { return Ok(None) };
        self.write().forget(&(tenant.clone(), id.clone()), version);
        Ok(Some(News::subscription(tenant, id, version)))
    }

    /// Adds a gateway, or gives a sign of life of it, which also keeps its direct subscriptions
    /// alive. A process with an instance that is new takes the gateway's place: subscriptions that
    /// name the gateway are removed.
    pub async fn register_gateway(&self, gateway: Gateway) -> Result<()> {
        gateway.check()?;
        let older = match &gateway.instance {
            Some(instance) => self.of_others(&gateway.id, instance).await?,
            None => Vec::new(),
        };
        let Put::Done(version) = self.store().put_gateway(&gateway, Expect::Any).await? else {
            return Err(raced());
        };
        let news = News::gateway(&gateway.id, version);
        self.write().put_gateway(gateway, version, Instant::now());
        self.store().tell(&[news]).await;
        let removed = self.remove_all(older).await?;
        self.store().tell(&removed).await;
        Ok(())
    }

    /// The subscriptions that name a gateway, unless this instance of it is registered.
    async fn of_others(&self, id: &GatewayId, instance: &str) -> Result<Vec<state::Key>> {
        let keys = self.read().of_gateway(id);
        let known = self.store().get_gateway(id).await?;
        let is_same = known.is_some_and(|(_, known)| known.instance.as_deref() == Some(instance));
        Ok(if is_same { Vec::new() } else { keys })
    }

    /// A sign of life of a gateway, as it was registered.
    pub async fn heartbeat_gateway(&self, id: &GatewayId) -> Result<Gateway> {
        self.heartbeat_instance(id, None).await
    }

    /// A sign of life of one process of a gateway; `Fenced` if another process has registered
    /// since.
    pub async fn heartbeat_instance(&self, id: &GatewayId, instance: Option<&str>) -> Result<Gateway> {
        let mut known = self.store().get_gateway(id).await?;
        for _ in 0..RACES {
            let Some((version, gateway)) = known else { return Err(unknown_gateway(id)) };
            gateway.check_instance(instance)?;
            match self.store().put_gateway(&gateway, Expect::Version(version)).await? {
                Put::Done(version) => {
                    self.write().put_gateway(gateway.clone(), version, Instant::now());
                    self.store().tell(&[News::gateway(id, version)]).await;
                    return Ok(gateway);
                }
                Put::Conflict(_) => known = self.store().get_gateway(id).await?,
            }
        }
        Err(raced())
    }

    /// Removes a gateway and all subscriptions that name it; answers how many those were, or `None`
    /// if there was neither.
    pub async fn unregister_gateway(&self, gateway: &GatewayId) -> Result<Option<usize>> {
        self.unregister_instance(gateway, None).await
    }

    /// The same for one process of a gateway; `Fenced`, and nothing is removed, if another process
    /// has registered since.
    pub async fn unregister_instance(
        &self,
        gateway: &GatewayId,
        instance: Option<&str>,
    ) -> Result<Option<usize>> {
        let keys = self.read().of_gateway(gateway);
        let known = self.store().get_gateway(gateway).await?;
        let was_there = known.is_some();
        let mut expect = Expect::Any;
        if let (Some((version, known)), Some(_)) = (known, instance) {
            known.check_instance(instance)?;
            expect = Expect::Version(version);
        }
        let count = keys.len();
        let mut news = self.remove_all(keys).await?;
        if let Put::Done(version) = self.store().remove_gateway(gateway, expect).await? {
            self.write().forget_gateway(gateway, version);
            news.push(News::gateway(gateway, version));
        }
        self.store().tell(&news).await;
        Ok((was_there || count > 0).then_some(count))
    }

    async fn remove_all(&self, keys: Vec<state::Key>) -> Result<Vec<News>> {
        let removals = stream::iter(keys).map(|(tenant, id)| {
            let registry = self.clone();
            async move { registry.remove(&tenant, &id, Expect::Any).await }
        });
        let news: Vec<_> = removals.buffer_unordered(REMOVALS).try_collect().await?;
        Ok(news.into_iter().flatten().collect())
    }

    /// The subscriptions that want an event.
    pub fn matches(&self, event: &Event) -> Result<Vec<Wanted>> {
        let state = self.read();
        let mut hits = Vec::new();
        state.matches(event, &mut hits)?;
        let wanted = |hit: &Hit| {
            let (_, subscription) = state.index().get(hit.number).expect("the index was not changed since");
            Wanted { subscription: Arc::clone(subscription), leaves: hit.leaves }
        };
        Ok(hits.iter().map(wanted).collect())
    }

    /// Finds out where events go, while nothing changes: many events at a time, and not for long.
    pub(crate) fn finder(&self) -> Finder<'_> {
        let may_match = self.0.sync.member_state.may_match(Instant::now());
        Finder::new(self.read(), may_match)
    }

    /// The gateways that there are.
    pub fn gateways(&self) -> Vec<Gateway> {
        self.read().gateways()
    }

    /// Gateways that are there, and those that are not but that subscriptions name.
    pub(crate) fn receivers(&self) -> BTreeSet<GatewayId> {
        self.read().receivers()
    }

    /// Whether a subscription names this gateway, or it is there.
    pub(crate) fn is_receiver(&self, id: &GatewayId) -> bool {
        let state = self.read();
        state.gateway_version(id).is_some() || state.keys_of(id).next().is_some()
    }

    /// A number that grows with each sign of life of a gateway; `None` if it is not registered.
    pub(crate) fn sign_of(&self, id: &GatewayId) -> Option<u64> {
        self.read().gateway_version(id)
    }

    /// Tells of every sign of life of any gateway.
    pub(crate) fn signs(&self) -> watch::Receiver<u64> {
        self.read().signs()
    }

    /// The gateways with how long each still counts as alive.
    pub fn seen_gateways(&self) -> Vec<GatewaySeen> {
        self.read().seen_gateways(Instant::now())
    }

    /// A page of subscriptions, in the order of tenants and ids, and whether there are more.
    pub fn select(&self, select: &Select, max: usize) -> (Vec<Seen>, bool) {
        self.read().select(select, max, Instant::now())
    }

    /// One subscription, with how long it lives without another heartbeat.
    pub fn seen(&self, tenant: &Tenant, id: &SubscriptionId) -> Option<Seen> {
        let (subscription, deadline) = self.read().life(&(tenant.clone(), id.clone()))?;
        Some(Seen { subscription, remaining: deadline.saturating_duration_since(Instant::now()) })
    }

    /// One gateway.
    pub fn gateway(&self, id: &GatewayId) -> Option<Gateway> {
        self.read().gateway(id).map(|(_, gateway)| gateway)
    }

    /// One subscription.
    pub fn subscription(&self, tenant: &Tenant, id: &SubscriptionId) -> Option<Arc<Subscription>> {
        self.read().version(&(tenant.clone(), id.clone())).map(|(_, subscription)| subscription)
    }

    /// The gateways that may get spread events of a tenant, and the owners of its slots.
    pub fn table(&self, tenant: &Tenant) -> Arc<SlotTable> {
        self.read().tables().of(tenant)
    }

    /// The tables of all tenants, as they are now.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        Arc::clone(self.read().tables())
    }

    /// The subscriptions that are spread by hash, in the order of tenants.
    pub(crate) fn hashed(&self) -> Vec<(Tenant, SubscriptionId)> {
        self.read().hashed().cloned().collect()
    }

    /// Whether a subscription names this gateway.
    pub(crate) fn is_direct(&self, tenant: &Tenant, id: &SubscriptionId, gateway: &GatewayId) -> bool {
        let known = self.subscription(tenant, id);
        known.is_some_and(|known| matches!(&known.target, Target::Direct(named) if named == gateway))
    }

    /// How many subscriptions this node knows.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stops keeping in step; waits for the tasks to end.
    pub async fn close(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn store(&self) -> &Store {
        &self.0.sync.store
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.sync.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.sync.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} subscriptions)", self.len())
    }
}

fn unknown(id: &SubscriptionId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("there is no subscription {id}: it expired or was removed; register it again"),
    )
}

fn unknown_gateway(id: &GatewayId) -> Error {
    let context = format!("there is no gateway {id}: it expired or was removed; register it again");
    Error::new(ErrorKind::NotFound, context)
}

fn raced() -> Error {
    Error::new(ErrorKind::Unavailable, "others change the same entry all the time; try again")
}
