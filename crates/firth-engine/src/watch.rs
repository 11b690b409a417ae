//! Waiting for change: hints from the engine, and watches that turn them into answers.
//!
//! A hint says "look again" and may come too often, never too seldom: an engine that cannot push gives hints with a
//! poll interval. Whoever waits always reads the truth afterwards, so a lost or doubled hint does no harm.

use crate::engine::Engine;
use crate::error::Result;
use crate::facet::{Board, Entry, LeaseQuery};
use crate::hold::LeaseInfo;
use crate::name::{Partition, PoolName, SpaceName};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What can be waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HintKey {
    /// Something to do on this partition: records were appended or delayed, a dead letter became due again, or the
    /// partition was deleted.
    Log(Partition),
    /// Entries were added to the stream of others with this key.
    Stream(String),
    /// A lease of a group on this partition changed hands.
    GroupLeases(Partition),
    /// A lease of this pool changed hands.
    Pool(PoolName),
    /// Something on this board can be granted or was taken away, or its members changed.
    Board(Board),
    /// An entry of this space changed.
    Space(SpaceName),
}

/// The engine's side of waiting.
pub trait Hints {
    /// A hint that fires after each change from now on.
    fn hint(&self, key: HintKey) -> Hint;
}

/// Fires when something may have changed since it was made or last waited for.
#[derive(Clone)]
pub struct Hint {
    changes: watch::Receiver<u64>,
    poll: Option<Duration>,
    before_wait: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Hint {
    /// A hint fed by a counter. With `poll`, it also fires after that long whatever happens.
    pub fn new(changes: watch::Receiver<u64>, poll: Option<Duration>) -> Self {
        Self { changes, poll, before_wait: None }
    }

    /// Calls `arm` whenever somebody begins to wait, for engines that must be told so.
    #[must_use]
    pub fn with_arm(mut self, arm: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_wait = Some(Arc::new(arm));
        self
    }

    /// Waits for the next change. Changes between two calls are not lost: the second call returns at once.
    pub async fn wait(&mut self) {
        if let Some(arm) = self.before_wait.as_ref().filter(|_| !self.changes.has_changed().unwrap_or(false))
        {
            arm();
        }
        let changed = async {
            if self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        match self.poll {
            None => changed.await,
            Some(poll) => {
                let _ = tokio::time::timeout(poll, changed).await;
            }
        }
    }
}

impl std::fmt::Debug for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hint").field("poll", &self.poll).finish_non_exhaustive()
    }
}

/// Watches leases: see [`LeaseWatch::changed`].
pub struct LeaseWatch {
    engine: Engine,
    query: LeaseQuery,
    hints: Vec<Hint>,
    seen: Option<Vec<LeaseInfo>>,
}

impl LeaseWatch {
    pub(crate) fn new(engine: Engine, query: LeaseQuery) -> Self {
        let mut keys: Vec<HintKey> = match &query {
            LeaseQuery::Pool(pool) => vec![HintKey::Pool(pool.clone())],
            LeaseQuery::Names(names) => names.iter().map(crate::hold::LeaseName::hint).collect(),
        };
        keys.dedup();
        let hints = keys.into_iter().map(|key| engine.hint(key)).collect();
        Self { engine, query, hints, seen: None }
    }

    /// The leases, as soon as one of them changed hands, ended or ran out since the last call; the first call
    /// answers at once. Renewals are no change.
    pub async fn changed(&mut self) -> Result<Vec<LeaseInfo>> {
        loop {
            let now = self.engine.leases(&self.query).await?;
            if self.seen.as_ref().is_none_or(|seen| !same_holders(seen, &now)) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
            let next_expiry = now.iter().filter(|lease| lease.is_held()).map(|lease| lease.remaining).min();
            tokio::select! {
                () = any(&mut self.hints) => {}
                () = sleep_for(next_expiry) => {}
            }
        }
    }
}

fn same_holders(a: &[LeaseInfo], b: &[LeaseInfo]) -> bool {
    let key = |lease: &LeaseInfo| (lease.name.clone(), lease.epoch, lease.is_held());
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| key(a) == key(b))
}

/// Watches a part of the catalog: see [`CatalogWatch::changed`].
pub struct CatalogWatch {
    engine: Engine,
    space: SpaceName,
    prefix: String,
    hint: Hint,
    seen: Option<Vec<(String, u64)>>,
}

impl CatalogWatch {
    pub(crate) fn new(engine: Engine, space: SpaceName, prefix: String) -> Self {
        let hint = engine.hint(HintKey::Space(space.clone()));
        Self { engine, space, prefix, hint, seen: None }
    }

    /// All entries, as soon as one was put or removed since the last call; the first call answers at once.
    pub async fn changed(&mut self) -> Result<Vec<Entry>> {
        loop {
            let now = self.engine.list_all(&self.space, &self.prefix).await?;
            let versions: Vec<_> = now.iter().map(|entry| (entry.name.clone(), entry.version)).collect();
            if self.seen.as_ref() != Some(&versions) {
                self.seen = Some(versions);
                return Ok(now);
            }
            self.hint.wait().await;
        }
    }
}

async fn any(hints: &mut [Hint]) {
    let mut waits: Vec<_> = hints.iter_mut().map(|hint| Box::pin(hint.wait())).collect();
    std::future::poll_fn(|context| {
        match waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

async fn sleep_for(duration: Option<Duration>) {
    match duration {
        // One tick more: the engine counts in milliseconds and rounds a deadline up.
        Some(duration) => tokio::time::sleep(duration + Duration::from_millis(1)).await,
        None => std::future::pending().await,
    }
}
