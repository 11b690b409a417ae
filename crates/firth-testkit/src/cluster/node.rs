//! One member of a cluster fixture.

use super::view::View;
use crate::ports::Port;
use crate::proxy::Proxy;
use crate::resp::Reply;
use crate::server::RedisServer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A server of a [`super::RedisCluster`], and the proxy in front of it if there is one.
#[derive(Debug)]
pub struct ClusterNode {
    pub(super) server: RedisServer,
    pub(super) id: String,
    /// Which nodes take over from each other: this number is theirs alone.
    pub(super) shard: usize,
    pub(super) proxy: Option<Proxy>,
    pub(super) bus: Port,
    pub(super) removed: AtomicBool,
}

impl ClusterNode {
    /// The server itself; commands to it bypass the proxy.
    pub fn server(&self) -> &RedisServer {
        &self.server
    }

    /// The node's id in the cluster.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where clients are told to find the node: the proxy if there is one.
    pub fn addr(&self) -> SocketAddr {
        self.proxy.as_ref().map_or_else(|| self.server.addr(), Proxy::addr)
    }

    /// The proxy in front of the node.
    ///
    /// # Panics
    /// If the cluster was not built with `announce_through_proxies`.
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the cluster announces its nodes through proxies")
    }

    /// Whether the node is a master right now, by its own word.
    pub async fn is_master(&self) -> bool {
        let role = self.server.try_command(&["ROLE"]).await;
        matches!(role, Ok(Reply::Array(fields)) if fields.first().is_some_and(|role| role.text() == "master"))
    }

    /// The port of the cluster bus.
    pub fn bus_port(&self) -> u16 {
        self.bus.number()
    }

    /// Whether [`super::RedisCluster::remove_node`] took the node out.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Whether the node belongs to the cluster and can answer.
    pub fn is_live(&self) -> bool {
        !self.is_removed() && self.server.is_live()
    }

    /// What the node believes; `None` if it does not answer or has not made up its mind.
    pub(super) async fn view(&self) -> Option<View> {
        let reply = self.server.try_command(&["CLUSTER", "NODES"]).await.ok()?;
        if reply.is_error() { None } else { View::parse(&reply.text()) }
    }

    /// Whether the node says that the cluster is whole.
    pub(super) async fn is_content(&self) -> bool {
        let reply = self.server.try_command(&["CLUSTER", "INFO"]).await;
        reply.is_ok_and(|reply| !reply.is_error() && reply.text().contains("cluster_state:ok"))
    }
}
