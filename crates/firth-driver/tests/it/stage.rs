//! What a run stands on, and how its servers are broken: a server alone, a master under sentinels,
//! a cluster, `firth serve` over HTTP, or a given engine, whose servers are left alone.
//!
//! A blow is over when the servers are whole again, so that the next one never meets a half-mended
//! set: promises hold against one failure at a time.

use crate::served::Server;
use firth_testkit::{Flavor, Persist, RedisCluster, RedisServer, SentinelSet};

pub(crate) enum Stage {
    /// Syncs before it answers; comes back with everything.
    Alone(RedisServer),
    /// One master and one replica under three sentinels, nothing on disk: acknowledged records
    /// live in the replica.
    Watched(SentinelSet),
    /// Three masters with a replica each, nothing on disk.
    Cluster(RedisCluster),
    /// On files, syncs before it answers.
    Served(Server),
    /// A URL.
    Given(String),
}

impl Stage {
    pub(crate) async fn alone(flavor: Flavor) -> Self {
        Self::Alone(RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await)
    }

    pub(crate) fn served() -> Self {
        Self::Served(Server::start())
    }

    pub(crate) async fn watched() -> Self {
        Self::Watched(SentinelSet::start(Flavor::Redis, 1, 3).await)
    }

    pub(crate) async fn cluster() -> Self {
        Self::Cluster(RedisCluster::start(Flavor::Redis).await)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Alone(server) => server.url(),
            Self::Watched(set) => set.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Served(server) => server.url(),
            Self::Given(url) => url.clone(),
        }
    }

    /// How the driver is told where to go.
    pub(crate) fn option(&self) -> &'static str {
        if self.is_served() { "--server" } else { "--engine" }
    }

    /// Whether consumers are clients of one server, which owns their partitions.
    pub(crate) fn is_served(&self) -> bool {
        matches!(self, Self::Served(_))
    }

    /// What an acknowledgement must mean, so that no blow can take it back; `None`: what the URL
    /// says.
    pub(crate) fn durability(&self) -> Option<&'static str> {
        match self {
            Self::Alone(_) => Some("synced"),
            Self::Watched(_) | Self::Cluster(_) => Some("replicated"),
            Self::Served(_) | Self::Given(_) => None,
        }
    }

    pub(crate) fn can_be_struck(&self) -> bool {
        !matches!(self, Self::Given(_))
    }

    /// `kill -9` of a server that matters, and its return.
    pub(crate) async fn strike(&self, dice: &mut fastrand::Rng) {
        match self {
            Self::Alone(server) => server.restart().await,
            Self::Watched(set) => {
                // On a starved machine the sentinels may have changed the master on their own.
                set.wait_in_step().await;
                let master = set.master().await;
                let replica = set.data_nodes().iter().find(|node| node.port() != master.port());
                let victim = if dice.u8(..4) == 0 { replica.expect("there are two nodes") } else { master };
                let was_master = victim.port() == master.port();
                victim.kill().await;
                let master = if was_master { set.wait_new_master(victim).await } else { master };
                victim.restart_as_replica_of(master).await;
                set.settle().await;
                set.wait_in_step().await;
            }
            Self::Cluster(cluster) => {
                let masters = cluster.masters().await;
                let victim = masters[dice.usize(..masters.len())];
                cluster.kill(victim).await;
                cluster.wait_promoted(victim).await;
                cluster.restart(victim).await;
                cluster.settle().await;
            }
            Self::Served(server) => server.restart(),
            Self::Given(_) => {}
        }
    }
}
