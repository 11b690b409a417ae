//! Parses CLUSTER SLOTS, CLUSTER SHARDS and CLUSTER INFO. Pure.

use super::topology::{ClusterShard, Topology};
use crate::config::{Address, AddressMap, Config, Server};
use crate::resp::Value;
use std::ops::RangeInclusive;

/// How announced addresses become those that this client can reach.
pub(crate) struct TopologyReader<'a> {
    /// The node that was asked: its host counts where a node does not know its own.
    pub(crate) asked: &'a Address,
    /// Whether the address of that node was given by the user, and so was not translated.
    pub(crate) seed: bool,
    /// The user's translation.
    pub(crate) map: Option<&'a AddressMap>,
    /// Whether the TLS port is wanted where both are told.
    pub(crate) tls: bool,
}

/// A node's own view of the cluster, from CLUSTER INFO: how far to trust it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeView {
    /// Whether the node sees a majority and every slot served.
    pub(crate) ok: bool,
    /// Newest configuration epoch that the node knows.
    pub(crate) epoch: u64,
}

impl<'a> TopologyReader<'a> {
    /// Reader for the replies of a node at this address.
    pub(crate) fn of(config: &'a Config, asked: &'a Address) -> Self {
        let seed = matches!(&config.server, Server::Cluster(seeds) if seeds.contains(asked));
        Self { asked, seed, map: config.cluster.address_map.as_ref(), tls: config.tls.is_some() }
    }
}

impl TopologyReader<'_> {
    /// The reachable address of an announced one. An empty host is that of the node that was asked;
    /// if it was translated already, only the port is translated.
    pub(crate) fn address(&self, host: &str, port: u16) -> Address {
        let announced = Address::new(if host.is_empty() { &self.asked.host } else { host }, port);
        match self.map.map(|map| map.apply(&announced)) {
            None => announced,
            Some(reachable) if host.is_empty() && !self.seed => Address { port: reachable.port, ..announced },
            Some(reachable) => reachable,
        }
    }

    /// CLUSTER SLOTS: `[[first, last, master, replica…]…]`. `None` if it does not have this form.
    pub(crate) fn slots(&self, reply: Value<'_>) -> Option<Topology> {
        let mut ranges = Vec::with_capacity(reply.len());
        for entry in reply {
            let mut parts = entry.iter();
            let slots = range(parts.next()?, parts.next()?)?;
            let Some(master) = self.slots_node(parts.next()?) else { continue };
            let replicas = parts.filter_map(|node| self.slots_node(node)).collect();
            ranges.push((slots, ClusterShard { master, replicas }));
        }
        is_list(reply).then(|| Topology::from_ranges(ranges))
    }

    /// `[endpoint, port, id, metadata]`. A node without a usable endpoint is left out.
    fn slots_node(&self, node: Value<'_>) -> Option<Address> {
        let mut parts = node.iter();
        let endpoint = parts.next()?;
        let port = port(parts.next()?)?;
        let metadata = parts.nth(1);
        // A null endpoint means "where you reached me", as an empty one does.
        let host = if endpoint.is_null() { "" } else { endpoint.as_str()? };
        if host != "?" {
            return Some(self.address(host, port));
        }
        let ip = metadata.and_then(Value::pairs)?.find(|(name, _)| name.as_str() == Some("ip"))?.1;
        Some(self.address(ip.as_str().filter(|ip| !ip.is_empty())?, port))
    }

    /// CLUSTER SHARDS: `[{slots: [first, last…], nodes: [{…}…]}…]`. `None` if it does not have this
    /// form.
    pub(crate) fn shards(&self, reply: Value<'_>) -> Option<Topology> {
        let mut ranges = Vec::new();
        for entry in reply {
            let mut slots = Vec::new();
            let mut shard = None;
            for (name, value) in entry.pairs()? {
                match name.as_str()? {
                    "slots" => slots = value.iter().collect(),
                    "nodes" => shard = Some(self.shard(value)?),
                    _ => {}
                }
            }
            let Some((Some(master), replicas)) = shard else { continue };
            for pair in slots.chunks_exact(2) {
                let shard = ClusterShard { master: master.clone(), replicas: replicas.clone() };
                ranges.push((range(pair[0], pair[1])?, shard));
            }
        }
        is_list(reply).then(|| Topology::from_ranges(ranges))
    }

    fn shard(&self, nodes: Value<'_>) -> Option<(Option<Address>, Vec<Address>)> {
        let mut master = None;
        let mut replicas = Vec::new();
        for entry in nodes {
            let mut node = ShardNode::default();
            for (name, value) in entry.pairs()? {
                node.note(name.as_str()?, value);
            }
            match (node.role, node.address(self)) {
                ("master", address) => master = master.or(address),
                (_, Some(address)) if node.health == "online" => replicas.push(address),
                _ => {}
            }
        }
        Some((master, replicas))
    }
}

/// One node of CLUSTER SHARDS.
#[derive(Default)]
struct ShardNode<'a> {
    endpoint: Option<&'a str>,
    ip: &'a str,
    role: &'a str,
    health: &'a str,
    port: Option<u16>,
    tls_port: Option<u16>,
}

impl<'a> ShardNode<'a> {
    fn note(&mut self, name: &str, value: Value<'a>) {
        match name {
            "endpoint" => self.endpoint = value.as_str(),
            "ip" => self.ip = value.as_str().unwrap_or_default(),
            "role" => self.role = value.as_str().unwrap_or_default(),
            "health" => self.health = value.as_str().unwrap_or_default(),
            "port" => self.port = port(value),
            "tls-port" => self.tls_port = port(value),
            _ => {}
        }
    }

    fn address(&self, reader: &TopologyReader<'_>) -> Option<Address> {
        let port = if reader.tls { self.tls_port.or(self.port) } else { self.port.or(self.tls_port) }?;
        match self.endpoint {
            Some("?") if self.ip.is_empty() => None,
            Some("?") => Some(reader.address(self.ip, port)),
            other => Some(reader.address(other.unwrap_or_default(), port)),
        }
    }
}

/// CLUSTER INFO: `name:value` lines.
pub(crate) fn node_view(info: &str) -> Option<NodeView> {
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    Some(NodeView {
        ok: field("cluster_state")? == "ok",
        epoch: field("cluster_current_epoch")?.parse().ok()?,
    })
}

/// `host:port` of a redirection; the host may be empty, and an IPv6 host has colons of its own.
pub(crate) fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok()?))
}

fn is_list(reply: Value<'_>) -> bool {
    reply.kind().is_aggregate()
}

fn range(first: Value<'_>, last: Value<'_>) -> Option<RangeInclusive<u16>> {
    let slot = |value: Value<'_>| value.as_i64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n < 16_384);
    let first = slot(first)?;
    let last = slot(last)?;
    (first <= last).then_some(first..=last)
}

fn port(value: Value<'_>) -> Option<u16> {
    value.as_i64().and_then(|n| u16::try_from(n).ok()).filter(|port| *port != 0)
}

#[cfg(test)]
mod tests;
