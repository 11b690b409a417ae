//! Waiting for change: hints from the engine, and watches that turn them into answers.
//!
//! A hint says "look again" and may come too often, never too seldom: an engine that cannot push
//! gives hints with a poll interval. After a hint the waiting caller always reads the state itself,
//! so a lost or doubled hint does no harm.

use crate::engine::Engine;
use crate::error::Result;
use crate::facet::{ClaimShard, Entry, LeaseQuery};
use crate::hold::LeaseInfo;
use crate::name::{Partition, PoolName, SpaceName};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What can be waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HintKey {
    /// Something to do on this partition: records were appended or delayed, a dead letter became
    /// due again, or the partition was deleted.
    Log(Partition),
    /// Entries were added to the stream of others with this key.
    Stream(String),
    /// A lease of a group on this partition changed hands.
    GroupLeases(Partition),
    /// A lease of this pool changed hands.
    Pool(PoolName),
    /// Something on this claim shard can be granted or was taken away, or its members changed.
    ClaimShard(ClaimShard),
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
    /// A hint fed by a counter. With `poll`, it also fires after that long without a change.
    pub fn new(changes: watch::Receiver<u64>, poll: Option<Duration>) -> Self {
        Self { changes, poll, before_wait: None }
    }

    /// Calls `arm` each time a caller begins to wait, for engines that must be told so.
    #[must_use]
    pub fn with_arm(mut self, arm: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_wait = Some(Arc::new(arm));
        self
    }

    /// Waits for the next change. Changes between two calls are not lost: the second call returns
    /// at once.
    pub async fn wait(&mut self) {
        let poll = self.poll;
        within(poll, self.changed()).await;
    }

    /// As [`wait`](Self::wait), without the poll.
    async fn changed(&mut self) {
        if let Some(arm) = self.before_wait.as_ref().filter(|_| !self.changes.has_changed().unwrap_or(false))
        {
            arm();
        }
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Many hints as one: fires when any of them does, or when the shortest poll interval is over.
///
/// Hints that did not fire stay registered between two waits, so a wait costs as much as changed,
/// and not as much as there are hints.
#[derive(Default)]
pub struct HintSet {
    waits: FuturesUnordered<Pin<Box<dyn Future<Output = Hint> + Send>>>,
    poll: Option<Duration>,
}

impl HintSet {
    /// Waits for the next change of any. All changes before the end of a call count as one.
    pub async fn wait(&mut self) {
        let poll = self.poll;
        within(poll, async {
            let Some(first) = self.waits.next().await else {
                return std::future::pending().await;
            };
            let mut fired = vec![first];
            while let Some(Some(also)) = self.waits.next().now_or_never() {
                fired.push(also);
            }
            fired.into_iter().for_each(|hint| self.listen(hint));
        })
        .await;
    }

    fn listen(&self, mut hint: Hint) {
        self.waits.push(Box::pin(async move {
            hint.changed().await;
            hint
        }));
    }
}

impl Extend<Hint> for HintSet {
    fn extend<T: IntoIterator<Item = Hint>>(&mut self, hints: T) {
        for hint in hints {
            self.poll = self.poll.into_iter().chain(hint.poll).min();
            self.listen(hint);
        }
    }
}

impl FromIterator<Hint> for HintSet {
    fn from_iter<T: IntoIterator<Item = Hint>>(hints: T) -> Self {
        let mut set = Self::default();
        set.extend(hints);
        set
    }
}

/// Waits for `changed`, but no longer than the poll interval.
async fn within(poll: Option<Duration>, changed: impl Future<Output = ()>) {
    match poll {
        None => changed.await,
        Some(poll) => {
            let _ = tokio::time::timeout(poll, changed).await;
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
    hints: HintSet,
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

    /// The leases, as soon as one of them changed hands, ended or ran out since the last call; the
    /// first call answers at once. Renewals are no change.
    pub async fn changed(&mut self) -> Result<Vec<LeaseInfo>> {
        loop {
            let now = self.engine.leases(&self.query).await?;
            if self.seen.as_ref().is_none_or(|seen| !same_holders(seen, &now)) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
            let next_expiry = now.iter().filter(|lease| lease.is_held()).map(|lease| lease.remaining).min();
            tokio::select! {
                () = self.hints.wait() => {}
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

    /// All entries, as soon as one was put or removed since the last call; the first call answers
    /// at once.
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

async fn sleep_for(duration: Option<Duration>) {
    match duration {
        // One tick more: the engine counts in milliseconds and rounds a deadline up.
        Some(duration) => tokio::time::sleep(duration + Duration::from_millis(1)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Hints that count how often they are armed.
    fn counted(count: usize, arms: &Arc<AtomicUsize>) -> (Vec<watch::Sender<u64>>, HintSet) {
        let changes: Vec<_> = (0..count).map(|_| watch::Sender::new(0)).collect();
        let hints = changes.iter().map(|sender| {
            let arms = arms.clone();
            Hint::new(sender.subscribe(), None).with_arm(move || {
                arms.fetch_add(1, Ordering::Relaxed);
            })
        });
        let set = hints.collect();
        (changes, set)
    }

    #[tokio::test(start_paused = true)]
    async fn q18_a_wait_arms_what_fired_and_not_the_whole_set() {
        let arms = Arc::new(AtomicUsize::new(0));
        let (changes, mut set) = counted(4096, &arms);
        assert!(set.wait().now_or_never().is_none());
        assert_eq!(arms.load(Ordering::Relaxed), 4096);
        for index in [7, 4000] {
            changes[index].send_modify(|version| *version += 1);
        }
        set.wait().await;
        // Both changes count as one.
        assert!(set.wait().now_or_never().is_none());
        assert_eq!(arms.load(Ordering::Relaxed), 4098);
        changes[7].send_modify(|version| *version += 1);
        set.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_between_two_waits_and_one_of_a_late_hint_are_not_lost() {
        let (changes, mut set) = counted(2, &Arc::default());
        assert!(set.wait().now_or_never().is_none());
        changes[1].send_modify(|version| *version += 1);
        set.wait().now_or_never().expect("it fired between the waits");
        let late = watch::Sender::new(0);
        set.extend([Hint::new(late.subscribe(), None)]);
        late.send_modify(|version| *version += 1);
        set.wait().now_or_never().expect("it fired before it was first waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_polls_as_often_as_its_most_impatient_hint() {
        let hint = |poll| Hint::new(watch::channel(0).1, Some(Duration::from_secs(poll)));
        let mut set: HintSet = [hint(5), hint(2), hint(9)].into_iter().collect();
        let start = tokio::time::Instant::now();
        set.wait().await;
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }
}
