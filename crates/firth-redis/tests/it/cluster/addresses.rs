//! The ways in which nodes announce themselves: over TLS, by IPv6 address, by host name, and not at
//! all. Each client must follow a redirection there.

use super::{SOON, keys};
use firth_redis::{Client, Config, cmd, slot};
use firth_testkit::ports::Port;
use firth_testkit::{Certs, RedisServer, wait};
use std::time::Duration;

/// Two masters that share the slots.
struct ClusterPair {
    nodes: [RedisServer; 2],
    _buses: [Port; 2],
}

impl ClusterPair {
    /// Two servers as `build` makes them, which reach each other at `host`.
    async fn start(host: &str, build: impl Fn() -> firth_testkit::RedisServerBuilder) -> Self {
        let buses = [Port::reserve(), Port::reserve()];
        let start = async |bus: &Port| {
            let bus = bus.number().to_string();
            build().config("cluster-enabled yes").arg("cluster-port", bus).start().await
        };
        let nodes = [start(&buses[0]).await, start(&buses[1]).await];
        for (node, (epoch, first, last)) in nodes.iter().zip([("1", "0", "8191"), ("2", "8192", "16383")]) {
            node.order(&["CLUSTER", "SET-CONFIG-EPOCH", epoch]).await;
            node.order(&["CLUSTER", "ADDSLOTSRANGE", first, last]).await;
        }
        let port = nodes[1].port().to_string();
        let bus = buses[1].number().to_string();
        nodes[0].order(&["CLUSTER", "MEET", host, &port, &bus]).await;
        for node in &nodes {
            wait::until(SOON, "the node sees a whole cluster", async || {
                let info = node.command(&["CLUSTER", "INFO"]).await.text();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
            })
            .await;
        }
        Self { nodes, _buses: buses }
    }

    /// Gives the slot of a key that was never written to the other node.
    async fn move_slot_of(&self, key: &str) -> &RedisServer {
        let slot = slot(key.as_bytes());
        let [from, to] = if slot < 8192 { [0, 1] } else { [1, 0] }.map(|index| &self.nodes[index]);
        let id = to.command(&["CLUSTER", "MYID"]).await.text();
        for node in [to, from] {
            node.order(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id]).await;
        }
        to
    }
}

/// Keys of both nodes are served, each node is known under `host`, and a redirection leads to the
/// new owner.
async fn is_served(pair: &ClusterPair, url: &str, host: &str) {
    let mut config = Config::from_url(url).unwrap();
    // Nothing but the redirection tells of the move.
    config.cluster.poll = Duration::from_secs(600);
    config.timeouts.request = Some(SOON);
    let client = Client::connect(config).await.expect("the cluster is up");
    for key in keys("address", 20) {
        client.call::<()>(cmd("SET").key(&key).arg(&key)).await.unwrap();
        assert_eq!(client.call::<String>(cmd("GET").key(&key)).await.unwrap(), key);
    }
    let hosts: Vec<String> = client.nodes().into_iter().map(|node| node.address.host).collect();
    assert_eq!(hosts, [host, host]);
    let owner = pair.move_slot_of("moved").await;
    client.call::<()>(cmd("SET").key("moved").arg(7)).await.unwrap();
    assert_eq!(owner.command(&["GET", "moved"]).await.int(), 7);
    client.close().await;
}

#[tokio::test]
async fn a_redirection_leads_to_another_node_over_tls() {
    let certs = Certs::new();
    let build = || RedisServer::builder().tls(&certs).config("tls-cluster yes");
    let pair = ClusterPair::start("127.0.0.1", build).await;
    let port = pair.nodes[0].port();
    let ca = certs.ca_path();
    is_served(&pair, &format!("rediss+cluster://127.0.0.1:{port}?tls_ca={}", ca.display()), "127.0.0.1")
        .await;
}

#[tokio::test]
async fn nodes_with_ipv6_addresses_are_reached() {
    let build = || RedisServer::builder().config("bind ::1").config("cluster-announce-ip ::1");
    let pair = ClusterPair::start("::1", build).await;
    is_served(&pair, &format!("redis+cluster://[::1]:{}", pair.nodes[0].port()), "::1").await;
}

#[tokio::test]
async fn nodes_that_announce_a_host_name_are_reached_by_it() {
    let build = || {
        RedisServer::builder()
            .config("cluster-announce-hostname localhost")
            .config("cluster-preferred-endpoint-type hostname")
    };
    let pair = ClusterPair::start("127.0.0.1", build).await;
    let told = |node: &RedisServer| {
        let port = node.port();
        format!("redis+cluster://127.0.0.1:{port}")
    };
    // The name of the other node arrives some time after its address.
    wait::until(SOON, "each knows the other's name", async || {
        let slots = pair.nodes[0].command(&["CLUSTER", "SLOTS"]).await;
        slots.items().iter().all(|range| range.items()[2].items()[0].text() == "localhost")
    })
    .await;
    wait::until(SOON, "each knows the other's name", async || {
        let slots = pair.nodes[1].command(&["CLUSTER", "SLOTS"]).await;
        slots.items().iter().all(|range| range.items()[2].items()[0].text() == "localhost")
    })
    .await;
    is_served(&pair, &told(&pair.nodes[0]), "localhost").await;
}

#[tokio::test]
async fn nodes_that_announce_nothing_are_reached_where_the_first_was() {
    let build = || RedisServer::builder().config("cluster-preferred-endpoint-type unknown-endpoint");
    let pair = ClusterPair::start("127.0.0.1", build).await;
    is_served(&pair, &format!("redis+cluster://127.0.0.1:{}", pair.nodes[0].port()), "127.0.0.1").await;
}
