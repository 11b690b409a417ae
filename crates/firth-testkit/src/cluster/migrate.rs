//! Moving slots from one master to another while clients are at work.
//!
//! The classic way goes step by step ([`Migration`]), so that a test can stop in the middle, where
//! clients meet `ASK` and `TRYAGAIN`. Valkey 9 also moves whole ranges atomically.

use super::RedisCluster;
use super::node::ClusterNode;
use crate::resp::Reply;
use crate::server::conf::{CONTROL_PASSWORD, CONTROL_USER};
use crate::wait::{PATIENCE, Poll};
use std::ops::RangeInclusive;
use std::sync::Arc;

const BATCH: usize = 16;

impl RedisCluster {
    /// Moves one slot with its keys, a few at a time, and tells all masters.
    pub async fn migrate_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_migration(slot, from, to).await.finish().await;
    }

    /// Moves a range of slots, one after the other; empty ones too.
    pub async fn migrate_slots(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        for slot in slots {
            self.migrate_slot(slot, from, to).await;
        }
        self.settle().await;
    }

    /// Opens the move of one slot: from now on the source answers `ASK` for keys that it lacks.
    pub async fn begin_migration(&self, slot: u16, from: usize, to: usize) -> Migration<'_> {
        let source = self.node(from);
        let target = self.node(to);
        let migration = Migration { cluster: self, slot, source, target };
        migration.set_slot(&migration.target, &["IMPORTING", migration.source.id()]).await;
        migration.set_slot(&migration.source, &["MIGRATING", migration.target.id()]).await;
        migration
    }

    /// Moves a range of slots at once (`CLUSTER MIGRATESLOTS`, Valkey 9) and waits until all agree.
    ///
    /// # Panics
    /// If the servers are not Valkey, or the move fails.
    pub async fn migrate_atomic(&self, slots: RangeInclusive<u16>, from: usize, to: usize) {
        let source = self.node(from);
        let target = self.node(to);
        let first = slots.start().to_string();
        let last = slots.end().to_string();
        let order = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", target.id()];
        source.server.order(&order).await;
        let mut poll = Poll::new(PATIENCE);
        while self.master_of_slot(*slots.end()).await != to || self.master_of_slot(*slots.start()).await != to
        {
            let jobs = source.server.order(&["CLUSTER", "GETSLOTMIGRATIONS"]).await;
            assert!(!newest_failed(&jobs), "the migration failed: {jobs:?}");
            assert!(poll.again().await, "the migration does not end: {jobs:?}");
        }
        self.settle().await;
    }
}

/// A slot on its way; dropping it leaves the slot half moved, which is also worth a test.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    source: Arc<ClusterNode>,
    target: Arc<ClusterNode>,
}

impl Migration<'_> {
    /// Moves up to `count` of the keys that are still with the source; returns how many it moved.
    pub async fn move_keys(&self, count: usize) -> usize {
        let slot = self.slot.to_string();
        let count = count.to_string();
        let keys = self.source.server.order(&["CLUSTER", "GETKEYSINSLOT", &slot, &count]).await;
        let Reply::Array(keys) = keys else { panic!("GETKEYSINSLOT answers with a list, not {keys:?}") };
        if keys.is_empty() {
            return 0;
        }
        let port = self.target.server.port().to_string();
        let head = [
            "MIGRATE",
            "127.0.0.1",
            &port,
            "",
            "0",
            "10000",
            "AUTH2",
            CONTROL_USER,
            CONTROL_PASSWORD,
            "KEYS",
        ];
        let mut command: Vec<Vec<u8>> = head.iter().map(|word| word.as_bytes().to_vec()).collect();
        let moved = keys.len();
        command.extend(keys.into_iter().map(|key| match key {
            Reply::Bulk(bytes) => bytes,
            other => panic!("a key is a bulk string, not {other:?}"),
        }));
        self.source.server.order(&command).await;
        moved
    }

    /// Moves the remaining keys, then makes the target the owner on target, source and all others.
    pub async fn finish(self) {
        while self.move_keys(BATCH).await > 0 {}
        let owner = ["NODE", self.target.id()];
        self.set_slot(&self.target, &owner).await;
        self.set_slot(&self.source, &owner).await;
        for node in self.cluster.live_nodes() {
            if node.id() != self.target.id() && node.id() != self.source.id() && node.is_master().await {
                self.set_slot(&node, &owner).await;
            }
        }
    }

    /// Gives up: both sides forget the migration. Keys that have moved are lost to clients until
    /// moved back, so use it only before [`Migration::move_keys`].
    pub async fn cancel(self) {
        self.set_slot(&self.source, &["STABLE"]).await;
        self.set_slot(&self.target, &["STABLE"]).await;
    }

    async fn set_slot(&self, node: &ClusterNode, state: &[&str]) {
        let slot = self.slot.to_string();
        let command: Vec<&str> =
            ["CLUSTER", "SETSLOT", &slot].into_iter().chain(state.iter().copied()).collect();
        node.server.order(&command).await;
    }
}

/// Whether the newest job in the answer to `GETSLOTMIGRATIONS` has failed.
fn newest_failed(jobs: &Reply) -> bool {
    let Reply::Array(jobs) = jobs else { return false };
    let state = jobs.first().and_then(|job| job.field("state"));
    state.is_some_and(|state| matches!(state.text().as_str(), "failed" | "canceled" | "cancelled"))
}
