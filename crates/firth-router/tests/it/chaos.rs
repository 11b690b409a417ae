//! What must hold when things break: gateways that die in delivery, networks that are cut, slow,
//! flapping and paused gateways, nodes that are killed, partitions that move under load. After each
//! the history is judged: every event of a live subscription arrived once, those of a document in
//! order; and the accounting: in = delivered + parked + dead + gap-marked + in flight.

use crate::gateway::{Mood, TestGateway};
use crate::node::{World, balanced};
use crate::world::*;
use firth::Broker;
use firth_router::config::{Protocol, RoutingConfig};
use firth_router::deliver::{HttpDeliverer, HttpOptions};
use firth_router::lane::{Circuit, LaneAccounting};
use firth_router::node::{Router, RouterOptions};
use firth_router::registry::Registry;
use firth_testkit::{Direction, Flavor, Proxy, on_both};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Waits until a node has nothing on its way. Then its accounting must say where everything went,
/// and that nothing was given up: at least `events` reached their gateways through it.
pub(crate) async fn books_close(node: &Router, events: u64) {
    until(PATIENCE * 4, "nothing is on its way", async || {
        node.accounting().values().all(|accounting| accounting.held == 0) && node.open_records() == 0
    })
    .await;
    let mut delivered = 0;
    for (partition, accounting) in node.accounting() {
        let out =
            accounting.delivered + accounting.parked + accounting.dead + accounting.gapped + accounting.held;
        assert!(accounting.balance() && accounting.taken == out, "partition {partition}: {accounting:?}");
        assert_eq!((accounting.dead, accounting.gapped), (0, 0), "partition {partition}: {accounting:?}");
        delivered += accounting.delivered;
    }
    assert!(delivered >= events, "{delivered} of {events} were delivered");
}

/// Waits until a node has nothing on its way. Then its accounting must balance, with at least
/// `delivered` events delivered, and `dead` given up.
pub(crate) async fn books_tell(node: &Router, (delivered, dead): (u64, u64)) {
    until(PATIENCE * 4, "nothing is on its way", async || {
        node.accounting().values().all(|accounting| accounting.held == 0) && node.open_records() == 0
    })
    .await;
    let accounting = node.accounting();
    assert!(accounting.values().all(LaneAccounting::balance), "{accounting:?}");
    let sum = accounting.into_values().fold(LaneAccounting::default(), LaneAccounting::plus);
    assert!(sum.delivered >= delivered && sum.dead == dead, "{sum:?}");
}

pub(crate) async fn nothing_was_given_up(world: &World) {
    world.settled().await;
    assert_eq!(world.dead().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_dies_in_the_middle_of_deliveries_misses_nothing_and_harms_nobody() {
    let mut world = World::memory().await;
    let other = world.gateway("other", "doc.all").await;
    let dying = world.gateway("dying", "doc.all").await;
    let node = world.node().await;
    let mut count = 0;
    for mood in [Mood::Hangs, Mood::Answers(500), Mood::Hangs] {
        // It dies with batches in hand: taken in without an answer, or not taken in at all.
        dying.set(mood);
        let before = dying.requests();
        world.send(200).await;
        count += 400;
        until(PATIENCE, "batches are on their way", async || dying.requests() > before).await;
        dying.crash();
        world.has_all(&other).await;
        dying.set(Mood::Fine);
        dying.come_back().await;
        world.has_all(&dying).await;
    }
    nothing_was_given_up(&world).await;
    books_close(&node, count).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_cut_and_heals_loses_nothing() {
    let mut world = World::memory().await;
    let other = world.gateway("other", "doc.all").await;
    let far = TestGateway::start("far").await;
    let proxy = Proxy::start(far.address).await;
    world.register("far", format!("http://{}", proxy.addr()), Protocol::Http).await;
    let node = world.node().await;
    world.send(100).await;
    world.has_all(&far).await;
    for fault in 0..5 {
        match fault {
            0 => proxy.cut().await,
            1 => proxy.stall(Direction::ToClient),
            2 => proxy.half_open(Direction::Both),
            3 => proxy.truncate_after(300),
            _ => {
                proxy.refuse().await;
                proxy.cut().await;
            }
        }
        world.send(100).await;
        // No fault on the way to the far gateway stops the other gateway.
        world.has_all(&other).await;
        proxy.heal().await;
        world.send(50).await;
        world.has_all(&far).await;
    }
    nothing_was_given_up(&world).await;
    books_close(&node, 2 * 850).await;
    node.close().await.unwrap();
}

/// However much is in the log: no more in memory than one lane each and the windows of two
/// partitions, each of the node and of one catch-up reader.
fn is_bounded(node: &Router) {
    let held: usize = node.lanes().iter().map(|lane| lane.held).max().unwrap_or_default();
    assert!(held <= 1000, "{held} events in one lane");
    assert!(node.open_records() <= 2 * (500 + 500), "{} records", node.open_records());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_paused_under_load_catches_up_from_the_log_in_bounded_memory_while_others_go_on() {
    let mut world = World::memory().await;
    world.options.routing.backpressure.queue_size = 1000;
    let mut quick = Vec::new();
    for id in ["a", "b", "c"] {
        quick.push(world.gateway(id, "doc.all").await);
    }
    let paused = world.gateway("paused", "doc.all").await;
    paused.set(Mood::Hangs);
    let node = world.node().await;
    for _ in 0..6 {
        world.send(800).await;
        // By the order of events: the others have every event of this round while the paused one
        // has none at all.
        for gateway in &quick {
            world.has_all(gateway).await;
        }
        assert_eq!(paused.count(), 0);
        is_bounded(&node);
    }
    let parked = |node: &Router| node.lanes().iter().any(|lane| !lane.parked.is_empty());
    assert!(parked(&node), "a lane cannot hold 4800 events");
    // What does not fit into its lane was left to the log, however long it stands still.
    let lanes = node.lanes();
    let accounting =
        lanes.iter().find(|lane| lane.gateway.as_str() == "paused").expect("it has a lane").accounting;
    assert!(accounting.parked >= 4800 - 1000 && accounting.delivered == 0, "{accounting:?}");
    paused.set(Mood::Fine);
    world.send(200).await;
    until(PATIENCE * 6, "it catches up from the log", async || {
        is_bounded(&node);
        paused.count() >= 5000
    })
    .await;
    world.has_all(&paused).await;
    until(PATIENCE * 2, "it gets events as they happen again", async || !parked(&node)).await;
    world.send(100).await;
    for gateway in quick.iter().chain([&paused]) {
        world.has_all(gateway).await;
    }
    nothing_was_given_up(&world).await;
    books_close(&node, 4 * 5100).await;
    node.close().await.unwrap();
}

/// A world where the node parks only a gateway that really holds up others. A delivery may take an
/// hour, and so may a gateway that no other waits for.
async fn patient_world() -> World {
    let mut world = World::memory().await;
    let hour = Duration::from_secs(3600);
    (world.http.timeout, world.options.routing.delivery.timeout) = (hour, hour);
    world.options.stall_timeout = hour;
    // Four batches may be on their way at first, no two with events of one document.
    world.documents = 10_000;
    world
}

/// As much is on its way to it as the node may have open: the others wait for nothing else, so it
/// is parked soon, and its records are let go of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_hangs_with_all_that_may_be_open_holds_up_nobody() {
    let mut world = patient_world().await;
    world.options.routing.batch.max_size = 1000;
    let other = world.gateway("other", "doc.all").await;
    let hanging = world.gateway("hanging", "doc.all").await;
    hanging.set(Mood::Hangs);
    let node = world.node().await;
    for _ in 0..6 {
        world.send(800).await;
        world.has_all(&other).await;
    }
    assert_eq!(hanging.count(), 0);
    hanging.set(Mood::Fine);
    world.has_all(&hanging).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 2 * 4800).await;
    node.close().await.unwrap();
}

/// By the order of events: were the others no faster than it is, it would have all but what may be
/// open when they have everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_gateway_does_not_set_the_pace_of_others() {
    let mut world = patient_world().await;
    world.options.routing.batch.max_size = 10;
    let other = world.gateway("other", "doc.all").await;
    let slow = world.gateway("slow", "doc.all").await;
    slow.set(Mood::Slow(Duration::from_millis(500)));
    let node = world.node().await;
    world.send(4800).await;
    world.has_all(&other).await;
    assert!(slow.count() < 2400, "the other waited until it had {}", slow.count());
    slow.set(Mood::Fine);
    world.has_all(&slow).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 2 * 4800).await;
    node.close().await.unwrap();
}

/// It takes longer than others may be held up, and there are none: feeding it from the topic would
/// only be dearer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_gateway_without_others_is_not_parked() {
    let mut world = patient_world().await;
    let alone = world.gateway("alone", "doc.all").await;
    alone.set(Mood::Slow(Duration::from_millis(300)));
    let node = world.node().await;
    world.send(1600).await;
    world.has_all(&alone).await;
    books_close(&node, 1600).await;
    assert_eq!(node.accounting().values().map(|accounting| accounting.parked).sum::<u64>(), 0);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_and_a_flapping_gateway_get_everything_and_slow_nobody() {
    let mut world = World::memory().await;
    world.options.routing.batch.max_size = 20;
    let quick = world.gateway("quick", "doc.all").await;
    let (slow, flapping) =
        (world.gateway("slow", "doc.all").await, world.gateway("flapping", "doc.all").await);
    slow.set(Mood::Slow(Duration::from_millis(50)));
    let node = world.node().await;
    for _ in 0..5 {
        flapping.crash();
        world.send(100).await;
        world.has_all(&quick).await;
        flapping.come_back().await;
        let before = flapping.count();
        until(PATIENCE * 2, "it gets some", async || flapping.count() > before).await;
    }
    world.has_all(&flapping).await;
    world.has_all(&slow).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 3 * 500).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_move_between_nodes_under_load_lose_nothing() {
    let mut world = World::memory().await;
    world.options.lease = Duration::from_secs(2);
    let gateway = world.gateway("g", "doc.all").await;
    gateway.set(Mood::Slow(Duration::from_millis(5)));
    let mut nodes = vec![world.node().await];
    for round in 0..2 {
        world.send(200).await;
        nodes.push(world.node().await);
        world.send(200).await;
        until(PATIENCE * 2, "each has a partition", async || {
            nodes.iter().all(|node| node.consumer().assignment().len() == 1)
        })
        .await;
        world.send(200).await;
        let leaving = nodes.remove(0);
        balanced(&leaving);
        if round % 2 == 0 {
            leaving.close().await.unwrap();
            balanced(&leaving);
        } else {
            // As a crash: its partitions are free when its lease has run out.
            drop(leaving);
        }
    }
    world.has_all(&gateway).await;
    nothing_was_given_up(&world).await;
    let [last] = &nodes[..] else { panic!("one node is left") };
    books_close(last, 1).await;
    last.close().await.unwrap();
}

/// The URL of the engine that a node in a process of its own works on.
const NODE: &str = "FIRTH_TEST_NODE";

fn options() -> (RouterOptions, HttpOptions) {
    let mut options = RouterOptions::new("changes");
    options.lease = Duration::from_secs(2);
    options.routing.batch.max_size = 10;
    let http =
        HttpOptions { node: "node".to_owned(), timeout: Duration::from_secs(5), bearer: None, signing: None };
    (options, http)
}

async fn start_on(url: &str) -> Router {
    let broker = Broker::connect(url).await.unwrap();
    let registry = Registry::open(&broker, RoutingConfig::default().subscriptions).await.unwrap();
    let (options, http) = options();
    let deliverer = Arc::new(HttpDeliverer::new(http));
    Router::start(&broker, registry, deliverer, options).await.unwrap()
}

/// A node in a process of its own, which ends as `kill -9` ends it.
struct NodeProcess(Child);

impl NodeProcess {
    fn start(url: &str, test: &str) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(own);
        command.args([test, "--exact", "--nocapture"]).env(NODE, url);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn a_node_killed_in_the_middle_of_a_batch_is_replaced_and_nothing_is_lost(flavor: Flavor) {
    if let Ok(url) = std::env::var(NODE) {
        let _node = start_on(&url).await;
        return std::future::pending().await;
    }
    let name = "chaos::on_redis::a_node_killed_in_the_middle_of_a_batch_is_replaced_and_nothing_is_lost";
    let (server, engine, _) = on_server(flavor).await;
    let mut world = World::new(engine).await;
    let gateway = world.gateway("g", "doc.all").await;
    for mood in [Mood::Hangs, Mood::Answers(500), Mood::Fine] {
        let before = gateway.requests();
        let midway = gateway.count();
        gateway.set(mood.clone());
        let node = NodeProcess::start(&server.url(), name);
        world.send(300).await;
        until(PATIENCE * 4, "a batch is on its way", async || gateway.requests() > before + 2).await;
        if mood == Mood::Fine {
            until(PATIENCE * 4, "some arrived", async || gateway.count() > midway).await;
        }
        drop(node);
        world.send(100).await;
    }
    gateway.set(Mood::Fine);
    let last = start_on(&server.url()).await;
    world.has_all(&gateway).await;
    nothing_was_given_up(&world).await;
    books_close(&last, 1).await;
    last.close().await.unwrap();
}

on_both!(a_node_killed_in_the_middle_of_a_batch_is_replaced_and_nothing_is_lost);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_gateways_seem_gone_a_tenth_is_ejected_and_all_come_back() {
    let mut world = World::memory().await;
    world.options.stall_timeout = PATIENCE;
    world.options.routing.delivery.breaker.open_for = Duration::from_millis(100);
    world.options.routing.delivery.retry.max_delay = Duration::from_millis(200);
    let mut gateways = Vec::new();
    for number in 0..20 {
        gateways.push(world.gateway(&format!("g{number}"), "doc.all").await);
    }
    let node = world.node().await;
    world.send(20).await;
    for gateway in &gateways {
        world.has_all(gateway).await;
    }
    gateways.iter().for_each(|gateway| gateway.crash());
    world.send(20).await;
    let ejected = || node.lanes().iter().filter(|lane| lane.circuit != Circuit::Closed).count();
    let mut most = 0;
    until(PATIENCE, "two are ejected, and not more for a while", async || {
        let now = ejected();
        assert!(now <= 2, "{now} of 20 are ejected");
        most += usize::from(now == 2);
        most > 50
    })
    .await;
    for gateway in &gateways {
        gateway.come_back().await;
    }
    for gateway in &gateways {
        world.has_all(gateway).await;
    }
    until(PATIENCE, "nobody is ejected", async || ejected() == 0).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 20 * 40).await;
    node.close().await.unwrap();
}
