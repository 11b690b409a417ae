//! What operators want of the sources: each source's [`DesiredState`], kept in the catalog of the
//! engine. Any process changes it there; the node that reads the source obeys.
//!
//! The catalog is the truth. A hint on the bus makes a change known at once, a slow round finds
//! what was missed.

mod desired;

pub use desired::{DesiredState, MAX_CONDITION, MAX_SNAPSHOTS, SnapshotRequest};

use bytes::Bytes;
use firth::catalog::{BusHandle, CatalogHandle, ChannelName, Entry, EntryKey, Expect, Put, SpaceName};
use firth::{Broker, Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// Where the desired states are.
const SPACE: &str = "sources.desired";
/// Where changes of them are told.
const CHANNEL: &str = "sources.desired";
/// How often a node looks for changes whose hint was lost.
const ROUND: Duration = Duration::from_secs(5);
/// Tries of a change that others disturb.
const TRIES: usize = 32;

/// The desired states of all sources of an engine; clones share it.
#[derive(Clone, Debug)]
pub struct DesiredStates {
    catalog: CatalogHandle,
    bus: BusHandle,
}

impl DesiredStates {
    /// Those of this broker's engine.
    pub fn new(broker: &Broker) -> Self {
        Self { catalog: broker.catalog(), bus: broker.bus() }
    }

    /// What is wanted of a source; the default before the first change.
    pub async fn of(&self, source: &str) -> Result<DesiredState> {
        let entry = self.catalog.get(&key(source)?).await?;
        entry.as_ref().map_or(Ok(DesiredState::default()), read)
    }

    /// What is wanted of each source for which anything was ever changed.
    pub async fn all(&self) -> Result<BTreeMap<String, DesiredState>> {
        let entries = self.catalog.list_all(&space(), "").await?;
        entries.into_iter().map(|entry| Ok((entry.name.clone(), read(&entry)?))).collect()
    }

    /// Changes what is wanted of a source, in one step. `change` is called again if another process
    /// was faster; what it refuses is not changed.
    pub async fn change<T>(
        &self,
        source: &str,
        mut change: impl FnMut(&mut DesiredState) -> Result<T>,
    ) -> Result<T> {
        let key = key(source)?;
        let mut entry = self.catalog.get(&key).await?;
        for _ in 0..TRIES {
            let before = entry.as_ref().map_or(Ok(DesiredState::default()), read)?;
            let mut desired = before.clone();
            let answer = change(&mut desired)?;
            if desired == before {
                return Ok(answer);
            }
            let expect = entry.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            match self.catalog.put(&key, desired.to_bytes(), expect).await? {
                Put::Done(_) => {
                    self.hint(source).await;
                    return Ok(answer);
                }
                Put::Conflict(there) => entry = there,
            }
        }
        let context = format!("others change what source {source} shall do all the time: try again");
        Err(Error::new(ErrorKind::Unavailable, context))
    }

    /// Lets the reader of a source rest, or work.
    pub async fn set_paused(&self, source: &str, paused: bool) -> Result<()> {
        let set = |desired: &mut DesiredState| {
            desired.paused = paused;
            Ok(())
        };
        self.change(source, set).await
    }

    /// Lets the reader of a source begin anew.
    pub async fn restart(&self, source: &str) -> Result<()> {
        let count = |desired: &mut DesiredState| {
            desired.restarts += 1;
            Ok(())
        };
        self.change(source, count).await
    }

    /// Lets a node that has the source take it down, or makes a removed one wanted again.
    pub async fn set_removed(&self, source: &str, removed: bool) -> Result<()> {
        let set = |desired: &mut DesiredState| {
            desired.removed = removed;
            Ok(())
        };
        self.change(source, set).await
    }

    /// Forgets what was wanted of a source.
    pub async fn forget(&self, source: &str) -> Result<()> {
        self.catalog.remove(&key(source)?, Expect::Any).await?;
        self.hint(source).await;
        Ok(())
    }

    /// Follows the sources of these names: reads their states now, and returns a handle for each
    /// and the task that keeps the handles up to date.
    pub async fn follow(
        &self,
        sources: Vec<String>,
    ) -> Result<(BTreeMap<String, SourceControl>, BoxFuture<'static, ()>)> {
        let known = self.all().await?;
        let mut senders = BTreeMap::new();
        let mut controls = BTreeMap::new();
        for source in sources {
            let (sender, state) = watch::channel(known.get(&source).cloned().unwrap_or_default());
            senders.insert(source.clone(), sender);
            let control = SourceControl { source: source.clone(), state, states: Some(self.clone()) };
            controls.insert(source, control);
        }
        Ok((controls, Box::pin(self.clone().keep_up(senders))))
    }

    async fn keep_up(self, senders: BTreeMap<String, watch::Sender<DesiredState>>) {
        let channel = channel();
        loop {
            if let Ok(mut listener) = self.bus.subscribe(&channel).await {
                loop {
                    self.refresh(&senders).await;
                    tokio::select! {
                        heard = listener.next() => if heard.is_err() { break },
                        () = tokio::time::sleep(ROUND) => {}
                    }
                }
            }
            tokio::time::sleep(ROUND).await;
            self.refresh(&senders).await;
        }
    }

    async fn refresh(&self, senders: &BTreeMap<String, watch::Sender<DesiredState>>) {
        match self.all().await {
            Ok(known) => {
                for (source, sender) in senders {
                    let desired = known.get(source).cloned().unwrap_or_default();
                    sender.send_if_modified(|shown| {
                        let is_new = *shown != desired;
                        *shown = desired;
                        is_new
                    });
                }
            }
            Err(error) => tracing::warn!(%error, "what operators want of the sources cannot be read now"),
        }
    }

    async fn hint(&self, source: &str) {
        if let Err(error) = self.bus.publish(&channel(), Bytes::copy_from_slice(source.as_bytes())).await {
            tracing::debug!(source, %error, "the nodes find the change in their next round");
        }
    }
}

/// What is wanted of one source, for its reader.
#[derive(Clone, Debug)]
pub struct SourceControl {
    source: String,
    state: watch::Receiver<DesiredState>,
    states: Option<DesiredStates>,
}

impl SourceControl {
    /// One that wants nothing, ever: for a reader without an engine's catalog.
    pub fn detached(source: &str) -> Self {
        let (_, state) = watch::channel(DesiredState::default());
        Self { source: source.to_owned(), state, states: None }
    }

    /// What is wanted now.
    pub fn desired(&self) -> DesiredState {
        self.state.borrow().clone()
    }

    /// Resolves once this holds; at once if it does already. Never resolves if nothing can change
    /// any more.
    pub async fn wait_for(&self, condition: impl FnMut(&DesiredState) -> bool) {
        if self.state.clone().wait_for(condition).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The oldest copy of a table that was asked for and is not done.
    pub fn next_snapshot(&self) -> Option<SnapshotRequest> {
        self.state.borrow().snapshots.first().cloned()
    }

    /// A copy that was asked for is done, or was given up: it is not asked for any more.
    pub async fn end_snapshot(&self, id: u64) -> Result<()> {
        let Some(states) = &self.states else { return Ok(()) };
        let end = |desired: &mut DesiredState| {
            desired.end_snapshot(id);
            Ok(())
        };
        states.change(&self.source, end).await
    }
}

fn space() -> SpaceName {
    SpaceName::new(SPACE).expect("a valid name")
}

fn channel() -> ChannelName {
    ChannelName::new(CHANNEL).expect("a valid name")
}

fn key(source: &str) -> Result<EntryKey> {
    EntryKey::new(space(), source)
}

fn read(entry: &Entry) -> Result<DesiredState> {
    DesiredState::from_bytes(&entry.value).map_err(|error| {
        let context = format!("what operators want of source {} is damaged", entry.name);
        Error::new(ErrorKind::Corrupt, context).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_side_by_side_are_all_kept() {
        let states = DesiredStates::new(&Broker::memory());
        let outcomes = futures_util::future::join_all((0..16).map(|_| states.restart("shop"))).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(states.of("shop").await.unwrap().restarts, 16);
        assert_eq!(states.of("other").await.unwrap(), DesiredState::default());
        states.forget("shop").await.unwrap();
        assert!(states.all().await.unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_reader_hears_of_a_change_that_another_process_makes() {
        let broker = Broker::memory();
        let states = DesiredStates::new(&broker);
        states.set_paused("shop", true).await.unwrap();
        let (controls, keep_up) = states.follow(vec!["shop".to_owned(), "crm".to_owned()]).await.unwrap();
        let task = tokio::spawn(keep_up);
        assert!(controls["shop"].desired().paused && !controls["crm"].desired().paused);
        DesiredStates::new(&broker).set_paused("shop", false).await.unwrap();
        controls["shop"].wait_for(|desired| !desired.paused).await;
        let id = states.change("crm", |desired| desired.ask_snapshot(None, None)).await.unwrap();
        controls["crm"].wait_for(|desired| !desired.snapshots.is_empty()).await;
        assert_eq!(controls["crm"].next_snapshot().unwrap().id, id);
        controls["crm"].end_snapshot(id).await.unwrap();
        controls["crm"].wait_for(|desired| desired.snapshots.is_empty()).await;
        task.abort();
    }
}
