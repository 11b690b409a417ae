//! [`Worker`]: a process's part in a service: one ordered stream of events, and calls by name.

use super::claim::Claim;
use super::common::WorkerCommon;
use super::config::WorkerConfig;
use super::coordinator::{self, ClaimCoordinator};
use super::events::Notice;
use super::run::RunOptions;
use super::service::Service;
use super::shard::Shard;
use crate::background::Background;
use crate::broker::Broker;
use crate::error::Result;
use firth_engine::{Epoch, MemberName, OfferName};
use futures_core::Stream;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// What a worker is told, in order.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A unit of work is yours.
    Granted(Claim),
    /// Another worker should have it: finish, leave a checkpoint, [`release`](Claim::release) it.
    /// After [`handover`](WorkerConfig::handover) it is taken.
    Recalled(Claim),
    /// It is not yours any more: stop at once.
    Lost(Claim),
    /// It was given back.
    Released(Claim),
    /// A worker vanished while it had this unit. A [`Granted`](Self::Granted) follows if this
    /// worker takes over. If no worker takes over by itself, [`claim`](WorkerHandle::claim) the
    /// unit.
    Orphaned {
        /// The unit.
        name: String,
        /// Who had it.
        last_owner: String,
    },
}

/// A worker of a service. Read its events with [`next`](Self::next), or give it a handler with
/// [`run`](Self::run).
///
/// [`close`](Self::close) hands everything over at once. Dropping it is like a crash: its claims
/// are taken over when the TTL has run out.
pub struct Worker {
    handle: WorkerHandle,
    /// The coordinators and their heartbeats.
    pub(crate) coordinators: Background,
    pub(crate) run_options: RunOptions,
    /// Resolves when there may be an event.
    news: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

/// Steers a worker from elsewhere; clones share it.
#[derive(Clone)]
pub struct WorkerHandle {
    common: Arc<WorkerCommon>,
    service: Service,
    shards: Arc<[Arc<Shard>]>,
}

/// How a worker is, for health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerHealth {
    /// Its name.
    pub id: String,
    /// The number of its session on each shard; `None` while it has no membership there.
    pub sessions: Vec<Option<Epoch>>,
    /// Whether it has a valid membership on every shard.
    pub is_healthy: bool,
    /// For how long its claims are certain without another beat; zero if not on every shard.
    pub valid_for: Duration,
    /// Its claims.
    pub claims: u64,
    /// Events that wait to be read.
    pub events_waiting: usize,
    /// All offers of the service, as last reported.
    pub offers: u64,
    /// Free offers: no worker has them, and none vanished with them.
    pub free: u64,
    /// Offers whose workers are gone.
    pub orphaned: u64,
}

impl WorkerHandle {
    /// Its name.
    pub fn id(&self) -> &str {
        self.common.id.as_str()
    }

    pub(crate) fn config(&self) -> &WorkerConfig {
        &self.common.config
    }

    /// Takes a unit by name, free or orphaned, at once. If a living worker has it, the error is
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) and says who.
    pub async fn claim(&self, name: &str) -> Result<Claim> {
        self.take(name, false).await
    }

    /// Takes a unit by name, even from a living owner, which loses it at once.
    pub async fn seize(&self, name: &str) -> Result<Claim> {
        self.take(name, true).await
    }

    async fn take(&self, name: &str, seize: bool) -> Result<Claim> {
        let name = OfferName::new(name)?;
        let shard = &self.shards[self.service.shard_of(&name)];
        let unit = shard.take(&name, seize).await?;
        Ok(Claim::new(unit, shard.clone()))
    }

    /// The claims that it has now.
    pub fn claims(&self) -> Vec<Claim> {
        let of = |shard: &Arc<Shard>| {
            let units: Vec<_> = shard.table().units.values().cloned().collect();
            units.into_iter().map(|unit| Claim::new(unit, shard.clone())).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// How many claims it has now.
    pub fn claim_count(&self) -> u64 {
        self.common.held()
    }

    /// How it is.
    pub fn health(&self) -> WorkerHealth {
        let sessions: Vec<_> = self.shards.iter().map(|shard| shard.table().session.clone()).collect();
        let now = Instant::now();
        let valid = sessions.iter().map(|session| {
            session
                .as_ref()
                .map_or(Duration::ZERO, |session| session.valid_until().saturating_duration_since(now))
        });
        let valid_for = valid.min().unwrap_or_default();
        let offer_counts = self.common.offer_counts();
        WorkerHealth {
            id: self.id().to_owned(),
            sessions: sessions
                .into_iter()
                .map(|session| session.map(|session| session.membership.number))
                .collect(),
            is_healthy: !valid_for.is_zero(),
            valid_for,
            claims: self.common.held(),
            events_waiting: self.common.queue.len(),
            offers: offer_counts.offers,
            free: offer_counts.free,
            orphaned: offer_counts.orphaned,
        }
    }

    /// Starts a graceful close: nothing more is granted, every claim is recalled, and once all are
    /// given back (or [`handover`](WorkerConfig::handover) has passed) the rest is handed over in
    /// one step and the events end.
    pub fn close(&self) {
        self.common.closing.cancel();
    }

    pub(crate) fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    fn event_of(&self, notice: Notice) -> Event {
        let claim = |unit| self.claim_of(unit);
        match notice {
            Notice::Granted(unit) => Event::Granted(claim(unit)),
            Notice::Recalled(unit) => Event::Recalled(claim(unit)),
            Notice::Lost(unit) => Event::Lost(claim(unit)),
            Notice::Released(unit) => Event::Released(claim(unit)),
            Notice::Orphaned { name, last_owner } => {
                Event::Orphaned { name: name.to_string(), last_owner: last_owner.to_string() }
            }
        }
    }

    fn claim_of(&self, unit: Arc<super::unit::Unit>) -> Claim {
        let shard = self.shards[unit.session.shard].clone();
        Claim::new(unit, shard)
    }
}

impl Worker {
    /// The next event, or `None` after the end. An error means that the worker cannot go on
    /// (another process took its name, say). Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The next event if one waits; `None` also after the end, of which [`next`](Self::next) tells.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.handle.common.queue.pop() {
            Poll::Ready(notice) => notice.map(|notice| self.handle.event_of(notice)),
            Poll::Pending => None,
        }
    }

    /// A handle to steer it from elsewhere.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// As [`WorkerHandle::claim`].
    pub async fn claim(&self, name: &str) -> Result<Claim> {
        self.handle.claim(name).await
    }

    /// As [`WorkerHandle::health`].
    pub fn health(&self) -> WorkerHealth {
        self.handle.health()
    }

    /// Leaves the service: recalls every claim, waits for those who hold one (up to
    /// [`handover`](WorkerConfig::handover)), then hands everything over in one step. Nothing is
    /// deleted.
    pub async fn close(mut self) -> Result<()> {
        self.handle.common.closing.cancel();
        self.coordinators.end().await
    }
}

/// Events as [`Worker::next`] gives them.
impl Stream for Worker {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.handle.common.queue.pop() {
                Poll::Ready(Some(notice)) => return Poll::Ready(Some(Ok(self.handle.event_of(notice)))),
                Poll::Ready(None) => {
                    return self.coordinators.poll_end(context).map(|end| end.err().map(Err));
                }
                Poll::Pending => {}
            }
            let common = self.handle.common.clone();
            let news = self.news.get_or_insert_with(|| Box::pin(async move { common.queue.news().await }));
            ready!(news.as_mut().poll(context));
            self.news = None;
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({} of {})", self.handle.id(), self.handle.common.service)
    }
}

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerHandle({} of {})", self.id(), self.common.service)
    }
}

/// A worker about to join; finish it with `.await`.
#[must_use = "nothing is claimed until it is awaited"]
pub struct WorkerBuilder {
    claims: super::Claims,
    id: String,
    config: WorkerConfig,
}

impl WorkerBuilder {
    pub(crate) fn new(claims: super::Claims, id: String) -> Self {
        Self { claims, id, config: WorkerConfig::default() }
    }

    /// Everything at once.
    pub fn config(mut self, config: WorkerConfig) -> Self {
        self.config = config;
        self
    }

    /// How many claims it takes at most; a million unless set.
    pub fn max_claims(mut self, claims: u64) -> Self {
        self.config.max_claims = claims;
        self
    }

    /// How long a crashed or hanging worker keeps its claims; 5 s unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.config.ttl = ttl;
        self
    }

    /// Takes nothing by itself, only what is claimed by name; orphans are announced.
    pub fn by_name_only(mut self) -> Self {
        self.config.automatic = false;
        self
    }

    /// How many grants wait for a slow reader; 500 unless set.
    pub fn buffer(mut self, grants: usize) -> Self {
        self.config.buffer = grants;
        self
    }

    /// How long the holder of a recalled claim may take to give it back; 5 s unless set.
    pub fn handover(mut self, limit: Duration) -> Self {
        self.config.handover = limit;
        self
    }

    async fn build(self) -> Result<Worker> {
        self.config.check()?;
        let id = MemberName::new(&self.id)?;
        let service = self.claims.service().await?.clone();
        let broker = self.claims.broker();
        let common =
            WorkerCommon::new(broker, service.name.clone(), id, self.config, service.claim_shards().count());
        let common = Arc::new(common);
        let shards: Arc<[Arc<Shard>]> = service
            .claim_shards()
            .enumerate()
            .map(|(index, claim_shard)| Shard::new(common.clone(), claim_shard, index))
            .collect();
        let mut sessions = Vec::with_capacity(shards.len());
        for shard in shards.iter() {
            sessions.push(join_with_retries(shard).await?);
        }
        let coordinators = shards
            .iter()
            .zip(sessions)
            .map(|(shard, session)| (ClaimCoordinator::new(shard.clone()), session));
        let task = tokio::spawn(run(coordinators.collect(), common.clone(), self.claims.broker().clone()));
        Ok(Worker {
            handle: WorkerHandle { common, service, shards },
            coordinators: Background::new("worker", task, std::future::ready(())),
            run_options: RunOptions::default(),
            news: None,
        })
    }
}

impl IntoFuture for WorkerBuilder {
    type Output = Result<Worker>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.build())
    }
}

async fn join_with_retries(shard: &Arc<Shard>) -> Result<Arc<super::unit::ShardSession>> {
    let config = &shard.common.config;
    let request = shard.request();
    super::retrying(config.retries, config.backoff, || coordinator::join(shard, &request)).await
}

/// Runs the coordinators of all shards side by side. If one cannot go on, none does.
async fn run(
    coordinators: Vec<(ClaimCoordinator, Arc<super::unit::ShardSession>)>,
    common: Arc<WorkerCommon>,
    _broker: Broker,
) -> Result<()> {
    let failure = Mutex::new(None);
    let each = coordinators.into_iter().map(|(coordinator, session)| {
        let failure = &failure;
        let common = &common;
        async move {
            if let Err(error) = coordinator.run(session).await {
                failure.lock().expect("nothing panics under this lock").get_or_insert(error);
                common.closing.cancel();
            }
        }
    });
    futures_util::future::join_all(each).await;
    common.queue.close();
    failure.into_inner().expect("nothing panics under this lock").map_or(Ok(()), Err)
}
