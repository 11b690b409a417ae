//! Reading what a node says of its cluster: CLUSTER SLOTS, CLUSTER SHARDS, CLUSTER INFO. Pure.

use std::ops::RangeInclusive;

use super::topology::{Shard, Topology};
use crate::{
    config::{Address, AddressMap, Config, Server},
    resp::Value,
};

/// How announced addresses become those that this client can reach.
pub(crate) struct Reader<'a> {
    /// The node that was asked: it stands in where a node does not know its own host.
    pub(crate) asked: &'a Address,
    /// Whether the address of that node was given by the user, and so was not translated.
    pub(crate) seed: bool,
    /// The user's translation.
    pub(crate) map: Option<&'a AddressMap>,
    /// Whether the TLS port is wanted where both are told.
    pub(crate) tls: bool,
}

/// What CLUSTER INFO tells about how far a node is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Whether the node sees a majority and every slot served.
    pub(crate) ok: bool,
    /// The newest configuration of the cluster that the node has heard of.
    pub(crate) epoch: u64,
}

impl<'a> Reader<'a> {
    /// What a node at this address says is read by a client of this configuration.
    pub(crate) fn of(config: &'a Config, asked: &'a Address) -> Self {
        let seed = matches!(&config.server, Server::Cluster(seeds) if seeds.contains(asked));
        Self { asked, seed, map: config.cluster.address_map.as_ref(), tls: config.tls.is_some() }
    }
}

impl Reader<'_> {
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
            ranges.push((slots, Shard { master, replicas }));
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

    /// CLUSTER SHARDS: `[{slots: [first, last…], nodes: [{…}…]}…]`. `None` if it does not have this form.
    pub(crate) fn shards(&self, reply: Value<'_>) -> Option<Topology> {
        let mut ranges = Vec::new();
        for entry in reply {
            let (mut slots, mut shard) = (Vec::new(), None);
            for (name, value) in entry.pairs()? {
                match name.as_str()? {
                    "slots" => slots = value.iter().collect(),
                    "nodes" => shard = Some(self.shard(value)?),
                    _ => {}
                }
            }
            let Some((Some(master), replicas)) = shard else { continue };
            for pair in slots.chunks_exact(2) {
                let shard = Shard { master: master.clone(), replicas: replicas.clone() };
                ranges.push((range(pair[0], pair[1])?, shard));
            }
        }
        is_list(reply).then(|| Topology::from_ranges(ranges))
    }

    fn shard(&self, nodes: Value<'_>) -> Option<(Option<Address>, Vec<Address>)> {
        let (mut master, mut replicas) = (None, Vec::new());
        for node in nodes {
            let mut told = Told::default();
            for (name, value) in node.pairs()? {
                told.note(name.as_str()?, value);
            }
            match (told.role, told.address(self)) {
                ("master", address) => master = master.or(address),
                (_, Some(address)) if told.health == "online" => replicas.push(address),
                _ => {}
            }
        }
        Some((master, replicas))
    }
}

/// One node of CLUSTER SHARDS.
#[derive(Default)]
struct Told<'a> {
    endpoint: Option<&'a str>,
    ip: &'a str,
    role: &'a str,
    health: &'a str,
    port: Option<u16>,
    tls_port: Option<u16>,
}

impl<'a> Told<'a> {
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

    fn address(&self, reader: &Reader<'_>) -> Option<Address> {
        let port = if reader.tls { self.tls_port.or(self.port) } else { self.port.or(self.tls_port) }?;
        match self.endpoint {
            Some("?") if self.ip.is_empty() => None,
            Some("?") => Some(reader.address(self.ip, port)),
            other => Some(reader.address(other.unwrap_or_default(), port)),
        }
    }
}

/// CLUSTER INFO: `name:value` lines.
pub(crate) fn standing(info: &str) -> Option<Standing> {
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim));
    Some(Standing {
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
    let (first, last) = (slot(first)?, slot(last)?);
    (first <= last).then_some(first..=last)
}

fn port(value: Value<'_>) -> Option<u16> {
    value.as_i64().and_then(|n| u16::try_from(n).ok()).filter(|port| *port != 0)
}

#[cfg(test)]
mod tests;
