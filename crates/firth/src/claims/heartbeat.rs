//! The heartbeat task: one per membership. It depends on nothing else: not on grants, not on
//! readers, not on user code nor its runtime (`renewals.rs`).

use super::shard::Shard;
use super::unit::ShardSession;
use crate::error::ErrorKind;
use crate::renewals::{Renewing, Vital};
use firth_engine::Engine;
use firth_engine::facet::{Beat, ClaimShardStatus};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Shortest time between two heartbeats.
const GAP: Duration = Duration::from_millis(4);

/// Reply to a heartbeat, with the number of claims that the worker believed to have.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatReply {
    pub(crate) status: ClaimShardStatus,
    /// How many claims the table held; `None` if it changed since.
    pub(crate) believed: Option<u64>,
}

/// A running heartbeat task; dropping it stops it.
pub(crate) struct HeartbeatTask {
    pub(crate) task: Renewing,
    pub(crate) statuses: watch::Receiver<HeartbeatReply>,
    asked: Arc<Notify>,
}

impl HeartbeatTask {
    pub(crate) fn start(shard: Arc<Shard>, session: Arc<ShardSession>) -> Self {
        let (sender, statuses) = watch::channel(HeartbeatReply::default());
        let asked = Arc::new(Notify::new());
        let renewals = shard.common.renewals.clone();
        let task =
            renewals.spawn(|engine, vital| beat((engine, vital), shard, session, sender, asked.clone()));
        Self { task, statuses, asked }
    }

    /// Asks for a beat now.
    pub(crate) fn ask(&self) {
        self.asked.notify_one();
    }
}

/// Beats until the membership is over, by the engine's word or by our own clock.
async fn beat(
    (engine, vital): (Engine, Vital),
    shard: Arc<Shard>,
    session: Arc<ShardSession>,
    statuses: watch::Sender<HeartbeatReply>,
    asked: Arc<Notify>,
) {
    let common = shard.common.clone();
    let ttl = common.config.ttl;
    let mut roster = 0;
    loop {
        let begun = Instant::now();
        let before = steps(&shard);
        let request = Beat { ttl, capacity: common.config.capacity(), roster };
        if !vital.is_alive() {
            tracing::warn!(service = %common.service, "the worker's runtime hangs: its membership is not kept");
            return;
        }
        let answer =
            tokio::time::timeout_at(session.valid_until(), engine.beat(&session.membership, request)).await;
        let next = match answer {
            Ok(Ok(status)) => {
                session.extend(begun, ttl);
                roster = status.roster;
                common.meter.beats.increment(1);
                let believed = {
                    let is_still = before.1 == 0 && steps(&shard) == before;
                    is_still.then(|| shard.table().units.len() as u64)
                };
                tell(&statuses, HeartbeatReply { status, believed });
                begun + ttl / 3
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Fenced => {
                tracing::warn!(%error, service = %common.service, "the worker's membership is over");
                return;
            }
            Ok(Err(error)) => {
                common.meter.failed_beats.increment(1);
                tracing::warn!(%error, service = %common.service, "a beat failed; trying again soon");
                begun + ttl / 10
            }
            Err(_) => {
                common.meter.failed_beats.increment(1);
                begun
            }
        };
        if !session.is_valid() {
            tracing::warn!(service = %common.service, "no beat got through in time: all claims of the shard are lost");
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(next.min(session.valid_until())) => {}
            () = asked.notified() => tokio::time::sleep_until(begun + GAP).await,
        }
    }
}

/// The number of steps of ours so far, and of those under way.
fn steps(shard: &Shard) -> (u64, u32) {
    let table = shard.table();
    (table.changes, table.busy)
}

/// Passes a status on; the list of memberships stays until a newer one comes.
fn tell(statuses: &watch::Sender<HeartbeatReply>, mut reply: HeartbeatReply) {
    statuses.send_modify(|last| {
        if reply.status.memberships.is_none() {
            reply.status.memberships = last.status.memberships.take();
        }
        *last = std::mem::take(&mut reply);
    });
}
