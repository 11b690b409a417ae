//! FAILED refuses, RECONNECTING queues, tries keep their distance, and one loss starts one
//! reconnection.

use crate::fake::{Fake, Peer};
use crate::support::*;
use firth_redis::config::Liveness;
use firth_redis::{
    Backoff, CallError, Client, ConnectError, ConnectionEventKind, ConnectionPhase, ConnectionState,
    LostCause, cmd,
};
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

on_both!(
    while_failed_requests_are_refused_and_have_not_run,
    while_reconnecting_requests_are_queued_and_then_answered,
    a_request_that_expired_in_the_queue_never_runs,
    a_request_that_was_dropped_in_the_queue_never_runs,
    many_lost_requests_start_one_reconnection,
    an_idle_connection_notices_that_its_peer_is_gone,
);

async fn while_failed_requests_are_refused_and_have_not_run(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(once(server.tcp_url())).await;
    server.kill().await;
    reaches(&client, ConnectionState::Failed).await;
    let error = client.call::<i64>(cmd("INCR").key("n")).await.unwrap_err();
    assert!(matches!(error, CallError::Down { .. }), "{error:?}");
    assert!(!error.may_have_run() && error.is_retryable());
    assert_eq!(client.in_flight(), 0);
    let error = client.pipeline::<Vec<i64>>(firth_redis::pipe().then(cmd("PING"))).await.unwrap_err();
    assert!(matches!(error, CallError::Down { .. }), "{error:?}");
}

/// A client whose connection was cut and whose next one does not get through its handshake.
async fn reconnecting(flavor: Flavor) -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = connect(quick(proxy.url())).await;
    proxy.stall(Direction::Both);
    proxy.cut().await;
    reaches(&client, ConnectionState::Reconnecting).await;
    (server, proxy, client)
}

async fn while_reconnecting_requests_are_queued_and_then_answered(flavor: Flavor) {
    let (_server, proxy, client) = reconnecting(flavor).await;
    let queued = Many::<usize>::start(&client, 50, |n| cmd("ECHO").arg(n)).await;
    assert_eq!((client.state(), client.in_flight()), (ConnectionState::Reconnecting, 50));
    proxy.heal().await;
    for (n, answer) in queued.results().await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), n);
    }
    assert_eq!(proxy.connections(), 2);
}

async fn a_request_that_expired_in_the_queue_never_runs(flavor: Flavor) {
    let (server, proxy, client) = reconnecting(flavor).await;
    let kept = Many::<i64>::start(&client, 3, |_| cmd("INCR").key("kept")).await;
    let begun = Instant::now();
    let late = client.call::<i64>(cmd("INCR").key("late")).timeout(ms(50)).await.unwrap_err();
    assert!(begun.elapsed() >= ms(49) && begun.elapsed() < ms(1000), "{:?}", begun.elapsed());
    assert!(matches!(late, CallError::Timeout { sent: false, .. }) && !late.may_have_run(), "{late:?}");
    let after = Many::<i64>::start(&client, 3, |_| cmd("INCR").key("kept")).await;
    proxy.heal().await;
    assert!(kept.results().await.into_iter().all(|n| n.is_ok()));
    assert!(after.results().await.into_iter().all(|n| n.is_ok()));
    assert_eq!(server.command(&["GET", "kept"]).await.int(), 6);
    assert!(server.command(&["GET", "late"]).await.is_nil(), "a promise was broken");
}

async fn a_request_that_was_dropped_in_the_queue_never_runs(flavor: Flavor) {
    let (server, proxy, client) = reconnecting(flavor).await;
    {
        let mut dropped = Box::pin(client.call::<i64>(cmd("INCR").key("dropped")));
        assert!(futures_util::poll!(&mut dropped).is_pending());
    }
    let kept = Many::<i64>::start(&client, 1, |_| cmd("INCR").key("kept")).await;
    proxy.heal().await;
    assert_eq!(kept.results().await.remove(0).unwrap(), 1);
    assert!(server.command(&["GET", "dropped"]).await.is_nil());
    settles(&client).await;
}

async fn many_lost_requests_start_one_reconnection(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = connect(quick(proxy.url())).await;
    let mut events = client.events();
    proxy.stall(Direction::ToClient);
    let lost = Many::<String>::start(&client, 1000, |_| cmd("PING")).await;
    proxy.cut().await;
    for result in lost.results().await {
        assert!(matches!(result, Err(CallError::Lost { .. })), "{result:?}");
    }
    proxy.heal().await;
    soon(client.ready()).await.unwrap();
    let kinds = [soon(events.next()).await.unwrap().kind, soon(events.next()).await.unwrap().kind];
    assert_eq!(kinds, [ConnectionEventKind::Disconnected, ConnectionEventKind::Connected]);
    echo(&client, "one").await.unwrap();
    assert_eq!(proxy.connections(), 2);
}

async fn an_idle_connection_notices_that_its_peer_is_gone(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = once(server.tcp_url());
    config.liveness = None; // nothing is ever asked for
    let client = connect(config).await;
    let mut events = client.events();
    server.kill().await;
    let lost = soon(events.next()).await.unwrap();
    assert_eq!((lost.kind, lost.phase), (ConnectionEventKind::Disconnected, ConnectionPhase::Runtime));
    assert!(matches!(lost.cause, Some(LostCause::Eof | LostCause::Io(_))), "{lost:?}");
}

#[tokio::test]
async fn tries_keep_the_distance_that_the_schedule_says() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = times.clone();
    let fake = Fake::bare(move |_, _peer: Peer| {
        seen.lock().unwrap().push(Instant::now());
        async {}
    })
    .await;
    let mut config = quick(fake.url());
    config.reconnect = Some(Backoff { immediate: 2, first: ms(40), max: ms(160), factor: 2.0, jitter: 0.0 });
    let client = Client::lazy(config).unwrap();
    wait::until(LONG, "seven tries were made", async || fake.connections() >= 7).await;
    client.close().await;
    let times = times.lock().unwrap().clone();
    let gaps: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).take(6).collect();
    let wanted = [0, 0, 40, 80, 160, 160];
    for (gap, wanted) in gaps.iter().zip(wanted) {
        // the times are taken by another task, hence a little slack
        assert!(*gap + ms(15) >= ms(wanted), "{gaps:?}");
    }
}

#[tokio::test]
async fn connections_that_break_at_once_are_no_storm() {
    let fake = Fake::answering_hello(|_, _peer: Peer| async {}).await;
    let mut config = quick(fake.url());
    config.reconnect = Some(Backoff { immediate: 3, ..Backoff::fixed(Duration::from_secs(3600)) });
    let client = Client::lazy(config).unwrap();
    wait::until(LONG, "the immediate tries are used up", async || fake.connections() >= 3).await;
    reaches(&client, ConnectionState::Failed).await;
    let error = client.call::<String>(cmd("PING")).await.unwrap_err();
    assert!(matches!(error, CallError::Down { cause: LostCause::Eof | LostCause::Io(_) }), "{error:?}");
    assert_eq!(fake.connections(), 3);
}

#[tokio::test]
async fn the_first_try_decides_whether_connect_succeeds() {
    let fake = Fake::bare(|_, _peer: Peer| async {}).await;
    let before = tasks();
    let mut config = quick(fake.url());
    config.reconnect = Some(Backoff { immediate: 1_000_000, ..Backoff::default() });
    let error = soon(Client::connect(config)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Broken { .. }), "{error:?}");
    assert!(fake.connections() <= 2, "a retry may have begun, no more");
    wait::until(LONG, "the task is gone", async || tasks() <= before).await;
}

#[tokio::test]
async fn without_reconnection_a_lost_connection_stays_closed_and_keeps_its_error() {
    let server = RedisServer::start(Flavor::Redis).await;
    let mut config = quick(server.tcp_url());
    config.reconnect = None;
    let client = connect(config).await;
    let mut events = client.events();
    server.kill().await;
    reaches(&client, ConnectionState::Closed).await;
    assert!(matches!(client.last_error(), Some(LostCause::Eof | LostCause::Io(_))));
    assert_eq!(soon(events.next()).await.unwrap().kind, ConnectionEventKind::Disconnected);
    let closed = soon(events.next()).await.unwrap();
    assert_eq!((closed.kind, closed.phase), (ConnectionEventKind::Closed, ConnectionPhase::Close));
    assert!(closed.cause.is_some(), "nobody asked for this end");
    assert!(matches!(client.ready().await, Err(ConnectError::Broken { .. })));
    server.restart().await;
    assert!(client.reopen());
    soon(client.ready()).await.unwrap();
    echo(&client, "again").await.unwrap();
}

#[tokio::test]
async fn a_slow_upload_is_a_sign_of_life() {
    const SIZE: usize = 24 << 20;
    // about 8 MB/s, which takes longer than a silent server is given
    let fake = Fake::answering_hello(|_, mut peer| async move {
        peer.take_slowly(SIZE, 160 << 10, ms(20)).await;
        peer.say(b"+OK\r\n").await;
        peer.fall_silent().await;
    })
    .await;
    let mut config = once(fake.url());
    config.liveness = Some(Liveness { ping_after: ms(50), dead_after: ms(1800) });
    let client = connect(config).await;
    let begun = Instant::now();
    client.call::<()>(cmd("SET").key("k").arg(&vec![b'v'; SIZE][..])).no_timeout().await.unwrap();
    assert!(begun.elapsed() > ms(1900), "the upload was not slow: {:?}", begun.elapsed());
}
