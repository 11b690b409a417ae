//! Claims: owned work with instant failover.

mod defects;
mod failing;
mod failover;
mod granting;
mod handover;
mod operating;
mod processes;
mod unit_data;

use crate::world::soon;
use firth::Broker;
use firth::claims::{Claim, Claims, Event, Worker, WorkerHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("unit-{n:05}")).collect()
}

pub(super) async fn put_up(claims: &Claims, count: usize) {
    let units = names(count).into_iter().map(|name| (name.clone(), format!("for {name}")));
    assert_eq!(claims.offer_all(units).await.unwrap(), count);
}

/// The next event, which must come.
pub(super) async fn event(worker: &mut Worker) -> Event {
    soon("an event", worker.next()).await.expect("the worker goes on").unwrap()
}

/// The next `count` grants; other events are passed over.
pub(super) async fn grants(worker: &mut Worker, count: usize) -> Vec<Claim> {
    let mut claims = Vec::new();
    while claims.len() < count {
        if let Event::Granted(claim) = event(worker).await {
            claims.push(claim);
        }
    }
    claims
}

/// A worker that keeps what it gets and lets go what is recalled, until it is told to stop.
pub(super) struct Hand {
    pub(super) handle: WorkerHandle,
    pub(super) task: tokio::task::JoinHandle<()>,
}

impl Hand {
    pub(super) fn start(mut worker: Worker, log: Log) -> Self {
        let handle = worker.handle();
        let id = handle.id().to_owned();
        let task = tokio::spawn(async move {
            while let Some(Ok(event)) = worker.next().await {
                match event {
                    Event::Granted(claim) => log.note(&id, &claim),
                    Event::Recalled(claim) => drop(claim.release().await),
                    _ => {}
                }
            }
        });
        Self { handle, task }
    }

    /// Dies without a word.
    pub(super) fn kill(&self) {
        self.task.abort();
    }
}

/// Who was granted what, in order: (unit, epoch, worker).
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<(String, u64, String)>>>);

impl Log {
    pub(super) fn note(&self, worker: &str, claim: &Claim) {
        self.0.lock().unwrap().push((claim.name().to_owned(), claim.epoch().0, worker.to_owned()));
    }

    /// The newest owner of each unit.
    pub(super) fn owners(&self) -> BTreeMap<String, String> {
        let mut owners: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for (unit, epoch, worker) in self.0.lock().unwrap().iter() {
            let known = owners.entry(unit.clone()).or_default();
            if *epoch >= known.0 {
                *known = (*epoch, worker.clone());
            }
        }
        owners.into_iter().map(|(unit, (_, worker))| (unit, worker)).collect()
    }

    /// No epoch of a unit was ever given to two workers.
    pub(super) fn check(&self) {
        let mut seen: BTreeMap<(String, u64), String> = BTreeMap::new();
        for (unit, epoch, worker) in self.0.lock().unwrap().iter() {
            let known = seen.entry((unit.clone(), *epoch)).or_insert_with(|| worker.clone());
            assert_eq!(known, worker, "two owners of {unit} under epoch {epoch}");
        }
    }
}

/// Which units each worker has, as the engine sees it.
pub(super) async fn owned(claims: &Claims) -> BTreeMap<String, BTreeSet<String>> {
    use firth::claims::OfferOwner;
    let mut owned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for offer in claims.offers(None, 10_000).await.unwrap() {
        if let OfferOwner::Worker(id) = offer.owner {
            owned.entry(id).or_default().insert(offer.name);
        }
    }
    owned
}

pub(super) fn service() -> (Broker, Claims) {
    let broker = Broker::memory();
    let claims = broker.claims("calls");
    (broker, claims)
}

pub(super) const TTL: Duration = Duration::from_secs(5);
