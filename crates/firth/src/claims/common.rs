//! [`WorkerCommon`]: what all shards of one worker share: its settings, its events, and how much it
//! has and should have.

use super::config::WorkerConfig;
use super::events::NoticeQueue;
use super::meter::WorkerMeter;
use super::plan;
use crate::broker::Broker;
use crate::renewals::Renewals;
use firth_engine::facet::ClaimShardStatus;
use firth_engine::{Engine, Epoch, MemberName, ServiceName};
use std::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

pub(crate) struct WorkerCommon {
    pub(crate) engine: Engine,
    pub(crate) renewals: Renewals,
    pub(crate) service: ServiceName,
    pub(crate) id: MemberName,
    pub(crate) config: WorkerConfig,
    pub(crate) meter: WorkerMeter,
    pub(crate) queue: NoticeQueue,
    /// Cancelled when the worker shall hand over and end.
    pub(crate) closing: CancellationToken,
    counts: Mutex<ClaimCounts>,
}

/// How much there is, and how much of it is here.
#[derive(Default)]
struct ClaimCounts {
    /// What the last beat on each shard said; `None` before the first.
    claim_shards: Vec<Option<OfferCounts>>,
    held: u64,
    /// Asked for and not granted yet.
    reserved: u64,
    /// Recalled and not given back yet.
    recalled: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfferCounts {
    pub(crate) offers: u64,
    pub(crate) free: u64,
    pub(crate) orphaned: u64,
}

impl WorkerCommon {
    pub(crate) fn new(
        broker: &Broker,
        service: ServiceName,
        id: MemberName,
        config: WorkerConfig,
        shards: usize,
    ) -> Self {
        let counts = ClaimCounts { claim_shards: vec![None; shards], ..ClaimCounts::default() };
        Self {
            meter: WorkerMeter::new(&service),
            queue: NoticeQueue::new(config.buffer),
            closing: CancellationToken::new(),
            counts: Mutex::new(counts),
            engine: broker.engine().clone(),
            renewals: broker.renewals().clone(),
            service,
            id,
            config,
        }
    }

    fn counts(&self) -> MutexGuard<'_, ClaimCounts> {
        self.counts.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn held(&self) -> u64 {
        self.counts().held
    }

    /// A claim came or went.
    pub(crate) fn count(&self, change: i64) {
        let mut counts = self.counts();
        counts.held = counts.held.saturating_add_signed(change);
        self.meter.held.set(counts.held as f64);
    }

    /// A recalled claim came or went.
    pub(crate) fn count_recalled(&self, change: i64) {
        let mut counts = self.counts();
        counts.recalled = counts.recalled.saturating_add_signed(change);
    }

    /// Notes how a claim shard stands.
    pub(crate) fn note(&self, shard: usize, status: &ClaimShardStatus) {
        let offer_counts =
            OfferCounts { offers: status.offers, free: status.free, orphaned: status.orphaned };
        self.counts().claim_shards[shard] = Some(offer_counts);
        self.meter.waiting.set(self.queue.len() as f64);
    }

    /// All claim shards together, as last reported.
    pub(crate) fn offer_counts(&self) -> OfferCounts {
        let mut sum = OfferCounts::default();
        for claim_shard in self.counts().claim_shards.iter().flatten() {
            sum.offers += claim_shard.offers;
            sum.free += claim_shard.free;
            sum.orphaned += claim_shard.orphaned;
        }
        sum
    }

    /// How many claims to ask for now, at most `most`; they count as reserved until
    /// [`granted`](Self::granted).
    pub(crate) fn reserve(&self, memberships: &[(Epoch, u64)], me: Epoch, most: usize) -> usize {
        let room = self.queue.room();
        let mut counts = self.counts();
        let total = counts.claim_shards.iter().flatten().map(|claim_shard| claim_shard.offers).sum();
        let quota = plan::quota(total, memberships, me);
        let missing = quota.saturating_sub(counts.held + counts.reserved);
        let wanted = usize::try_from(missing).unwrap_or(usize::MAX).min(most).min(room);
        counts.reserved += wanted as u64;
        wanted
    }

    /// What was reserved has been answered.
    pub(crate) fn granted(&self, reserved: usize) {
        let mut counts = self.counts();
        counts.reserved = counts.reserved.saturating_sub(reserved as u64);
    }

    /// How many of `available` claims to recall, so that others get their share; they count as
    /// recalled from now on. Nothing before all claim shards are known.
    pub(crate) fn surplus(&self, memberships: &[(Epoch, u64)], me: Epoch, available: usize) -> usize {
        let mut counts = self.counts();
        if !self.config.automatic || counts.claim_shards.iter().any(Option::is_none) {
            return 0;
        }
        let total = counts.claim_shards.iter().flatten().map(|claim_shard| claim_shard.offers).sum();
        let quota = plan::quota(total, memberships, me);
        let mine = counts.held.saturating_sub(counts.recalled);
        if mine <= quota + plan::slack(quota) {
            return 0;
        }
        let recalled = usize::try_from(mine - quota).unwrap_or(usize::MAX).min(available);
        counts.recalled += recalled as u64;
        recalled
    }
}
