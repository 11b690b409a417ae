//! Retention: one task per broker removes what topics no longer want. One broker at a time does the
//! work, by a lease.
//!
//! Records that some group has not settled stay unless the topic is lossy: the engine computes the
//! true floor in the same step. What failed is logged and tried again at the next tick; it holds up
//! nothing else.

use crate::error::Result;
use crate::metrics;
use crate::topic::{TopicInfo, Topics};
use firth_engine::facet::{Acquire, Trim};
use firth_engine::limits::MAX_TTL;
use firth_engine::{Engine, Hold, HolderName, LeaseName, MemberName, Partition, PoolName};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What one round of retention did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Records removed.
    pub records: u64,
    /// Partitions where unsettled records held retention back.
    pub held_back: u64,
    /// Dead letters removed.
    pub dead_letters: u64,
}

/// The running task; dropping it ends the task.
pub(crate) struct Housekeeping {
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Housekeeping {
    pub(crate) fn start(engine: Engine, every: Duration) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_house(engine, every, stop.clone()));
        Self { task, stop: stop.drop_guard() }
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        // A task that panicked has nothing left to stop.
        let _ = self.task.await;
    }
}

async fn keep_house(engine: Engine, every: Duration, stop: CancellationToken) {
    let mut hold = None;
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        if let Err(error) = tick(&engine, every, &mut hold).await {
            tracing::warn!(%error, "retention failed; trying again at the next tick");
        }
    }
    if let Some(hold) = hold {
        // The lease ends by itself if this fails.
        let _ = engine.release(&hold).await;
    }
}

async fn tick(engine: &Engine, every: Duration, hold: &mut Option<Hold>) -> Result<()> {
    let ttl = every.saturating_mul(3).min(MAX_TTL);
    let renewed = match &hold {
        Some(held) => engine.renew(std::slice::from_ref(held), ttl).await?.first() == Some(&true),
        None => false,
    };
    if !renewed {
        *hold = engine.acquire(request(ttl)).await?.granted();
    }
    if hold.is_some() {
        let swept = sweep(engine).await?;
        tracing::debug!(records = swept.records, held_back = swept.held_back, "retention done");
    }
    Ok(())
}

fn request(ttl: Duration) -> Acquire {
    let pool = PoolName::new("housekeeping").expect("a valid name");
    let name = MemberName::new("retention").expect("a valid name");
    let holder = HolderName::new(format!("broker-{:016x}", fastrand::u64(..))).expect("a valid name");
    Acquire::new(LeaseName::pool(&pool, &name), holder, ttl)
}

/// One round over all topics. A partition that cannot be swept holds up no other; the first error
/// is answered at the end.
pub(crate) async fn sweep(engine: &Engine) -> Result<Swept> {
    let mut swept = Swept::default();
    let mut failure = None;
    for topic in Topics::new(engine.clone()).list_each().await? {
        let topic = match topic {
            Ok(topic) => topic,
            Err(error) => {
                tracing::warn!(%error, "a topic was left out of this round of retention");
                failure.get_or_insert(error);
                continue;
            }
        };
        let before = swept;
        for at in topic.partitions() {
            if let Err(error) = sweep_partition(engine, &topic, &at, &mut swept).await {
                let error = error.during(format_args!("retention of {at}"));
                tracing::warn!(%error, "a partition was left out of this round of retention");
                failure.get_or_insert(error);
            }
        }
        let records = swept.records - before.records;
        let letters = swept.dead_letters - before.dead_letters;
        metrics::swept(&topic.name, records, letters, swept.held_back - before.held_back);
    }
    failure.map_or(Ok(swept), Err)
}

async fn sweep_partition(
    engine: &Engine,
    topic: &TopicInfo,
    at: &Partition,
    swept: &mut Swept,
) -> Result<()> {
    let mut held_back = false;
    for to in topic.config.retention.marks() {
        let done = engine.trim(at, Trim { to, lossy: topic.config.lossy }).await?;
        swept.records += done.removed;
        held_back |= done.held_back;
    }
    swept.held_back += u64::from(held_back);
    let Some(age) = topic.config.dead_letters_for else { return Ok(()) };
    for group in engine.groups(at).await? {
        loop {
            let gone = engine.expire_dead(at, &group, age).await?;
            swept.dead_letters += gone as u64;
            if gone == 0 {
                break;
            }
        }
    }
    Ok(())
}
