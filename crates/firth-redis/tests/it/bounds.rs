//! Nothing is unbounded (invariant 4): requests, bytes and blocking commands, with the choice of
//! failing or waiting.

use crate::support::*;
use firth_redis::config::{FullQueuePolicy, QueueLimits};
use firth_redis::{CallError, Client, Config, Fault, cmd};
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::time::Instant;

on_both!(
    a_full_queue_fails_or_makes_wait_as_configured,
    waiting_for_room_respects_the_deadline,
    waiters_are_refused_when_the_connection_is_lost,
    blocking_commands_are_limited_in_number,
);

/// A client whose server does not answer before the proxy is healed.
async fn stalled(flavor: Flavor, change: impl FnOnce(&mut Config)) -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut config = quick(proxy.url());
    config.timeouts.request = None;
    change(&mut config);
    let client = connect(config).await;
    proxy.stall(Direction::Both);
    (server, proxy, client)
}

async fn a_full_queue_fails_or_makes_wait_as_configured(flavor: Flavor) {
    let limits = |when_full| QueueLimits { requests: 4, when_full, ..QueueLimits::default() };
    let (_server, proxy, client) = stalled(flavor, |c| c.queue = limits(FullQueuePolicy::Fail)).await;
    let first = Many::<usize>::start(&client, 4, |n| cmd("ECHO").arg(n)).await;
    let full = client.call::<usize>(cmd("ECHO").arg(9)).await.unwrap_err();
    assert!(matches!(full, CallError::Full { limit: 4, .. }), "{full:?}");
    assert!(!full.may_have_run() && full.is_retryable() && full.fault() == Fault::Load);
    proxy.heal().await;
    assert!(first.results().await.into_iter().enumerate().all(|(n, answer)| answer.unwrap() == n));

    let (_server, proxy, client) = stalled(flavor, |c| c.queue = limits(FullQueuePolicy::Wait)).await;
    let calls: Vec<_> = (0..500usize)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<usize>(cmd("ECHO").arg(n)).await })
        })
        .collect();
    wait::until(LONG, "the queue is full", async || client.in_flight() == 4).await;
    proxy.heal().await;
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(soon(call).await.unwrap().unwrap(), n, "every waiter is served");
    }
    settles(&client).await;
}

async fn waiting_for_room_respects_the_deadline(flavor: Flavor) {
    let (server, proxy, client) =
        stalled(flavor, |c| c.queue = QueueLimits { requests: 2, ..QueueLimits::default() }).await;
    let first = Many::<i64>::start(&client, 2, |_| cmd("INCR").key("sent")).await;
    let begun = Instant::now();
    let waiting = (0..20).map(|_| client.call::<i64>(cmd("INCR").key("waited")).timeout(ms(60)));
    for error in futures_util::future::join_all(waiting).await {
        let error = error.unwrap_err();
        assert!(
            matches!(error, CallError::Timeout { sent: false, .. }) && !error.may_have_run(),
            "{error:?}"
        );
    }
    assert!(begun.elapsed() >= ms(60) && begun.elapsed() < ms(1500), "{:?}", begun.elapsed());
    proxy.heal().await;
    assert!(first.results().await.into_iter().all(|n| n.is_ok()));
    assert!(server.command(&["GET", "waited"]).await.is_nil());
}

async fn waiters_are_refused_when_the_connection_is_lost(flavor: Flavor) {
    let (_server, proxy, client) = stalled(flavor, |c| {
        c.queue = QueueLimits { requests: 1, ..QueueLimits::default() };
        c.reconnect = once("redis://").reconnect;
    })
    .await;
    let first = Many::<i64>::start(&client, 1, |_| cmd("INCR").key("n")).await;
    let mut waiters: Vec<_> = (0..10).map(|_| Box::pin(client.call::<i64>(cmd("INCR").key("n")))).collect();
    for waiter in &mut waiters {
        assert!(futures_util::poll!(waiter).is_pending());
    }
    proxy.cut().await;
    for error in soon(futures_util::future::join_all(waiters)).await {
        let error = error.unwrap_err();
        assert!(matches!(error, CallError::Down { .. }) && !error.may_have_run(), "{error:?}");
    }
    assert!(matches!(first.results().await[..], [Err(CallError::Lost { .. })]));
}

async fn blocking_commands_are_limited_in_number(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = quick(server.tcp_url());
    config.lanes.blocking = 2;
    let client = connect(config).await;
    let first = Many::<(String, i64)>::start(&client, 2, |_| cmd("BLPOP").key("l").arg(0)).await;
    let full = client.call::<(String, i64)>(cmd("BLPOP").key("l").arg(0)).await.unwrap_err();
    assert!(matches!(full, CallError::Full { limit: 2, .. }) && !full.may_have_run(), "{full:?}");
    client.call::<()>(cmd("RPUSH").key("l").arg(1).arg(2)).await.unwrap();
    let mut popped: Vec<i64> = first.results().await.into_iter().map(|r| r.unwrap().1).collect();
    popped.sort_unstable();
    assert_eq!(popped, [1, 2]);
    client.call::<Option<(String, i64)>>(cmd("BLPOP").key("l").arg(0.01)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_bytes_are_bounded() {
    const LIMIT: usize = 1 << 20;
    const VALUE: usize = 100 << 10;
    let (_server, proxy, client) = stalled(Flavor::Redis, |c| {
        c.queue = QueueLimits { bytes: LIMIT, when_full: FullQueuePolicy::Fail, ..QueueLimits::default() };
    })
    .await;
    let value = "x".repeat(VALUE);
    let mut queued = Vec::new();
    let full = loop {
        let mut call = Box::pin(client.call::<()>(cmd("SET").key(queued.len()).arg(&value)));
        match futures_util::poll!(&mut call) {
            std::task::Poll::Ready(result) => break result.unwrap_err(),
            std::task::Poll::Pending => queued.push(call),
        }
        assert!(queued.len() * VALUE < 64 << 20, "more was taken than sockets can hold");
    };
    assert!(matches!(full, CallError::Full { limit: LIMIT, .. }), "{full:?}");
    proxy.heal().await;
    for result in soon(futures_util::future::join_all(queued)).await {
        result.unwrap();
    }
    // an empty output takes a request of any size
    client.call::<()>(cmd("SET").key("huge").arg("x".repeat(2 * LIMIT))).await.unwrap();
    settles(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_for_bytes_are_all_served() {
    let (_server, proxy, client) = stalled(Flavor::Redis, |c| {
        c.queue =
            QueueLimits { bytes: 256 << 10, when_full: FullQueuePolicy::Wait, ..QueueLimits::default() };
    })
    .await;
    let calls: Vec<_> = (0..400usize)
        .map(|n| {
            let client = client.clone();
            // sizes from 1 to 100 KiB, so that small ones wait behind big ones
            let value = "x".repeat(1024 + (n * 7919) % (99 << 10));
            tokio::spawn(async move { client.call::<usize>(cmd("APPEND").key(n).arg(value)).await })
        })
        .collect();
    wait::until(LONG, "some are under way", async || client.in_flight() > 1).await;
    proxy.heal().await;
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(soon(call).await.unwrap().unwrap(), 1024 + (n * 7919) % (99 << 10));
    }
    settles(&client).await;
}
