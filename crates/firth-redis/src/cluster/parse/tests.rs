//! Replies as both servers send them.

use super::*;
use crate::cluster::topology::tests::node;
use crate::resp::{Decoder, Frame, ReplyLimits};
use bytes::BytesMut;

fn frame(wire: &str) -> Frame {
    let mut bytes = BytesMut::from(wire);
    let frame = Decoder::new(ReplyLimits::default()).decode(&mut bytes).expect("valid RESP");
    assert!(bytes.is_empty(), "the whole reply was read");
    frame.expect("a whole reply")
}

fn slots(wire: &str) -> Option<Topology> {
    plain().slots(frame(wire).value())
}

fn shards(wire: &str) -> Option<Topology> {
    plain().shards(frame(wire).value())
}

fn plain() -> TopologyReader<'static> {
    static ASKED: std::sync::LazyLock<Address> = std::sync::LazyLock::new(|| node(7_801));
    TopologyReader { asked: &ASKED, seed: true, map: None, tls: false }
}

fn local(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

/// Redis 7.0 over RESP3.
const SLOTS: &str = "*2\r\n*4\r\n:0\r\n:8191\r\n*4\r\n$9\r\n127.0.0.1\r\n:7801\r\n$3\r\naaa\r\n%0\r\n\
     *4\r\n$9\r\n127.0.0.1\r\n:7803\r\n$3\r\nccc\r\n%0\r\n\
     *3\r\n:8192\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:7802\r\n$3\r\nbbb\r\n%0\r\n";

/// Valkey 9 over RESP3, with the shard's id, which Redis 7.0 does not send.
const SHARDS: &str = "*2\r\n%3\r\n$5\r\nslots\r\n*2\r\n:8192\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n\
     %7\r\n$2\r\nid\r\n$3\r\nbbb\r\n$4\r\nport\r\n:7802\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n\
     $4\r\nrole\r\n$6\r\nmaster\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n$2\r\nid\r\n$3\r\nxxx\r\n\
     %3\r\n$5\r\nslots\r\n*2\r\n:0\r\n:8191\r\n$5\r\nnodes\r\n*2\r\n\
     %7\r\n$2\r\nid\r\n$3\r\naaa\r\n$4\r\nport\r\n:7801\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n\
     $4\r\nrole\r\n$6\r\nmaster\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n\
     %7\r\n$2\r\nid\r\n$3\r\nccc\r\n$4\r\nport\r\n:7803\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n\
     $4\r\nrole\r\n$7\r\nreplica\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n$2\r\nid\r\n$3\r\nyyy\r\n";

fn expected() -> Topology {
    Topology::from_ranges([
        (0..=8_191, ClusterShard { master: local(7_801), replicas: vec![local(7_803)] }),
        (8_192..=16_383, ClusterShard { master: local(7_802), replicas: vec![] }),
    ])
}

#[test]
fn slots_and_shards_tell_the_same() {
    assert_eq!(slots(SLOTS), Some(expected()));
    assert_eq!(shards(SHARDS), Some(expected()));
    // RESP2 writes maps as arrays.
    let resp2 = SHARDS.replace("%3\r\n", "*6\r\n").replace("%7\r\n", "*14\r\n");
    assert_eq!(shards(&resp2), Some(expected()));
    assert_eq!(slots(&SLOTS.replace("%0\r\n", "*0\r\n")), Some(expected()));
}

#[test]
fn a_replica_that_loads_is_no_replica_yet() {
    let loading = SHARDS.replace(
        "replica\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline",
        "replica\r\n$18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$7\r\nloading",
    );
    let topology = shards(&loading).unwrap();
    assert_eq!(topology.nodes().count(), 2);
}

#[test]
fn an_empty_or_missing_host_is_the_host_that_was_asked() {
    for host in ["$0\r\n\r\n", "$-1\r\n", "_\r\n"] {
        let wire = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n{host}:7802\r\n$3\r\naaa\r\n*0\r\n");
        assert_eq!(slots(&wire), Some(Topology::single(node(7_802))), "{host:?}");
    }
    let nameless = SHARDS.replace("$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n", "$8\r\nendpoint\r\n$0\r\n\r\n");
    assert_eq!(shards(&nameless).unwrap().master_of(0), Some(&node(7_801)));
}

#[test]
fn a_node_without_a_name_is_reached_by_its_ip_or_left_out() {
    let named = |metadata: &str| {
        format!("*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7802\r\n$3\r\naaa\r\n{metadata}")
    };
    let by_ip = slots(&named("*2\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n"));
    assert_eq!(by_ip, Some(Topology::single(local(7_802))));
    assert_eq!(slots(&named("*0\r\n")), Some(Topology::empty()));
}

#[test]
fn every_announced_address_is_translated() {
    let map = AddressMap::new(|a: &Address| Address::new("proxy", a.port + 10_000));
    let asked = local(7_801);
    let reader = TopologyReader { asked: &asked, seed: true, map: Some(&map), tls: false };
    let proxy = |port| Address::new("proxy", port);
    let topology = reader.slots(frame(SLOTS).value()).unwrap();
    assert_eq!(topology.nodes().collect::<Vec<_>>(), [&proxy(17_801), &proxy(17_803), &proxy(17_802)]);
    assert_eq!(reader.address("", 1), proxy(10_001));
}

#[test]
fn with_tls_the_tls_port_is_taken() {
    let both =
        SHARDS.replace("$4\r\nport\r\n:7802\r\n", "$4\r\nport\r\n:7802\r\n$8\r\ntls-port\r\n:9802\r\n");
    let both = both.replacen("%7\r\n", "%8\r\n", 1);
    let asked = local(7_801);
    let reader = TopologyReader { asked: &asked, seed: true, map: None, tls: true };
    let topology = reader.shards(frame(&both).value()).unwrap();
    assert_eq!(
        (topology.master_of(16_383), topology.master_of(0)),
        (Some(&local(9_802)), Some(&local(7_801)))
    );
    assert_eq!(shards(&both).unwrap().master_of(16_383), Some(&local(7_802)));
}

#[test]
fn a_node_without_slots_tells_of_an_empty_cluster() {
    assert_eq!(slots("*0\r\n"), Some(Topology::empty()));
    assert_eq!(shards("*0\r\n"), Some(Topology::empty()));
}

#[test]
fn nonsense_is_refused() {
    for wire in [
        "+OK\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        "*1\r\n*3\r\n:9\r\n:3\r\n*2\r\n$1\r\nh\r\n:1\r\n",
        "*1\r\n*2\r\n:0\r\n:1\r\n",
    ] {
        assert_eq!(slots(wire), None, "{wire:?}");
    }
    assert_eq!(shards("*1\r\n:1\r\n"), None);
}

#[test]
fn standing_is_read_from_info() {
    let info = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:12\r\ncluster_my_epoch:1\r\n";
    assert_eq!(node_view(info), Some(NodeView { ok: true, epoch: 12 }));
    assert_eq!(node_view(&info.replace("ok", "fail")), Some(NodeView { ok: false, epoch: 12 }));
    assert_eq!(node_view("cluster_state:ok\r\n"), None);
}

#[test]
fn redirections_name_a_host_and_a_port() {
    assert_eq!(host_and_port("127.0.0.1:7802"), Some(("127.0.0.1", 7_802)));
    assert_eq!(host_and_port("::1:7802"), Some(("::1", 7_802)));
    assert_eq!(host_and_port("[::1]:7802"), Some(("::1", 7_802)));
    assert_eq!(host_and_port("cache.example:7802"), Some(("cache.example", 7_802)));
    assert_eq!(host_and_port(":7802"), Some(("", 7_802)));
    assert_eq!(host_and_port("nothing"), None);
    assert_eq!(host_and_port("h:99999"), None);
}

#[test]
fn c20_a_host_that_was_translated_is_not_translated_again() {
    let asked = Address::new("outside.inside", 9_801);
    let map = AddressMap::new(|a: &Address| Address::new(format!("outside.{}", a.host), a.port + 2_000));
    let reader = TopologyReader { asked: &asked, seed: false, map: Some(&map), tls: false };
    assert_eq!(reader.address("", 7_802), Address::new("outside.inside", 9_802));
    assert_eq!(reader.address("inside", 7_802), Address::new("outside.inside", 9_802));
}
