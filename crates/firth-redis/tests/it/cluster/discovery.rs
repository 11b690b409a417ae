//! Finding the cluster, and losing sight of parts of it.

use super::{SOON, config, connect, keys};
use firth_redis::config::{Address, AddressMap, Liveness, Server};
use firth_redis::{CallError, Client, Config, ConnectError, ConnectionEventKind, ConnectionState, cmd, pipe};
use firth_testkit::{Certs, Direction, Flavor, Proxy, RedisCluster, RedisServer, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

fn bare() -> firth_testkit::ClusterBuilder {
    RedisCluster::builder().replicas_per_master(0)
}

/// Resets open connections, and refuses new ones.
async fn shut(proxy: &Proxy) {
    proxy.refuse().await;
    proxy.cut().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_one_client_cannot_reach_holds_up_no_other() {
    let cluster = bare().announce_through_proxies(true).start().await;
    let mut config = config(&cluster);
    config.timeouts.request = Some(Duration::from_millis(500));
    config.liveness =
        Some(Liveness { ping_after: Duration::from_millis(100), dead_after: Duration::from_millis(200) });
    let client = connect(config).await;
    let keys = keys("cut", 60);
    let mut owners = Vec::new();
    for key in &keys {
        client.call::<()>(cmd("SET").key(key).arg(1)).await.unwrap();
        owners.push(cluster.master_of_key(key).await);
    }
    let cut = owners[0];
    for fault in ["half open", "refused"] {
        match fault {
            "half open" => cluster.node(cut).proxy().half_open(Direction::ToClient),
            _ => shut(cluster.node(cut).proxy()).await,
        }
        let started = Instant::now();
        for (key, _) in keys.iter().zip(&owners).filter(|(_, owner)| **owner != cut) {
            assert_eq!(client.call::<i64>(cmd("GET").key(key)).await.unwrap(), 1, "{fault}");
        }
        assert!(started.elapsed() < Duration::from_secs(2), "{fault}: {:?}", started.elapsed());
        let error = client.call::<i64>(cmd("GET").key(&keys[0])).await.unwrap_err();
        assert!(error.is_retryable(), "{fault}: {error:?}");
        // Of a pipeline only the commands for that node fail.
        let reads: firth_redis::Pipe = keys.iter().map(|key| cmd("GET").key(key)).collect();
        let answers = client.pipeline::<Vec<i64>>(reads).await.unwrap();
        for (answer, owner) in answers.iter().zip(&owners) {
            assert_eq!(answer.is_ok(), *owner != cut, "{fault}: {answer:?}");
        }
        cluster.node(cut).proxy().heal().await;
        wait::until(SOON, "the node is back", async || {
            client.call::<i64>(cmd("GET").key(&keys[0])).await.is_ok()
        })
        .await;
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_lead_back_when_every_known_address_is_gone() {
    let cluster = bare().start().await;
    let nodes = cluster.nodes();
    let mut generations: Vec<Vec<(u16, Proxy)>> = Vec::new();
    for _ in 0..2 {
        let mut doors = Vec::new();
        for node in &nodes {
            doors.push((node.addr().port(), Proxy::start(node.addr()).await));
        }
        generations.push(doors);
    }
    let ports: Vec<Vec<(u16, u16)>> = generations
        .iter()
        .map(|doors| doors.iter().map(|(real, proxy)| (*real, proxy.port())).collect())
        .collect();
    let generation = Arc::new(AtomicUsize::new(0));
    let mut config = config(&cluster);
    let current = generation.clone();
    config.cluster.address_map = Some(AddressMap::new(move |announced: &Address| {
        let doors = &ports[current.load(Ordering::Relaxed)];
        let door = doors.iter().find(|(real, _)| *real == announced.port);
        Address::new("127.0.0.1", door.map_or(announced.port, |door| door.1))
    }));
    let client = connect(config).await;
    let keys = keys("seed", 30);
    for key in &keys {
        client.call::<()>(cmd("SET").key(key).arg(1)).await.unwrap();
    }
    assert!(
        generations[0].iter().all(|(_, proxy)| proxy.connections() > 0),
        "the map leads through the proxies"
    );

    generation.store(1, Ordering::Relaxed);
    for (_, proxy) in &generations[0] {
        shut(proxy).await;
    }
    for key in &keys {
        wait::until(SOON, "the new addresses are found", async || {
            client.call::<i64>(cmd("INCR").key(key)).await.is_ok()
        })
        .await;
    }
    assert!(generations[1].iter().all(|(_, proxy)| proxy.connections() > 0));
    client.close().await;
}

#[tokio::test]
async fn a_cluster_out_of_reach_is_told_and_found_again() {
    let cluster = bare().announce_through_proxies(true).start().await;
    let client = connect(config(&cluster)).await;
    let mut events = client.events();
    for node in cluster.nodes() {
        shut(node.proxy()).await;
    }
    let lost = events.next().await.expect("open");
    assert_eq!((lost.kind, lost.generation), (ConnectionEventKind::Disconnected, 1));
    assert_eq!(client.state(), ConnectionState::Reconnecting);
    assert!(client.last_error().is_some());
    for node in cluster.nodes() {
        node.proxy().heal().await;
    }
    let found = events.next().await.expect("open");
    assert_eq!((found.kind, found.generation), (ConnectionEventKind::Connected, 2));
    client.ready().await.unwrap();
    client.call::<()>(cmd("SET").key("a").arg(1)).await.unwrap();
    client.close().await;
    assert_eq!(events.next().await.expect("told before it ends").kind, ConnectionEventKind::Closed);
}

#[tokio::test]
async fn without_a_schedule_of_reconnections_the_next_request_connects_anew() {
    let cluster = bare().announce_through_proxies(true).start().await;
    let mut config = config(&cluster);
    config.reconnect = None;
    let client = connect(config).await;
    let small = "x".to_owned();
    let big = "x".repeat(200_000);
    for value in [&small, &big, &small, &big] {
        // What was sent into the cut connection is lost; what comes after it is not.
        wait::until(SOON, "a request goes over a new connection", async || {
            client.call::<()>(cmd("SET").key("a").arg(value)).await.is_ok()
        })
        .await;
        assert_eq!(client.call::<String>(cmd("GET").key("a")).await.unwrap(), *value);
        for node in cluster.nodes() {
            node.proxy().cut().await;
        }
    }
    client.close().await;
}

#[tokio::test]
async fn what_stands_in_the_way_of_connecting_is_named() {
    // Not a cluster.
    let server = RedisServer::start(Flavor::Redis).await;
    let address = |server: &RedisServer| Address::new("127.0.0.1", server.port());
    let error = Client::connect(Config::new(Server::Cluster(vec![address(&server)]))).await.unwrap_err();
    assert!(error.to_string().contains("redis://"), "{error}");

    // No server there.
    server.kill().await;
    let error = Client::connect(Config::new(Server::Cluster(vec![address(&server)]))).await.unwrap_err();
    assert!(matches!(error, ConnectError::Connect { .. }), "{error:?}");

    // A cluster that owns no slots, then only some.
    let lone = RedisServer::builder().config("cluster-enabled yes").start().await;
    let url = format!("redis+cluster://127.0.0.1:{}", lone.port());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoTopology { .. }), "{error:?}");
    lone.order(&["CLUSTER", "ADDSLOTSRANGE", "0", "16382"]).await;
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("1 slots have no owner"), "{error}");

    // Whole at last: a client that was made too early finds it.
    let early = Client::lazy(&url).unwrap();
    lone.order(&["CLUSTER", "ADDSLOTS", "16383"]).await;
    early.ready().await.unwrap();
    early.call::<()>(cmd("SET").key("a").arg(1)).timeout(SOON).await.unwrap();
    early.close().await;
}

#[tokio::test]
async fn a_client_without_a_cluster_queues_and_then_says_why() {
    let nobody = firth_testkit::ports::Port::reserve();
    let url = format!("redis+cluster://127.0.0.1:{}?request_timeout=300ms", nobody.number());
    let client = Client::lazy(&url).unwrap();
    let started = Instant::now();
    let error = client.call::<()>(cmd("SET").key("a").arg(1)).await.unwrap_err();
    assert!(matches!(error, CallError::Down { .. }) && !error.may_have_run(), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let error = client.pipeline::<(i64,)>(pipe().then(cmd("INCR").key("a"))).await.unwrap_err();
    assert!(matches!(error, CallError::Down { .. }), "{error:?}");
    client.close().await;
    let error = client.call::<()>(cmd("PING")).await.unwrap_err();
    assert!(matches!(error, CallError::Closed { sent: false }), "{error:?}");
}

#[tokio::test]
async fn credentials_count_at_every_node_and_few_rights_are_enough() {
    let rights = "+@read +@write +@connection +readonly +asking +cluster|shards";
    let cluster = bare()
        .password("hunter2")
        .config(format!("user few on >few ~* &* {rights}"))
        .config(format!("user some on >some ~* &* {rights} +cluster|slots"))
        .start()
        .await;
    let hosts = cluster.url().split_once('@').expect("the URL has a password").1.to_owned();
    let wrong = Client::connect(format!("redis+cluster://:wrong@{hosts}")).await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Refused { .. }) && !wrong.is_retryable(), "{wrong:?}");
    assert!(!format!("{wrong:?}").contains("wrong@"));
    for user in [":hunter2", "few:few", "some:some"] {
        let client = Client::connect(format!("redis+cluster://{user}@{hosts}")).await.expect(user);
        for key in keys("credentials", 20) {
            client.call::<()>(cmd("SET").key(key).arg(1)).await.expect(user);
        }
        client.close().await;
    }
}

#[tokio::test]
async fn nodes_are_reached_over_tls_wherever_the_cluster_sends_us() {
    let certs = Certs::new();
    let server = RedisServer::builder()
        .tls(&certs)
        .config("cluster-enabled yes")
        .config("tls-cluster yes")
        .start()
        .await;
    server.order(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    let url = server.url().replacen("rediss://", "rediss+cluster://", 1);
    let mut config = Config::from_url(&url).unwrap();
    if let Some(tls) = &mut config.tls {
        tls.ca = Some(certs.ca_pem().as_bytes().to_vec());
    }
    wait::until(SOON, "the node serves all slots", async || {
        server.command(&["CLUSTER", "INFO"]).await.text().contains("cluster_state:ok")
    })
    .await;
    let client = connect(config).await;
    client.call::<()>(cmd("SET").key("a").arg("secret")).await.unwrap();
    assert_eq!(client.call::<String>(cmd("GET").key("a")).await.unwrap(), "secret");
    client.close().await;
}

#[tokio::test]
async fn looks_and_redirections_are_counted() {
    let cluster = bare().start().await;
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    // A long interval between looks keeps the old owner in mind.
    let mut config = config(&cluster);
    config.cluster.poll = Duration::from_secs(600);
    let client = metrics::with_local_recorder(&recorder, || Client::lazy(config)).unwrap();
    client.ready().await.unwrap();
    client.call::<()>(cmd("SET").key("a").arg(1)).await.unwrap();
    let from = cluster.master_of_key("a").await;
    cluster.migrate_slot(firth_redis::slot(b"a"), from, (from + 1) % 3).await;
    client.call::<()>(cmd("SET").key("a").arg(2)).await.unwrap();
    let mut counted = std::collections::HashMap::new();
    for (key, _, _, value) in recorder.snapshotter().snapshot().into_vec() {
        let labels: Vec<&str> = key.key().labels().map(metrics::Label::value).collect();
        counted.insert(format!("{} {}", key.key().name(), labels.join(",")), format!("{value:?}"));
    }
    assert_eq!(counted["firth_redis_redirects_total moved"], "Counter(1)");
    assert_eq!(counted["firth_redis_redirects_total ask"], "Counter(0)");
    assert_ne!(counted["firth_redis_topology_refreshes_total true"], "Counter(0)");
    assert_eq!(counted["firth_redis_topology_refreshes_total false"], "Counter(0)");
    assert!(counted.contains_key("firth_redis_topology_refresh_seconds "), "{counted:?}");
    client.close().await;
}

#[tokio::test]
async fn c16_a_far_cluster_has_the_time_that_is_configured() {
    let cluster = bare().announce_through_proxies(true).start().await;
    for node in cluster.nodes() {
        node.proxy().delay(Duration::from_millis(800));
    }
    let mut config = config(&cluster);
    config.liveness = None;
    let client = connect(config).await;
    let mut events = client.events();
    client.call::<()>(cmd("SET").key("a").arg(1)).await.unwrap();
    // Some more looks, over connections that stand.
    for _ in 0..2 {
        assert_eq!(client.call::<i64>(cmd("GET").key("a")).await.unwrap(), 1);
    }
    assert_eq!(client.state(), ConnectionState::Open, "{:?}", client.last_error());
    client.close().await;
    assert_eq!(
        events.next().await.expect("told").kind,
        ConnectionEventKind::Closed,
        "it was in reach all the time"
    );
}
