//! Leases in hand, and the task that renews them.
//!
//! Renewal depends on nothing else: not on handlers, not on lanes, not on the keeper, not on the user's
//! runtime (`renewals.rs`). A hold counts as valid only until its own deadline
//! on the monotonic clock, measured from before the renewal was sent; whoever hands out a record asks [`Held::is_valid`] first.

use crate::renewals::Vital;
use firth_engine::{Engine, Epoch, Hold, LeaseName};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The longest pause after a renewal that failed: lanes whose leases ran out wait for the next one.
const SOON: Duration = Duration::from_millis(250);

/// One lease in hand.
pub(crate) struct Held {
    pub(crate) hold: Hold,
    valid_until: watch::Sender<Instant>,
    /// Cancelled when somebody else has the lease.
    pub(crate) lost: CancellationToken,
}

impl Held {
    /// A hold whose request was sent at `asked`.
    pub(crate) fn new(hold: Hold, asked: Instant, ttl: Duration) -> Arc<Self> {
        let valid_until = watch::Sender::new(asked + ttl);
        Arc::new(Self { hold, valid_until, lost: CancellationToken::new() })
    }

    /// Whether nobody else can have taken over yet.
    pub(crate) fn is_valid(&self) -> bool {
        !self.lost.is_cancelled() && Instant::now() < *self.valid_until.borrow()
    }

    /// Fires with each renewal.
    pub(crate) fn renewals(&self) -> watch::Receiver<Instant> {
        self.valid_until.subscribe()
    }
}

/// All leases of one consumer.
#[derive(Clone)]
pub(crate) struct Holds {
    ttl: Duration,
    table: Arc<Mutex<Vec<Arc<Held>>>>,
}

impl Holds {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, table: Arc::default() }
    }

    pub(crate) fn add(&self, held: Arc<Held>) {
        self.lock().push(held);
    }

    pub(crate) fn remove(&self, held: &Arc<Held>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, held));
    }

    /// The proof of owning a partition.
    pub(crate) fn of(&self, partition: u32) -> Option<Hold> {
        let is_it = |held: &&Arc<Held>| matches!(&held.hold.lease, LeaseName::Group { at, .. } if at.index == partition);
        self.lock().iter().rfind(is_it).map(|held| held.hold.clone())
    }

    /// The partitions whose leases nobody else can have taken yet.
    pub(crate) fn certain(&self) -> BTreeMap<u32, Epoch> {
        let partition = |held: &Arc<Held>| match &held.hold.lease {
            LeaseName::Group { at, .. } if held.is_valid() => Some((at.index, held.hold.epoch)),
            _ => None,
        };
        self.lock().iter().filter_map(partition).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Held>>> {
        self.table.lock().expect("nothing panics under this lock")
    }

    /// Renews for ever; run it as a task of its own and abort it at the end.
    pub(crate) async fn keep_renewing(self, engine: Engine, vital: Vital) {
        let mut pause = self.ttl / 3;
        loop {
            tokio::time::sleep(pause).await;
            if !vital.is_alive() {
                tracing::warn!("this consumer's runtime hangs: its leases are not renewed");
                continue;
            }
            let held: Vec<Arc<Held>> = self.lock().clone();
            let done = held.is_empty() || self.renew(&engine, &held).await;
            pause = if done { self.ttl / 3 } else { (self.ttl / 10).min(SOON) };
        }
    }

    async fn renew(&self, engine: &Engine, held: &[Arc<Held>]) -> bool {
        let holds: Vec<Hold> = held.iter().map(|held| held.hold.clone()).collect();
        let asked = Instant::now();
        match tokio::time::timeout(self.ttl, engine.renew(&holds, self.ttl)).await {
            Ok(Ok(renewed)) => {
                for (held, is_ours) in held.iter().zip(renewed) {
                    if is_ours {
                        held.valid_until.send_replace(asked + self.ttl);
                    } else {
                        held.lost.cancel();
                        self.remove(held);
                    }
                }
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, leases = holds.len(), "leases could not be renewed; trying again soon");
                false
            }
            Err(_) => {
                tracing::warn!(leases = holds.len(), "no answer to a renewal of leases; trying again soon");
                false
            }
        }
    }
}
