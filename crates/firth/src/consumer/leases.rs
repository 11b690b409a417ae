//! Leases in hand, and the task that renews them.
//!
//! Renewal depends on nothing else: not on handlers, lanes, the coordinator or the user's runtime
//! (`renewals.rs`). A lease counts as valid only until its own deadline on the monotonic clock,
//! measured from before the renewal was sent. A lane checks it before it hands out a record, and a
//! delivery before it starts.

use crate::renewals::Vital;
use firth_engine::{Engine, Epoch, Hold, LeaseName, valid_for};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The longest pause after a renewal that failed: lanes whose leases ran out wait for the next one.
const SOON: Duration = Duration::from_millis(250);

/// One lease in hand.
pub(crate) struct HeldLease {
    pub(crate) hold: Hold,
    valid_until: watch::Sender<Instant>,
    /// Cancelled when another consumer has the lease.
    pub(crate) lost: CancellationToken,
}

impl HeldLease {
    /// A hold whose request was sent at `asked`.
    pub(crate) fn new(hold: Hold, asked: Instant, ttl: Duration) -> Arc<Self> {
        let valid_until = watch::Sender::new(asked + valid_for(ttl));
        Arc::new(Self { hold, valid_until, lost: CancellationToken::new() })
    }

    /// Whether no other consumer can have taken over yet.
    pub(crate) fn is_valid(&self) -> bool {
        self.is_valid_at(Instant::now())
    }

    /// As [`is_valid`](Self::is_valid), with the time given.
    pub(crate) fn is_valid_at(&self, now: Instant) -> bool {
        !self.lost.is_cancelled() && now < *self.valid_until.borrow()
    }

    /// Fires with each renewal.
    pub(crate) fn renewals(&self) -> watch::Receiver<Instant> {
        self.valid_until.subscribe()
    }
}

/// All leases of one consumer.
#[derive(Clone)]
pub(crate) struct LeaseRenewer {
    ttl: Duration,
    table: Arc<Mutex<Vec<Arc<HeldLease>>>>,
}

impl LeaseRenewer {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, table: Arc::default() }
    }

    pub(crate) fn add(&self, held: Arc<HeldLease>) {
        self.lock().push(held);
    }

    pub(crate) fn remove(&self, held: &Arc<HeldLease>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, held));
    }

    /// The proof of owning a partition.
    pub(crate) fn of(&self, partition: u32) -> Option<Hold> {
        let is_it = |held: &&Arc<HeldLease>| matches!(&held.hold.lease, LeaseName::Group { at, .. } if at.index == partition);
        self.lock().iter().rfind(is_it).map(|held| held.hold.clone())
    }

    /// The partitions whose leases no other consumer can have taken yet.
    pub(crate) fn certain(&self) -> BTreeMap<u32, Epoch> {
        let partition = |held: &Arc<HeldLease>| match &held.hold.lease {
            LeaseName::Group { at, .. } if held.is_valid() => Some((at.index, held.hold.epoch)),
            _ => None,
        };
        self.lock().iter().filter_map(partition).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<HeldLease>>> {
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
            let held: Vec<Arc<HeldLease>> = self.lock().clone();
            let done = held.is_empty() || self.renew(&engine, &held).await;
            pause = if done { self.ttl / 3 } else { (self.ttl / 10).min(SOON) };
        }
    }

    async fn renew(&self, engine: &Engine, held: &[Arc<HeldLease>]) -> bool {
        let holds: Vec<Hold> = held.iter().map(|held| held.hold.clone()).collect();
        let asked = Instant::now();
        match tokio::time::timeout(self.ttl, engine.renew(&holds, self.ttl)).await {
            Ok(Ok(renewed)) => {
                for (held, is_ours) in held.iter().zip(renewed) {
                    if is_ours {
                        held.valid_until.send_replace(asked + valid_for(self.ttl));
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
