//! The mux wherever a client can reach: over a Unix socket, over TLS, and through sentinels.

use super::{
    SOON, ServerSubscriptions, clusters, message, name, publish, signal, spublish, subscriber_connections,
};
use firth_redis::mux::Subscription;
use firth_redis::{Client, cmd};
use firth_testkit::{Certs, Flavor, RedisCluster, RedisServer, SentinelSet, wait};

async fn all_kinds_work(client: &Client) -> [Subscription; 3] {
    let mut plain = client.mux().subscribe(["a"]).await.unwrap();
    let mut pattern = client.mux().subscribe_pattern(["a*"]).await.unwrap();
    let mut sharded = client.mux().subscribe_sharded(["a"]).await.unwrap();
    assert_eq!(publish(client, "a", "1").await, 2);
    assert_eq!(spublish(client, "a", "2").await, 1);
    assert_eq!(&message(&mut plain).await.payload[..], b"1");
    assert_eq!(&message(&mut pattern).await.payload[..], b"1");
    assert_eq!(&message(&mut sharded).await.payload[..], b"2");
    [plain, pattern, sharded]
}

#[tokio::test]
async fn over_a_unix_socket() {
    let server = RedisServer::builder().password("secret").unix_socket().start().await;
    let client = Client::connect(server.unix_url()).await.unwrap();
    let _held = all_kinds_work(&client).await;
    let connections = server.order(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.text();
    assert!(connections.contains("server.sock") || connections.contains("addr=/"), "{connections}");
}

#[tokio::test]
async fn over_tls_with_a_client_certificate() {
    let certs = Certs::new();
    let server = RedisServer::builder().mutual_tls(&certs).start().await;
    let ca = certs.ca_path();
    let cert = certs.client_cert_path();
    let key = certs.client_key_path();
    let files = format!("?tls_ca={}&tls_cert={}&tls_key={}", ca.display(), cert.display(), key.display());
    let client = Client::connect(server.tcp_url() + &files).await.unwrap();
    let _held = all_kinds_work(&client).await;
    assert_eq!(subscriber_connections(&server).await, 1);
}

/// Every master holds some of the channels, so each connection must have given the password.
async fn works_at_every_master(cluster: &RedisCluster, client: &Client) {
    let names: Vec<String> = (0..30).map(|n| format!("c{n}")).collect();
    let mut sharded = client.mux().subscribe_sharded(names.clone()).await.unwrap();
    assert_eq!(clusters::each(cluster, subscriber_connections).await, [1, 1, 1]);
    for name in &names {
        spublish(client, name, "1").await;
    }
    for _ in &names {
        assert_eq!(&message(&mut sharded).await.payload[..], b"1");
    }
    for node in cluster.nodes() {
        node.server().order(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }
    let back = async || client.mux().stats().resumed == 30;
    wait::until(SOON, "all channels are served again", back).await;
    spublish(client, "c7", "2").await;
    assert_eq!(&message(&mut sharded).await.payload[..], b"2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_with_a_password() {
    let cluster = clusters::builder(Flavor::Valkey).replicas_per_master(0).password("s3cret").start().await;
    let client = Client::connect(cluster.url()).await.unwrap();
    works_at_every_master(&cluster, &client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_over_tls() {
    let certs = Certs::new();
    let cluster = clusters::builder(Flavor::Redis).replicas_per_master(0).tls(&certs).start().await;
    let url = format!("{}?tls_ca={}", cluster.url(), certs.ca_path().display());
    let client = Client::connect(url).await.unwrap();
    works_at_every_master(&cluster, &client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_sentinels_the_mux_follows_the_master() {
    let set = SentinelSet::start(Flavor::Redis, 1, 3).await;
    let client = Client::connect(set.url()).await.unwrap();
    let mut subscription = client.mux().subscribe(["a", "b"]).await.unwrap();
    let old = set.master().await.port();
    set.kill_master().await;
    for wanted in ["lost", "gap"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    loop {
        match name(&signal(&mut subscription).await) {
            "resumed" => break,
            "stalled" => {}
            other => panic!("{other}"),
        }
    }
    let new = set.master().await;
    assert_ne!(new.port(), old);
    assert!(ServerSubscriptions::of(new).await.channels.contains("b"));
    let told = async || matches!(client.call::<i64>(cmd("PUBLISH").arg("b").arg("1")).await, Ok(1));
    wait::until(SOON, "the client follows too", told).await;
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
}
