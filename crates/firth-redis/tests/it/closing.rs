//! The end of a client: drained on request, in time with any server, and with nothing left behind
//! (invariant 9).

use crate::fake::Fake;
use crate::support::*;
use firth_redis::{CallError, Client, ConnectError, ConnectionState, cmd, pipe};
use firth_testkit::{Certs, Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::time::Instant;

on_both!(
    close_finishes_what_is_under_way,
    close_on_a_stuck_server_ends_within_its_time,
    the_last_handle_takes_the_connections_along,
    a_closed_client_can_be_opened_again,
    after_close_no_task_and_no_connection_is_left,
);

async fn close_finishes_what_is_under_way(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = connect(proxy.url()).await;
    proxy.stall(Direction::ToClient);
    let pending = Many::<usize>::start(&client, 50, |n| cmd("ECHO").arg(n)).await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    reaches(&client, ConnectionState::Closing).await;
    let refused = client.call::<i64>(cmd("INCR").key("n")).await.unwrap_err();
    assert!(matches!(refused, CallError::Closed { sent: false }) && !refused.may_have_run(), "{refused:?}");
    assert!(!closing.is_finished());
    proxy.heal().await;
    for (n, answer) in pending.results().await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), n);
    }
    soon(closing).await.unwrap();
    assert_eq!(client.state(), ConnectionState::Closed);
    assert!(matches!(client.ready().await, Err(ConnectError::Closed)));
}

async fn close_on_a_stuck_server_ends_within_its_time(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = quick(server.tcp_url());
    config.timeouts.close = ms(100);
    let client = connect(config).await;
    server.freeze();
    let pending = Many::<i64>::start(&client, 10, |n| cmd("INCR").key(n)).await;
    let bulk = {
        let client = client.clone();
        let value = "x".repeat(200 << 10);
        tokio::spawn(async move { client.call::<()>(cmd("SET").key("k").arg(value)).no_timeout().await })
    };
    wait::until(LONG, "the big one is under way", async || client.in_flight() == 11).await;
    let begun = Instant::now();
    client.close().await;
    assert!(begun.elapsed() >= ms(99) && begun.elapsed() < ms(1500), "{:?}", begun.elapsed());
    for error in pending.results().await {
        let error = error.unwrap_err();
        assert!(matches!(error, CallError::Closed { sent: true }) && error.may_have_run(), "{error:?}");
    }
    let error = soon(bulk).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Closed { sent: false }), "its connection never stood: {error:?}");
    wait::until(LONG, "all tasks are gone", async || tasks() == 0).await;
    server.thaw();
}

/// Connections of ours at the server; the fixture's own is the one that asks.
async fn connections(server: &RedisServer) -> usize {
    server.command(&["CLIENT", "LIST"]).await.text().lines().count() - 1
}

async fn the_last_handle_takes_the_connections_along(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let other = client.clone();
    client.call::<()>(cmd("SET").key("big").arg("x".repeat(200 << 10))).await.unwrap();
    client.call::<Option<(String, String)>>(cmd("BLPOP").key("l").arg(0.01)).await.unwrap();
    assert_eq!(connections(&server).await, 3, "shared, bulk, blocking");
    drop(client);
    echo(&other, "one handle is enough").await.unwrap();
    drop(other);
    wait::until(LONG, "the server sees no client", async || connections(&server).await == 0).await;
    wait::until(LONG, "no task is left", async || tasks() == 0).await;
}

async fn a_closed_client_can_be_opened_again(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    for round in 0..3 {
        assert!(!client.reopen(), "it is open");
        echo(&client, "shared").await.unwrap();
        client.call::<()>(cmd("SET").key("big").arg("x".repeat(200 << 10))).await.unwrap();
        client.call::<Option<(String, String)>>(cmd("BLPOP").key("l").arg(0.01)).await.unwrap();
        client.close().await;
        assert_eq!(client.state(), ConnectionState::Closed, "round {round}");
        for command in
            [cmd("PING"), cmd("SET").key("b").arg("x".repeat(200 << 10)), cmd("BLPOP").key("l").arg(1)]
        {
            let error = client.call::<String>(command).await.unwrap_err();
            assert!(matches!(error, CallError::Closed { sent: false }), "{error:?}");
        }
        assert!(matches!(client.session().await, Err(ConnectError::Closed)));
        assert!(client.reopen());
        soon(client.ready()).await.unwrap();
    }
}

async fn after_close_no_task_and_no_connection_is_left(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    assert_eq!(tasks(), 0);
    let clients = [connect(server.tcp_url()).await, connect(server.tcp_url()).await];
    for client in &clients {
        client.call::<()>(cmd("SET").key("big").arg("x".repeat(200 << 10))).await.unwrap();
        client.call::<Option<(String, String)>>(cmd("BLPOP").key("l").arg(0.01)).await.unwrap();
        let mut session = client.session().await.unwrap();
        session.call::<()>(cmd("SELECT").arg(3)).await.unwrap();
        session.close().await;
    }
    assert!(tasks() >= 6);
    for client in &clients {
        client.close().await;
        client.close().await; // once more does no harm
    }
    wait::until(LONG, "no task is left", async || tasks() == 0).await;
    wait::until(LONG, "no connection is left", async || connections(&server).await == 0).await;
}

#[tokio::test]
async fn close_is_prompt_while_connecting_and_while_backing_off() {
    let silent = Fake::bare(|_, peer| peer.fall_silent()).await;
    let client = Client::lazy(quick(silent.url())).unwrap();
    let queued = Many::<i64>::start(&client, 3, |_| cmd("INCR").key("n")).await;
    let begun = Instant::now();
    client.close().await;
    for error in queued.results().await {
        assert!(matches!(error, Err(CallError::Closed { sent: false })), "{error:?}");
    }
    let gone = Fake::bare(|_, _| async {}).await;
    let client = Client::lazy(once(gone.url())).unwrap();
    reaches(&client, ConnectionState::Failed).await;
    client.close().await;
    assert!(begun.elapsed() < ms(2000), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn close_over_tls_does_not_wait_for_a_peer_that_no_longer_reads() {
    let certs = Certs::new();
    let server = RedisServer::builder().tls(&certs).start().await;
    let mut config = quick(format!("{}?tls_ca={}", server.tcp_url(), certs.ca_path().display()));
    config.timeouts.close = ms(100);
    config.lanes.bulk_from = usize::MAX;
    let client = connect(config).await;
    server.freeze();
    // more than the sockets between us can hold
    let pending = Many::<i64>::start(&client, 32, |n| cmd("SET").key(n).arg("x".repeat(1 << 20))).await;
    let begun = Instant::now();
    client.close().await;
    assert!(begun.elapsed() < ms(2000), "{:?}", begun.elapsed());
    let results = pending.results().await;
    assert!(results.iter().all(|e| matches!(e, Err(CallError::Closed { .. }))), "{results:?}");
    assert!(results.iter().any(|e| e.as_ref().is_err_and(|e| !e.may_have_run())), "the last ones never left");
    wait::until(LONG, "all tasks are gone", async || tasks() == 0).await;
    server.thaw();
}

#[tokio::test]
async fn a_connection_lost_while_closing_tells_what_may_have_run() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = connect(server.tcp_url()).await;
    server.freeze();
    let pending = Many::<i64>::start(&client, 10, |n| cmd("INCR").key(n)).await;
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    reaches(&client, ConnectionState::Closing).await;
    server.kill().await;
    for error in pending.results().await {
        let error = error.unwrap_err();
        assert!(matches!(error, CallError::Lost { sent: true, .. }), "the cause is told, too: {error:?}");
    }
    soon(closing).await.unwrap();
    assert_eq!(client.state(), ConnectionState::Closed);
}

#[test]
fn a_runtime_that_ends_takes_its_clients_along() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, client) = runtime().block_on(async {
        let server = RedisServer::start(Flavor::Redis).await;
        let client = connect(server.tcp_url()).await;
        (server, client)
    });
    runtime().block_on(async {
        let error = soon(client.call::<String>(cmd("PING"))).await.unwrap_err();
        assert!(matches!(error, CallError::Closed { sent: false }), "{error:?}");
        let error = soon(client.pipeline::<Vec<String>>(pipe().then(cmd("PING")))).await.unwrap_err();
        assert!(matches!(error, CallError::Closed { sent: false }), "{error:?}");
        assert!(client.reopen(), "on the runtime of the moment");
        soon(client.ready()).await.unwrap();
        echo(&client, "alive").await.unwrap();
        client.close().await;
    });
    drop(server);
}
