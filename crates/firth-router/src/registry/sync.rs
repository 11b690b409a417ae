//! Keeps a node's view in step with the catalog: hears news, makes slow rounds, ends what expired.

use super::catalog::{Ask, Confirmed, Listed, News, SHARDS, Store};
use super::members::{MemberState, Watched};
use super::state::{Key, State};
use crate::error::{Error, Result};
use firth::catalog::{Expect, Listener, Put, Signal};
use foldhash::fast::RandomState;
use futures_util::{StreamExt, stream};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// One shard is read again this often, so all of them in about a minute.
const ROUND: Duration = Duration::from_secs(1);
/// The most expired subscriptions that are removed at a time.
const MAX_EXPIRED: usize = 1000;

/// How many entries that changed are read at a time.
const READS: usize = 32;

pub(super) struct Follower {
    sync: Sync,
    listener: Listener,
    next_shard: u64,
    watched: Watched,
}

/// A node's view, the catalog, and how to bring one in step with the other.
#[derive(Clone)]
pub(super) struct Sync {
    pub(super) store: Store,
    pub(super) state: Arc<RwLock<State>>,
    pub(super) member_state: Arc<MemberState>,
    /// This node's name among the members.
    pub(super) me: Arc<str>,
}

impl Follower {
    /// Listens first and reads everything then, so that nothing falls between.
    pub(super) async fn start(sync: Sync) -> Result<Self> {
        let listener = sync.store.listen().await?;
        sync.read_all().await?;
        Ok(Self { sync, listener, next_shard: 0, watched: Watched::default() })
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let outcome = tokio::select! {
                () = stop.cancelled() => return,
                signal = self.listener.next() => match signal {
                    Ok(Signal::Message(payload)) => self.sync.hear(&payload).await,
                    Ok(Signal::Gap) => self.sync.read_all().await,
                    // The engine was closed: nothing more will ever come.
                    Err(_) => return,
                },
                () = self.sync.member_state.wants_reading() => self.sync.read_all().await,
                _ = rounds.tick() => self.round().await,
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "the registry could not be read; the next round tries again");
            }
        }
    }

    async fn round(&mut self) -> Result<()> {
        if self.sync.member_state.is_stale() {
            self.sync.read_all().await?;
        }
        self.sync.read_gateways().await?;
        self.sync.read_shard(self.next_shard).await?;
        self.next_shard = (self.next_shard + 1) % SHARDS;
        self.sync.expire().await?;
        self.watched.sweep(&self.sync.store).await
    }
}

impl Sync {
    /// Reads what a message says has changed; as a member, confirms that then.
    async fn hear(&self, payload: &[u8]) -> Result<()> {
        let Some(news) = News::read(payload) else { return self.read_all().await };
        let ask = news.first().and_then(|piece| match piece {
            News::Subscription { ask, .. } => ask.clone(),
            News::Gateway { .. } => None,
        });
        let pieces = stream::iter(news).map(|piece| {
            let sync = self.clone();
            async move { Ok::<_, Error>(sync.catch_up(&piece).await?.map(|why| (piece, why))) }
        });
        let mut pieces = pieces.buffered(READS);
        let mut refused = Vec::new();
        while let Some(piece) = pieces.next().await {
            refused.extend(piece?);
        }
        if let Some(Ask { to, number }) = ask.filter(|_| self.member_state.is_member()) {
            let by = self.me.to_string();
            self.store.confirm(&to, &Confirmed { number, by, refused }).await?;
        }
        Ok(())
    }

    /// Reads what has changed; answers why it cannot be taken, if so.
    async fn catch_up(&self, piece: &News) -> Result<Option<String>> {
        match piece {
            News::Subscription { t, s, v, .. } => {
                let key: Key = (t.clone(), s.clone());
                if self.read().is_past(&key, *v) {
                    return Ok(None);
                }
                match self.store.get(t, s).await? {
                    Some((version, subscription)) => {
                        let learned = self.learn(version, (*subscription).clone());
                        return Ok(learned.err().map(|error| error.context().to_owned()));
                    }
                    None => self.write().forget(&key, *v),
                }
            }
            News::Gateway { g, v } => match self.store.get_gateway(g).await? {
                Some((version, gateway)) => self.write().put_gateway(gateway, version, Instant::now()),
                None => self.write().forget_gateway(g, *v),
            },
        }
        Ok(None)
    }

    pub(super) async fn read_all(&self) -> Result<()> {
        let reading = self.member_state.begins_reading();
        self.read_gateways().await?;
        for shard in 0..SHARDS {
            self.read_shard(shard).await?;
        }
        self.member_state.has_read(reading);
        Ok(())
    }

    /// What was known before the reading began and is not in it was removed. What is learned
    /// during the reading is left alone. Most is known already, and is not read again.
    async fn read_shard(&self, shard: u64) -> Result<()> {
        let before: Vec<_> = {
            let state = self.read();
            state.versions(shard).map(|(key, version)| (key.clone(), version)).collect()
        };
        let entries = self.store.shard(shard).await?;
        let news: Vec<&Listed> = {
            let state = self.read();
            entries.iter().filter(|entry| !state.knows(&entry.key, entry.version)).collect()
        };
        for Listed { key, version, value } in news {
            match super::Subscription::decode(value) {
                // Why it is left out was told.
                Ok(subscription) => drop(self.learn(*version, subscription)),
                Err(error) => {
                    tracing::warn!(subscription = %key.1, %error, "a registered subscription is left out");
                }
            }
        }
        let there: HashSet<_, RandomState> = entries.iter().map(|entry| &entry.key).collect();
        for (key, version) in before.iter().filter(|(key, _)| !there.contains(key)) {
            self.write().forget(key, *version);
        }
        Ok(())
    }

    async fn read_gateways(&self) -> Result<()> {
        let before: Vec<_> = self.read().gateways().into_iter().map(|gateway| gateway.id).collect();
        let before: Vec<_> = before.into_iter().filter_map(|id| self.read().gateway(&id)).collect();
        let entries = self.store.gateways().await?;
        let there: HashSet<_> = entries.iter().map(|(_, gateway)| gateway.id.clone()).collect();
        for (version, gateway) in entries {
            self.write().put_gateway(gateway, version, Instant::now());
        }
        for (version, gateway) in before.into_iter().filter(|(_, gateway)| !there.contains(&gateway.id)) {
            self.write().forget_gateway(&gateway.id, version);
        }
        Ok(())
    }

    fn learn(&self, version: u64, subscription: super::Subscription) -> Result<()> {
        let id = subscription.id.clone();
        self.write().put(subscription, version, Instant::now()).inspect_err(|error| {
            tracing::warn!(subscription = %id, %error, "a registered subscription is left out");
        })
    }

    async fn expire(&self) -> Result<()> {
        let now = Instant::now();
        let over = self.read().expired_gateways(now);
        for (id, version) in over {
            match self.store.remove_gateway(&id, Expect::Version(version)).await? {
                Put::Done(version) => {
                    self.write().forget_gateway(&id, version);
                    self.store.tell(&[News::gateway(&id, version)]).await;
                }
                Put::Conflict(None) => self.write().forget_gateway(&id, version),
                // It gave a sign of life since it was read.
                Put::Conflict(Some(_)) => self.read_gateways().await?,
            }
        }
        let over = self.write().expired(now, MAX_EXPIRED);
        let mut news = Vec::new();
        for (key, version) in over {
            match self.store.remove(&key.0, &key.1, Expect::Version(version)).await? {
                Put::Done(version) => {
                    self.write().forget(&key, version);
                    news.push(News::subscription(&key.0, &key.1, version));
                }
                Put::Conflict(None) => self.write().forget(&key, version),
                Put::Conflict(Some(entry)) => {
                    // Why it is left out was told.
                    drop(self.learn(entry.version, super::Subscription::decode(&entry.value)?));
                }
            }
        }
        self.store.tell(&news).await;
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}
