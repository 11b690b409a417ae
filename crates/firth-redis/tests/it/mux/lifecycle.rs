//! The mux of a client that closes, opens again, cannot connect, or talks to a server that is too
//! old.

use super::{SOON, client, message, publish, subscriber_connections};
use crate::fake::Fake;
use crate::support::{ms, soon, tasks};
use firth_redis::config::Liveness;
use firth_redis::mux::{Mux, MuxConfig};
use firth_redis::{CallError, Client, Config, ConnectError, LostCause};
use firth_testkit::ports::Port;
use firth_testkit::{Flavor, Proxy, RedisServer, on_both, wait};
use std::time::{Duration, Instant};

on_both!(
    c06_a_refused_barrier_ends_its_unsubscribe_and_disturbs_no_other_channel,
    c06_a_refused_idle_ping_is_never_the_answer_to_a_subscribe,
    c13_every_subscribe_at_a_resp2_server_fails_at_once,
);

/// A mux that waits this long for a confirmation.
fn patient(client: &Client, limit: Duration) -> Mux {
    let mut config = MuxConfig::default();
    config.subscribe_timeout = limit;
    client.mux_with(config)
}

/// A server whose user may do everything but PING.
async fn without_ping(flavor: Flavor) -> RedisServer {
    RedisServer::builder().flavor(flavor).acl_user("app", "on >pw +@all -ping ~* &*").start().await
}

async fn c06_a_refused_barrier_ends_its_unsubscribe_and_disturbs_no_other_channel(flavor: Flavor) {
    let server = without_ping(flavor).await;
    let client = Client::connect(server.tcp_url().replace("redis://", "redis://app:pw@")).await.unwrap();
    let mut kept = client.mux().subscribe(["a"]).await.unwrap();
    for _ in 0..3 {
        let gone = client.mux().subscribe(["b", "c"]).await.unwrap();
        gone.unsubscribe().await.expect("the refused PING stands behind the end of the subscription");
        assert_eq!(publish(&client, "b", "x").await, 0);
    }
    let mut later = client.mux().subscribe(["d"]).await.unwrap();
    for name in ["a", "d"] {
        assert_eq!(publish(&client, name, "1").await, 1);
    }
    for subscription in [&mut kept, &mut later] {
        let first = soon(subscription.next()).await.unwrap();
        assert!(first.message().is_some(), "no false gap: {first:?}");
    }
}

async fn c06_a_refused_idle_ping_is_never_the_answer_to_a_subscribe(flavor: Flavor) {
    let server = without_ping(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut config = Config::from_url(&proxy.url().replace("redis://", "redis://app:pw@")).unwrap();
    config.liveness = Some(Liveness { ping_after: ms(10), dead_after: Duration::from_secs(20) });
    let client = Client::connect(config).await.unwrap();
    let mut kept = client.mux().subscribe(["a"]).await.unwrap();
    // An idle PING is under way nearly all the time.
    proxy.delay(ms(50));
    let mut held = Vec::new();
    for n in 0..10 {
        held.push(client.mux().subscribe([format!("b{n}")]).await.expect("the PING was refused, not this"));
    }
    proxy.heal().await;
    assert_eq!(publish(&client, "a", "1").await, 1);
    let first = soon(kept.next()).await.unwrap();
    assert!(first.message().is_some(), "no false gap: {first:?}");
}

async fn c13_every_subscribe_at_a_resp2_server_fails_at_once(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).config("rename-command HELLO \"\"").start().await;
    let client = client(&server).await;
    let mux = patient(&client, Duration::from_secs(600));
    for name in ["a", "b", "a"] {
        let error = soon(mux.subscribe([name])).await.unwrap_err();
        assert!(matches!(&error, CallError::Invalid(why) if why.contains("RESP3")), "{error:?}");
        let error = soon(mux.subscribe_sharded([name])).await.unwrap_err();
        assert!(matches!(&error, CallError::Invalid(why) if why.contains("RESP3")), "{error:?}");
    }
    let stats = mux.stats();
    assert_eq!((stats.unserved, stats.subscriptions, stats.connections), (0, 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c04_a_client_that_opens_again_subscribes_again() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mut before = client.mux().subscribe(["x"]).await.unwrap();
    client.close().await;
    assert!(soon(before.next()).await.is_none());
    assert!(matches!(client.mux().subscribe(["x"]).await, Err(CallError::Closed { .. })));
    for round in 0..2 {
        assert!(client.reopen());
        let mut again = client.mux().subscribe(["x"]).await.unwrap();
        assert_eq!(publish(&client, "x", "1").await, 1);
        assert_eq!(&message(&mut again).await.payload[..], b"1", "round {round}");
        client.close().await;
        assert!(soon(again.next()).await.is_none());
    }
    wait::until(SOON, "no task is left", async || tasks() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c15_closing_a_client_ends_every_mux_that_it_made() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let muxes = [client.mux_with(MuxConfig::default()), client.mux_with(MuxConfig::default())];
    let mut held = Vec::new();
    for mux in &muxes {
        held.push(mux.subscribe(["x"]).await.unwrap());
    }
    let mut shared = client.mux().subscribe(["x"]).await.unwrap();
    client.close().await;
    wait::until(SOON, "no connection is left", async || subscriber_connections(&server).await == 0).await;
    for subscription in held.iter_mut().chain([&mut shared]) {
        assert!(soon(subscription.next()).await.is_none());
    }
    let late = client.mux_with(MuxConfig::default());
    assert!(matches!(late.subscribe(["x"]).await, Err(CallError::Closed { .. })));
    wait::until(SOON, "no task is left", async || tasks() == 0).await;
    drop((muxes, late));
}

#[tokio::test]
async fn c05_a_subscribe_that_meets_no_server_names_the_cause() {
    let nobody = Port::reserve();
    for scheme in ["redis", "redis+cluster"] {
        let client = Client::lazy(format!("{scheme}://127.0.0.1:{}", nobody.number())).unwrap();
        let mux = patient(&client, ms(200));
        // On a busy machine the first try to connect may take longer than the call.
        let error = wait::until_some(SOON, async || {
            let error = mux.subscribe(["a"]).await.unwrap_err();
            assert!(!error.may_have_run() && error.is_retryable(), "{error:?}");
            (!matches!(error, CallError::Timeout { .. })).then_some(error)
        });
        let error = error.await.expect("the try fails");
        let CallError::Down { cause: LostCause::Reconnect(cause) } = &error else { panic!("{error:?}") };
        let known = matches!(&**cause, ConnectError::Connect { .. } | ConnectError::NoTopology { .. });
        assert!(known && cause.to_string().contains("127.0.0.1"), "{cause}");
        client.close().await;
    }
}

#[tokio::test]
async fn c05_a_wrong_password_ends_every_subscribe_at_once() {
    let server = RedisServer::builder().password("right").start().await;
    let client = Client::lazy(format!("redis://:wrong@127.0.0.1:{}", server.port())).unwrap();
    let mux = patient(&client, Duration::from_secs(600));
    for _ in 0..3 {
        let error = soon(mux.subscribe(["a"])).await.unwrap_err();
        let CallError::Down { cause: LostCause::Reconnect(cause) } = &error else { panic!("{error:?}") };
        assert!(matches!(**cause, ConnectError::Refused { .. }), "{cause}");
        assert!(!error.is_retryable() && !error.may_have_run());
    }
    client.close().await;
}

#[tokio::test]
async fn c05_a_timeout_says_whether_the_subscribe_was_sent() {
    let greets = Fake::answering_hello(|_, peer| peer.fall_silent()).await;
    let mute = Fake::bare(|_, peer| peer.fall_silent()).await;
    for (server, limit, expected) in [(&greets, ms(2000), true), (&mute, ms(200), false)] {
        let client = Client::lazy(server.url()).unwrap();
        let started = Instant::now();
        let error = soon(patient(&client, limit).subscribe(["a"])).await.unwrap_err();
        assert!(matches!(error, CallError::Timeout { sent, .. } if sent == expected), "{error:?}");
        assert!(started.elapsed() >= limit);
        client.close().await;
    }
}

/// A look at a mux costs the same however many channels it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c18_a_look_at_the_stats_does_not_walk_all_channels() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let names: Vec<String> = (0..100_000).map(|n| format!("c{n}")).collect();
    let held = client.mux().subscribe(names).timeout(SOON).await.unwrap();
    let started = Instant::now();
    for _ in 0..500 {
        assert_eq!(client.mux().stats().channels, 100_000);
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    drop(held);
    wait::until(SOON, "nothing is held", async || client.mux().stats().channels == 0).await;
}
