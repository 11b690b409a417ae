//! What every subscriber does first, on a single server.

use super::{SOON, asked, client, message, number, publish, signal, spublish, subscriber_connections};
use crate::support::{ms, soon, tasks};
use firth_redis::mux::{Buffer, GapReason, MuxConfig, OverflowPolicy, Signal, SubscriptionKind};
use firth_redis::{CallError, Client, cmd};
use firth_testkit::{Flavor, Proxy, RedisServer, on_both, wait};
use std::time::{Duration, Instant};

on_both!(
    a_message_reaches_every_subscriber_of_its_kind_and_no_other,
    defect_1_equal_names_of_different_kinds_are_different_subscriptions,
    subscribers_of_one_channel_share_one_server_subscription,
    dropping_a_subscriber_ends_only_its_own_subscription,
    defect_7_ten_thousand_names_are_one_round_trip,
    a_broken_connection_is_told_and_mended,
    a_refused_name_takes_the_whole_call_back,
    close_ends_everything_and_what_came_can_still_be_read,
    ten_publishers_at_once_lose_nothing,
);

async fn a_message_reaches_every_subscriber_of_its_kind_and_no_other(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mut plain = client.mux().subscribe(["news.de", "other"]).await.unwrap();
    let mut pattern = client.mux().subscribe_pattern(["news.*"]).await.unwrap();
    let mut sharded = client.mux().subscribe_sharded(["news.de"]).await.unwrap();
    assert_eq!(publish(&client, "news.de", "hallo").await, 2, "one for the channel, one for the pattern");
    assert_eq!(spublish(&client, "news.de", "geteilt").await, 1);
    let got = message(&mut plain).await;
    assert_eq!((&got.channel[..], got.pattern, &got.payload[..]), (&b"news.de"[..], None, &b"hallo"[..]));
    let got = message(&mut pattern).await;
    assert_eq!((&got.channel[..], got.pattern.as_deref()), (&b"news.de"[..], Some(&b"news.*"[..])));
    assert_eq!(&message(&mut sharded).await.payload[..], b"geteilt");
    assert_eq!(plain.pending() + pattern.pending() + sharded.pending(), 0);
}

async fn defect_1_equal_names_of_different_kinds_are_different_subscriptions(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let plain = client.mux().subscribe(["x"]).await.unwrap();
    let mut pattern = client.mux().subscribe_pattern(["x"]).await.unwrap();
    let mut sharded = client.mux().subscribe_sharded(["x"]).await.unwrap();
    plain.unsubscribe().await.unwrap();
    assert_eq!(publish(&client, "x", "1").await, 1, "only the pattern is left");
    assert_eq!(spublish(&client, "x", "2").await, 1);
    assert_eq!(&message(&mut pattern).await.payload[..], b"1");
    assert_eq!(&message(&mut sharded).await.payload[..], b"2");
    let stats = client.mux().stats();
    assert_eq!((stats.channels, stats.patterns, stats.sharded, stats.connections), (0, 1, 1, 1));
}

async fn subscribers_of_one_channel_share_one_server_subscription(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mut many = Vec::new();
    for _ in 0..50 {
        many.push(client.mux().subscribe(["shared"]).await.unwrap());
    }
    assert_eq!(publish(&client, "shared", "one").await, 1, "the server sees one subscriber");
    for subscription in &mut many {
        assert_eq!(&message(subscription).await.payload[..], b"one");
    }
    assert_eq!((client.mux().stats().subscriptions, client.mux().stats().channels), (50, 1));
}

async fn dropping_a_subscriber_ends_only_its_own_subscription(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let first = client.mux().subscribe(["c", "only-mine"]).await.unwrap();
    let mut second = client.mux().subscribe(["c"]).await.unwrap();
    drop(first);
    wait::until(SOON, "the server forgets only-mine", async || publish(&client, "only-mine", "?").await == 0)
        .await;
    assert_eq!(publish(&client, "c", "still").await, 1);
    assert_eq!(&message(&mut second).await.payload[..], b"still");
    second.unsubscribe().await.unwrap();
    assert_eq!(publish(&client, "c", "gone").await, 0, "unsubscribe returns after the server's confirmation");
}

#[tokio::test]
async fn sub_69_a_message_knows_its_kind_and_when_it_came() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mux = client.mux();
    let plain = mux.subscribe(["a"]).await.unwrap();
    let pattern = mux.subscribe_pattern(["a*"]).await.unwrap();
    let sharded = mux.subscribe_sharded(["a"]).await.unwrap();
    let before = Instant::now();
    publish(&client, "a", "1").await;
    spublish(&client, "a", "1").await;
    for mut subscription in [plain, pattern, sharded] {
        wait::until(SOON, "the message is there", async || subscription.pending() == 1).await;
        let there = Instant::now();
        let read = message(&mut subscription).await;
        assert_eq!(read.kind, subscription.kind());
        assert!(read.received >= before && read.received <= there, "the time of receipt, not of reading");
    }
}

/// Zero of everything is too little; the mux takes the least that works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mux_with_the_least_of_everything_works() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mut config = MuxConfig::default();
    (config.stalled_after, config.timed_out_after) = (Duration::ZERO, Duration::ZERO);
    (config.read_ahead, config.callback_workers, config.max_callbacks) = (0, 0, 0);
    config.close_timeout = Duration::ZERO;
    config.buffer = Buffer { bytes: 0, overflow: OverflowPolicy::Block };
    let mux = client.mux_with(config);
    let real = mux.config();
    assert_eq!((real.stalled_after, real.timed_out_after), (ms(100), Duration::from_secs(1)));
    assert_eq!((real.read_ahead, real.callback_workers, real.max_callbacks), (4 << 10, 1, 1));
    assert_eq!(real.buffer.bytes, 1 << 10);
    // Messages that are larger than all buffers.
    let mut all = mux.subscribe(["a"]).await.unwrap();
    let client = client.clone();
    let big = "x".repeat(10_000);
    let publisher = tokio::spawn(async move {
        for n in 0..50 {
            assert_eq!(publish(&client, "a", &format!("{n} {big}")).await, 1);
        }
    });
    for n in 0..50 {
        assert_eq!(number(&message(&mut all).await), n);
    }
    publisher.await.unwrap();
    let stuck = mux.subscribe(["b"]).for_each(|_, _| std::future::pending()).await.unwrap();
    let second = mux.subscribe(["c"]).for_each(|_, _| async {}).await;
    assert!(matches!(second, Err(CallError::Full { limit: 1, .. })));
    soon(mux.close()).await;
    drop(stuck);
}

/// With a round trip of 50 ms, one name after the other would take minutes.
async fn defect_7_ten_thousand_names_are_one_round_trip(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(proxy.url()).await.unwrap();
    let warm = client.mux().subscribe(["warm"]).await.unwrap();
    proxy.delay(Duration::from_millis(50));
    let names: Vec<String> = (0..10_000).map(|n| format!("channel-{n}")).collect();
    let started = std::time::Instant::now();
    let mut all = client.mux().subscribe_sharded(names.clone()).await.unwrap();
    let plain = client.mux().subscribe(names).await.unwrap();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(asked(&server, "subscribe").await < 50, "ordinary names go in bulk");
    assert!(asked(&server, "ssubscribe").await < 8_500, "sharded ones by slot");
    proxy.heal().await;
    assert_eq!(spublish(&client, "channel-9999", "x").await, 1);
    assert_eq!(&message(&mut all).await.channel[..], b"channel-9999");
    plain.unsubscribe().await.unwrap();
    warm.unsubscribe().await.unwrap();
    let stats = client.mux().stats();
    assert_eq!((stats.channels, stats.sharded, stats.connections), (0, 10_000, 1));
}

async fn a_broken_connection_is_told_and_mended(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mut subscription = client.mux().subscribe(["a", "b"]).await.unwrap();
    publish(&client, "a", "before").await;
    let killed: i64 = client.call(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await.unwrap();
    assert_eq!(killed, 1);
    assert_eq!(&message(&mut subscription).await.payload[..], b"before");
    assert!(
        matches!(signal(&mut subscription).await, Signal::NodeLost { channels, .. } if channels.len() == 2)
    );
    assert!(
        matches!(signal(&mut subscription).await, Signal::Gap { reason: GapReason::NodeLost, channels, .. } if channels.len() == 2)
    );
    assert!(
        matches!(signal(&mut subscription).await, Signal::Resumed { channels, .. } if channels.len() == 2)
    );
    assert_eq!(publish(&client, "b", "after").await, 1);
    assert_eq!(&message(&mut subscription).await.payload[..], b"after");
}

async fn a_refused_name_takes_the_whole_call_back(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).acl_user("app", "on >pw +@all ~* &ok:*").start().await;
    let url = server.tcp_url().replace("redis://", "redis://app:pw@");
    let client = Client::connect(url).await.unwrap();
    let mut fine = client.mux().subscribe(["ok:1"]).await.unwrap();
    let error = client.mux().subscribe(["ok:2", "secret"]).await.unwrap_err();
    assert_eq!(error.code(), Some("NOPERM"), "{error}");
    wait::until(SOON, "the server forgets ok:2", async || publish(&client, "ok:2", "x").await == 0).await;
    wait::until(SOON, "the mux forgets ok:2", async || client.mux().stats().channels == 1).await;
    let error = client.mux().subscribe([""]).await.unwrap_err();
    assert!(matches!(error, CallError::Invalid(_)));
    assert_eq!(publish(&client, "ok:1", "x").await, 1);
    assert_eq!(&message(&mut fine).await.payload[..], b"x");
    assert_eq!(fine.kind(), SubscriptionKind::Channel);
}

async fn close_ends_everything_and_what_came_can_still_be_read(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let mut subscription = client.mux().subscribe(["c"]).await.unwrap();
    publish(&client, "c", "last words").await;
    wait::until(SOON, "the message is there", async || subscription.pending() == 1).await;
    client.mux().close().await;
    assert_eq!(&message(&mut subscription).await.payload[..], b"last words");
    assert!(subscription.next().await.is_none());
    assert!(matches!(client.mux().subscribe(["d"]).await, Err(CallError::Closed { .. })));
}

async fn ten_publishers_at_once_lose_nothing(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = client(&server).await;
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let roomy = Buffer { bytes: 16 << 20, overflow: OverflowPolicy::DropNewest };
    let mut all = client.mux().subscribe(names.clone()).buffer(roomy).await.unwrap();
    let publishers: Vec<_> = names
        .into_iter()
        .map(|channel| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..1_000 {
                    assert_eq!(publish(&client, &channel, &n.to_string()).await, 1);
                }
            })
        })
        .collect();
    let mut next = std::collections::HashMap::new();
    for _ in 0..10_000 {
        let message = message(&mut all).await;
        let expected: &mut u64 = next.entry(message.channel.clone()).or_default();
        assert_eq!(number(&message), *expected, "in order");
        *expected += 1;
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    assert_eq!((all.pending(), client.mux().stats().dropped), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_takes_its_subscriptions_with_it() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mut subscription = client.mux().subscribe(["c"]).await.unwrap();
    client.close().await;
    assert!(subscription.next().await.is_none());
    assert_eq!(subscriber_connections(&server).await, 0);
    drop((client, subscription));
    wait::until(SOON, "no task is left", async || tasks() == 0).await;
}

/// The client may be dropped while a subscriber listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_outlives_the_handles_of_its_client() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = client(&server).await;
    let mut subscription = client.mux().subscribe(["c"]).await.unwrap();
    drop(client);
    server.order(&["PUBLISH", "c", "1"]).await;
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
    drop(subscription);
    wait::until(SOON, "no connection is left", async || subscriber_connections(&server).await == 0).await;
    wait::until(SOON, "no task is left", async || tasks() == 0).await;
}
