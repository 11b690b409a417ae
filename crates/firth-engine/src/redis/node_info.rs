//! What the engine's servers are told to be: from the topology that the client knows, and from what
//! each master says of itself and its replicas (pure).

use super::start::{self, Info};
use crate::facet::{EngineNode, NodeState};
use firth_redis::config::{Address, Server};
use firth_redis::{Client, NodeInfo, NodeRole};
use std::ops::RangeInclusive;

/// A master, and a key by which it is asked.
pub(super) struct Master {
    address: String,
    slots: Vec<RangeInclusive<u16>>,
    /// Kind and version, as the handshake told them.
    greeting: Option<String>,
    pub(super) probe: String,
}

/// All masters that the client knows.
pub(super) fn masters(client: &Client, probe: &str, prefix: &str) -> Vec<Master> {
    let in_cluster = client.nodes().into_iter().filter(|node| node.role == NodeRole::Master);
    let in_cluster = in_cluster.filter_map(|node| {
        let probe = start::probe_of(&node, prefix)?;
        Some(Master { address: node.address.to_string(), slots: node.slots, greeting: None, probe })
    });
    let found: Vec<Master> = in_cluster.collect();
    if !found.is_empty() {
        return found;
    }
    let address = match (client.address(), &client.config().server) {
        (Some(address), _) => address.to_string(),
        (None, Server::Unix(path)) => path.display().to_string(),
        (None, _) => "unknown".to_owned(),
    };
    let greeting = client.server().filter(|it| !it.server.is_empty());
    let greeting = greeting.map(|it| format!("{} {}", it.server, it.version));
    vec![Master { address, slots: Vec::new(), greeting, probe: probe.to_owned() }]
}

/// The masters with what they told, each before its replicas. `None`: it did not answer.
pub(super) fn nodes(told: Vec<(Master, Option<Info>)>, known: &[NodeInfo]) -> Vec<EngineNode> {
    let mut all = Vec::new();
    for (master, info) in told {
        let in_cluster = known.iter().filter(|node| node.role == NodeRole::Replica);
        let in_cluster = in_cluster.filter(|node| !master.slots.is_empty() && node.slots == master.slots);
        let replicas = replicas(in_cluster.map(|node| &node.address), info.as_ref());
        let replicas: Vec<_> = replicas
            .into_iter()
            .map(|(address, state)| EngineNode {
                replica_of: Some(master.address.clone()),
                slots: master.slots.clone(),
                ..unknown(address, state)
            })
            .collect();
        let state = if info.is_some() { NodeState::Online } else { NodeState::Away };
        let info = info.unwrap_or_default();
        all.push(EngineNode {
            version: version(&info).or(master.greeting),
            memory: info.number("used_memory"),
            max_memory: info.number("maxmemory").filter(|max| *max > 0),
            slots: master.slots,
            ..unknown(master.address, state)
        });
        all.extend(replicas);
    }
    all
}

fn unknown(address: String, state: NodeState) -> EngineNode {
    let slots = Vec::new();
    EngineNode { address, replica_of: None, state, version: None, memory: None, max_memory: None, slots }
}

fn version(info: &Info) -> Option<String> {
    let valkey = info.get("valkey_version").map(|version| format!("valkey {version}"));
    valkey.or_else(|| info.get("redis_version").map(|version| format!("redis {version}")))
}

/// The replicas that a master tells, and those that only the cluster's topology has: they are not
/// connected to it. While the master does not answer, nothing is known against them.
fn replicas<'a>(
    in_cluster: impl Iterator<Item = &'a Address>,
    info: Option<&Info>,
) -> Vec<(String, NodeState)> {
    let Some(info) = info else {
        return in_cluster.map(|address| (address.to_string(), NodeState::Online)).collect();
    };
    let lines = (0..).map_while(|nth| info.get(&format!("slave{nth}")));
    let mut told: Vec<(Address, NodeState)> = lines.filter_map(replica).collect();
    let mut found = Vec::new();
    for address in in_cluster {
        // A master tells the address of the socket, which may be another than the announced one.
        let is_it = |(other, _): &(Address, NodeState)| other == address;
        let has_its_port = |(other, _): &(Address, NodeState)| other.port == address.port;
        let at = told.iter().position(is_it).or_else(|| told.iter().position(has_its_port));
        // A user that may not call INFO learns nothing.
        let otherwise = if info.get("role").is_some() { NodeState::Away } else { NodeState::Online };
        let state = at.map_or(otherwise, |at| told.swap_remove(at).1);
        found.push((address.to_string(), state));
    }
    found.extend(told.into_iter().map(|(address, state)| (address.to_string(), state)));
    found
}

/// `ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`.
fn replica(line: &str) -> Option<(Address, NodeState)> {
    let get = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let state = if get("state")? == "online" { NodeState::Online } else { NodeState::Syncing };
    Some((Address::new(get("ip")?, get("port")?.parse().ok()?), state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Info {
        Info::of_text(text)
    }

    fn master(port: u16, slots: Vec<RangeInclusive<u16>>) -> Master {
        Master { address: format!("10.0.0.1:{port}"), slots, greeting: None, probe: String::new() }
    }

    fn told(nodes: &[EngineNode]) -> Vec<(&str, Option<&str>, NodeState)> {
        nodes.iter().map(|node| (node.address.as_str(), node.replica_of.as_deref(), node.state)).collect()
    }

    #[test]
    fn a_master_tells_its_version_its_memory_and_its_replicas() {
        let text = "redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nrole:master\r\nused_memory:7\r\n\
            maxmemory:0\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\r\n\
            slave1:ip=::1,port=7,state=wait_bgsave,offset=0,lag=9\r\n";
        let found = nodes(vec![(master(6379, Vec::new()), Some(info(text)))], &[]);
        let of = Some("10.0.0.1:6379");
        let expected = [
            ("10.0.0.1:6379", None, NodeState::Online),
            ("10.0.0.2:6379", of, NodeState::Online),
            ("[::1]:7", of, NodeState::Syncing),
        ];
        assert_eq!(told(&found), expected);
        assert_eq!(found[0].version.as_deref(), Some("valkey 9.1.2"));
        assert_eq!((found[0].memory, found[0].max_memory), (Some(7), None));
    }

    #[test]
    fn a_master_that_does_not_answer_and_a_replica_that_is_not_connected_are_away() {
        let silent = nodes(vec![(master(1, Vec::new()), None)], &[]);
        assert_eq!(told(&silent), [("10.0.0.1:1", None, NodeState::Away)]);
        let addresses = [Address::new("one", 1), Address::new("two", 2)];
        let text = info("role:master\r\nslave0:ip=10.0.0.7,port=2,state=online,offset=1,lag=0\r\n");
        let found = replicas(addresses.iter(), Some(&text));
        let expected = [("one:1".to_owned(), NodeState::Away), ("two:2".to_owned(), NodeState::Online)];
        assert_eq!(found, expected);
    }

    #[test]
    fn where_info_is_forbidden_nothing_is_said_against_a_server() {
        let found = nodes(vec![(master(1, Vec::new()), Some(Info::default()))], &[]);
        assert_eq!(told(&found), [("10.0.0.1:1", None, NodeState::Online)]);
        let address = Address::new("one", 1);
        let found = replicas(std::iter::once(&address), Some(&Info::default()));
        assert_eq!(found, [("one:1".to_owned(), NodeState::Online)]);
    }
}
