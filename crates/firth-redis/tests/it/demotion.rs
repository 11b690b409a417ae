//! A master that is demoted behind a name that leads elsewhere by now: the client follows the name,
//! and a client that was given a replica on purpose is left alone.

use crate::fake::{Fake, Peer};
use crate::support::*;
use firth_redis::{CallError, Client, ConnectionEventKind, ConnectionState, LostCause, Script, cmd};
use firth_testkit::{Flavor, Proxy, RedisServer, on_both, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

on_both!(
    c01_a_demoted_master_behind_a_name_is_left_for_its_successor,
    c01_a_client_of_a_replica_keeps_its_connection,
    c02_a_stale_sentinel_neither_blocks_nor_misleads,
    c02_a_stale_sentinel_that_is_listened_to_throws_no_connection_off_its_master,
);

async fn replica_of(master: &RedisServer, flavor: Flavor) -> RedisServer {
    let replica = RedisServer::builder().flavor(flavor).replica_of(master).start().await;
    wait::until(LONG, "it follows its master", async || {
        replica.info("replication").await["master_link_status"] == "up"
    })
    .await;
    replica
}

/// Makes `new` the master of `old`.
async fn exchange(old: &RedisServer, new: &RedisServer) {
    new.order(&["REPLICAOF", "NO", "ONE"]).await;
    old.order(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
}

async fn c01_a_demoted_master_behind_a_name_is_left_for_its_successor(flavor: Flavor) {
    let old = RedisServer::start(flavor).await;
    let new = replica_of(&old, flavor).await;
    follows_the_name(&old, &new).await;
}

#[tokio::test]
async fn c01_a_demoted_master_that_knows_no_hello_is_left_too() {
    let old_server = || RedisServer::builder().config("rename-command HELLO \"\"");
    let old = old_server().start().await;
    let new = old_server().replica_of(&old).start().await;
    wait::until(LONG, "it follows its master", async || {
        new.info("replication").await["master_link_status"] == "up"
    })
    .await;
    follows_the_name(&old, &new).await;
}

async fn follows_the_name(old: &RedisServer, new: &RedisServer) {
    let name = Proxy::start(old.addr()).await;
    let client = connect(quick(name.url())).await;
    client.call::<()>(cmd("SET").key("k").arg(1)).await.unwrap();
    let script = Script::new("return redis.call('SET', KEYS[1], ARGV[1])");
    client.eval::<()>(&script.key("s").arg(1)).await.unwrap();

    exchange(old, new).await;
    // The name does not lead to the successor yet: nothing is gained by leaving.
    let error = client.call::<()>(cmd("SET").key("k").arg(2)).await.unwrap_err();
    assert_eq!(error.code(), Some("READONLY"));
    name.retarget(new.addr());
    wait::until(LONG, "writes reach the successor", async || {
        client.call::<()>(cmd("SET").key("k").arg(3)).await.is_ok()
    })
    .await;
    assert_eq!(new.command(&["GET", "k"]).await.int(), 3);
    assert!(matches!(client.last_error(), Some(LostCause::Demoted)), "{:?}", client.last_error());

    // A script's write is refused in the same way, and is heeded in the same way.
    exchange(new, old).await;
    name.retarget(old.addr());
    wait::until(LONG, "scripts reach the successor", async || {
        client.eval::<()>(&script.key("s").arg(2)).await.is_ok()
    })
    .await;
    assert_eq!(old.command(&["GET", "s"]).await.int(), 2);
    client.close().await;
    wait::until(LONG, "no task is left", async || tasks() == 0).await;
}

async fn c01_a_client_of_a_replica_keeps_its_connection(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let replica = replica_of(&master, flavor).await;
    let proxy = Proxy::start(replica.addr()).await;
    let client = connect(quick(proxy.url())).await;
    let connection = client.server().unwrap().connection_id;
    for n in 0..200 {
        let error = client.call::<()>(cmd("SET").key("k").arg(n)).await.unwrap_err();
        assert_eq!(error.code(), Some("READONLY"));
        echo(&client, "reads are fine").await.unwrap();
    }
    assert_eq!(client.server().unwrap().connection_id, connection, "no other server is master there");
    let made = proxy.connections();
    assert!((2..20).contains(&made), "{made} connections for 200 refused writes");
    client.close().await;
}

/// A sentinel that names one server for good, and counts how often it was asked.
struct Sentinel {
    fake: Fake,
    asked: Arc<AtomicUsize>,
    silent: Arc<AtomicBool>,
}

impl Sentinel {
    async fn naming(server: &RedisServer) -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let silent = Arc::new(AtomicBool::new(false));
        let port = server.port().to_string();
        let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
        let count = asked.clone();
        let gone = silent.clone();
        let fake =
            Fake::answering_hello(move |_, peer| tell(peer, answer.clone(), count.clone(), gone.clone()))
                .await;
        Self { fake, asked, silent }
    }

    fn host(&self) -> String {
        self.fake.url().replace("redis://", "")
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// From now on every connection ends at the next question.
    fn die(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

async fn tell(mut peer: Peer, answer: String, asked: Arc<AtomicUsize>, gone: Arc<AtomicBool>) {
    while let Some(words) = peer.command().await {
        if gone.load(Ordering::SeqCst) {
            return;
        }
        match words[0].as_str() {
            "SENTINEL" => {
                asked.fetch_add(1, Ordering::SeqCst);
                peer.say(answer.as_bytes()).await;
            }
            "SUBSCRIBE" => peer.say(b">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n").await,
            _ => peer.say(b"+PONG\r\n").await,
        }
    }
}

async fn c02_a_stale_sentinel_neither_blocks_nor_misleads(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let old = replica_of(&master, flavor).await;
    let right = Sentinel::naming(&master).await;
    let stale = Sentinel::naming(&old).await;
    let url = format!("redis+sentinel://{},{}/m", right.host(), stale.host());
    // The order is drawn by lot: the stale one is first often enough.
    for round in 0..8 {
        let client = connect(url.as_str()).await;
        client.call::<()>(cmd("SET").key("k").arg(round)).await.unwrap();
        client.close().await;
    }
    assert!(stale.asked() > 0, "the lot never fell on the stale sentinel");
    // One that names nothing but a replica is said to do so.
    let error = Client::connect(format!("redis+sentinel://{}/m", stale.host())).await.unwrap_err();
    assert!(error.to_string().contains("is a replica") && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn c16_a_far_sentinel_has_the_time_that_is_configured() {
    let master = RedisServer::start(Flavor::Redis).await;
    let sentinel = Sentinel::naming(&master).await;
    let far = Proxy::start(sentinel.host().parse().unwrap()).await;
    far.delay(ms(1200));
    let client = connect(format!("redis+sentinel://{}/m", far.addr())).await;
    echo(&client, "found").await.unwrap();
    client.close().await;
}

async fn c02_a_stale_sentinel_that_is_listened_to_throws_no_connection_off_its_master(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let old = replica_of(&master, flavor).await;
    let right = Sentinel::naming(&master).await;
    let stale = Sentinel::naming(&old).await;
    let client = connect(format!("redis+sentinel://{},{}/m", right.host(), stale.host())).await;
    let mut events = client.events();
    wait::until(LONG, "the right one is listened to", async || right.asked() >= 2).await;
    right.die();
    let before = stale.asked();
    wait::until(LONG, "the stale one was asked", async || stale.asked() >= before + 2).await;
    assert_eq!(client.state(), ConnectionState::Open);
    client.call::<()>(cmd("SET").key("k").arg(1)).await.unwrap();
    let told = tokio::time::timeout(ms(10), events.next()).await;
    assert!(told.is_err(), "{told:?}");
    client.close().await;
    assert_eq!(soon(events.next()).await.unwrap().kind, ConnectionEventKind::Closed);
    let gone = client.call::<()>(cmd("PING")).await;
    assert!(matches!(gone, Err(CallError::Closed { .. })), "{gone:?}");
}
