//! A master that is cut off from its peers while clients still reach it, the fault that loses
//! acknowledged writes elsewhere: what was acknowledged as replicated survives, and an owner that
//! slept through the takeover is fenced.

use super::cluster::slot_of_partition;
use super::{append_one, block_on, until_ok};
use firth_engine::facet::{Acquire, LeaseQuery, StartPosition};
use firth_engine::{Commit, Engine, Error, ErrorKind, Hold, LeaseName, Partition, RecordId, Result};
use firth_laws::world::{self, LONG, Owner, group, holder, number, read_all, unmade_partition};
use firth_testkit::{Flavor, Isolation, RedisCluster, in_own_network, wait};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn a_cut_off_redis_master_loses_nothing_replicated_and_fences_its_owner() {
    if in_own_network("redis::cut_off::a_cut_off_redis_master_loses_nothing_replicated_and_fences_its_owner")
    {
        block_on(cut_off(Flavor::Redis));
    }
}

#[test]
fn a_cut_off_valkey_master_loses_nothing_replicated_and_fences_its_owner() {
    if in_own_network("redis::cut_off::a_cut_off_valkey_master_loses_nothing_replicated_and_fences_its_owner")
    {
        block_on(cut_off(Flavor::Valkey));
    }
}

/// Appends numbers from `first` on until it is told to stop, one by one, and keeps those that were
/// acknowledged.
struct Writer {
    acknowledged: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<BTreeSet<u64>>,
}

impl Writer {
    fn start(engine: &Engine, at: &Partition, first: u64) -> Self {
        let acknowledged = Arc::<AtomicUsize>::default();
        let stop = Arc::<AtomicBool>::default();
        let engine = engine.clone();
        let at = at.clone();
        let count = acknowledged.clone();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut kept = BTreeSet::new();
            let mut next = first;
            while !stopped.load(Ordering::Relaxed) {
                if append_one(&engine, &at, next).await.is_ok() {
                    kept.insert(next);
                    count.store(kept.len(), Ordering::Relaxed);
                } else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                next += 1;
            }
            kept
        });
        Self { acknowledged, stop, task }
    }

    /// Waits until this many more are acknowledged.
    async fn goes_on(&self, more: usize) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        let count = || self.acknowledged.load(Ordering::Relaxed);
        wait::until(wait::PATIENCE, "appends are acknowledged", async || count() >= before + more).await;
    }

    async fn end(self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// Takes the lease of the group over from an owner that stands still.
async fn take_over(engine: &Engine, at: &Partition) -> Result<Hold> {
    let name = LeaseName::group(at, &group("g"));
    let seen = engine.leases(&LeaseQuery::Names(vec![name.clone()])).await?;
    let stalled = seen.first().map(|lease| (lease.epoch, lease.beats));
    let granted = engine.acquire(Acquire { stalled, ..Acquire::new(name, holder(), LONG) }).await?.granted();
    granted.ok_or_else(|| Error::new(ErrorKind::Unavailable, "an earlier try got it; it stands still too"))
}

async fn cut_off(flavor: Flavor) {
    let cluster =
        RedisCluster::builder().flavor(flavor).replicas_per_master(2).node_timeout(1000).start().await;
    let open = async |durability: &str| {
        Engine::at(&format!("{}?durability={durability}", cluster.url())).await.unwrap()
    };
    let engine = open("replicated").await;
    let hasty = open("fast").await;
    let at = unmade_partition();
    until_ok("the replicas are connected", || engine.create_partition(&at)).await;
    let master = cluster.master_of_slot(slot_of_partition(&cluster).await).await;
    let heirs = cluster.replicas_of(master).await;
    // It owns the group, and sleeps from now on.
    let zombie = Owner::new(&engine, &at, &group("g")).await;

    let safe = Writer::start(&engine, &at, 0);
    let unsafe_ = Writer::start(&hasty, &at, 1_000_000);
    safe.goes_on(50).await;
    let isolation = Isolation::of(&cluster.node(master));
    wait::until(wait::PATIENCE, "a replica is promoted", async || {
        for heir in &heirs {
            if cluster.node(*heir).is_master().await {
                return true;
            }
        }
        false
    })
    .await;
    // The other side of the rift goes on: appends are acknowledged there, and a rival takes over.
    safe.goes_on(50).await;
    let rival = until_ok("a rival takes over on the promoted side", || take_over(&engine, &at)).await;
    assert!(rival.epoch > zombie.hold.epoch);
    assert!(zombie.send(Commit::up_to(RecordId::MAX)).await.is_err(), "whichever side it reaches");
    drop(isolation);
    wait::until(wait::PATIENCE, "the old master follows", async || !cluster.node(master).is_master().await)
        .await;
    safe.goes_on(50).await;

    let kept = safe.end().await;
    let hasty_kept = unsafe_.end().await;
    until_ok("the log can be read", || engine.bounds(&at)).await;
    let found: BTreeSet<u64> = read_all(&engine, &at).await.iter().map(number).collect();
    let lost: Vec<_> = kept.difference(&found).collect();
    println!(
        "{flavor}: of {} replicated appends {} are lost, of {} fast ones {}",
        kept.len(),
        lost.len(),
        hasty_kept.len(),
        hasty_kept.difference(&found).count()
    );
    assert!(lost.is_empty(), "acknowledged as replicated and lost: {lost:?}");
    assert!(hasty_kept.difference(&found).next().is_some(), "the rift lost nothing at all: it was none");

    world::fails(zombie.send(Commit::up_to(RecordId::MAX)).await, ErrorKind::Fenced);
    world::fails(engine.open(&at, &group("g"), StartPosition::Start, &zombie.hold).await, ErrorKind::Fenced);
    let holds = [zombie.hold.clone(), rival.clone()];
    assert_eq!(engine.renew(&holds, LONG).await.unwrap(), [false, true]);
    let mut rival = Owner::with(&engine, &at, &group("g"), rival).await;
    let seen: BTreeSet<u64> = rival.drain().await.into_iter().collect();
    assert!(kept.is_subset(&seen), "every acknowledged record is delivered");
    for engine in [engine, hasty] {
        engine.close().await.unwrap();
    }
}
