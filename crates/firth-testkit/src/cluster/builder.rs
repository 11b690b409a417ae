//! Chooses what a [`RedisCluster`] is like before it starts.

use super::RedisCluster;
use crate::bins::Flavor;
use crate::certs::Certs;
use crate::server::Persist;

/// Made by [`RedisCluster::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct ClusterBuilder {
    pub(super) flavor: Flavor,
    pub(super) masters: usize,
    pub(super) replicas_per_master: usize,
    pub(super) node_timeout_ms: u32,
    pub(super) proxies: bool,
    pub(super) password: Option<String>,
    pub(super) tls: Option<Certs>,
    pub(super) persist: Persist,
    pub(super) lines: Vec<String>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            flavor: Flavor::Redis,
            masters: 3,
            replicas_per_master: 1,
            node_timeout_ms: 1500,
            proxies: false,
            password: None,
            tls: None,
            persist: Persist::None,
            lines: Vec::new(),
        }
    }
}

impl ClusterBuilder {
    /// Which server to run; Redis unless told.
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// How many masters share the slots; three unless told.
    pub fn masters(mut self, masters: usize) -> Self {
        self.masters = masters;
        self
    }

    /// How many replicas each master has; one unless told.
    pub fn replicas_per_master(mut self, replicas: usize) -> Self {
        self.replicas_per_master = replicas;
        self
    }

    /// After how many milliseconds of silence a node counts as failed; 1500 unless told.
    pub fn node_timeout(mut self, milliseconds: u32) -> Self {
        self.node_timeout_ms = milliseconds;
        self
    }

    /// Puts a [`crate::Proxy`] before each node and lets the cluster announce the proxies'
    /// addresses, so that clients that follow redirections stay behind them. Replicas follow their
    /// master through its proxy too (servers announce one port for both); the cluster bus is never
    /// proxied.
    pub fn announce_through_proxies(mut self, through: bool) -> Self {
        self.proxies = through;
        self
    }

    /// Password of the default user on every node.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Lets clients and nodes speak TLS only, with these certificates.
    pub fn tls(mut self, certs: &Certs) -> Self {
        self.tls = Some(certs.clone());
        self
    }

    /// What nodes keep on disk; nothing unless told.
    pub fn persist(mut self, persist: Persist) -> Self {
        self.persist = persist;
        self
    }

    /// Adds a line to the configuration of every node.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Starts the nodes and forms the cluster; ready when all agree that it is whole.
    ///
    /// # Panics
    /// If it does not come about in time.
    pub async fn start(self) -> RedisCluster {
        RedisCluster::form(self).await
    }
}
