//! What a watcher of a connection sees, and what the client says of itself.

use crate::support::*;
use firth_redis::{
    Client, ConnectionEvent, ConnectionEventKind, ConnectionEvents, ConnectionPhase, ConnectionState,
    LostCause, cmd,
};
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both};

on_both!(the_whole_life_is_told_in_order);

/// The next event of a kind; retries that fail in between are skipped.
async fn next(events: &mut ConnectionEvents, kind: ConnectionEventKind) -> ConnectionEvent {
    loop {
        let event = soon(events.next()).await.expect("the client lives");
        if event.kind == kind {
            return event;
        }
        assert_eq!(
            (event.kind, event.phase),
            (ConnectionEventKind::Disconnected, ConnectionPhase::Reconnect),
            "{event:?}"
        );
    }
}

async fn the_whole_life_is_told_in_order(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    proxy.stall(Direction::Both);
    let client = Client::lazy(quick(proxy.url())).unwrap();
    assert!(matches!(client.state(), ConnectionState::Init | ConnectionState::Connecting));
    let mut events = client.events();
    assert!(client.last_error().is_none() && client.server().is_none());
    proxy.heal().await;
    let first = next(&mut events, ConnectionEventKind::Connected).await;
    assert_eq!((first.phase, first.generation, first.attempts), (ConnectionPhase::Connect, 1, 0));
    assert!(first.cause.is_none() && client.state() == ConnectionState::Open && client.server().is_some());

    server.kill().await;
    let lost = next(&mut events, ConnectionEventKind::Disconnected).await;
    assert_eq!((lost.phase, lost.generation, lost.attempts), (ConnectionPhase::Runtime, 1, 0));
    assert!(matches!(lost.cause, Some(LostCause::Eof | LostCause::Io(_))), "{lost:?}");
    proxy.refuse().await;
    let mut before = 0;
    loop {
        let failed = soon(events.next()).await.unwrap();
        assert_eq!((failed.kind, failed.generation), (ConnectionEventKind::Disconnected, 1));
        assert!(matches!(failed.cause, Some(LostCause::Reconnect(_))), "{failed:?}");
        assert_eq!(failed.attempts, before + 1, "every try is told");
        before = failed.attempts;
        if failed.phase == ConnectionPhase::Reconnect && before > 3 {
            break;
        }
        // the proxy was still open, with no server behind it
        assert!(
            matches!(failed.phase, ConnectionPhase::Handshake | ConnectionPhase::Reconnect),
            "{failed:?}"
        );
    }
    server.restart().await;
    proxy.heal().await;
    let again = next(&mut events, ConnectionEventKind::Connected).await;
    assert_eq!((again.phase, again.generation, again.attempts), (ConnectionPhase::Reconnect, 2, 0));
    assert!(matches!(client.last_error(), Some(LostCause::Reconnect(_))), "the last error is kept");

    client.close().await;
    let closed = next(&mut events, ConnectionEventKind::Closed).await;
    assert_eq!((closed.phase, closed.generation), (ConnectionPhase::Close, 2));
    assert!(closed.cause.is_none(), "all is well: it was asked for");
    assert!(client.reopen());
    let third = next(&mut events, ConnectionEventKind::Connected).await;
    assert_eq!((third.phase, third.generation), (ConnectionPhase::Reconnect, 3));
    drop(client);
    assert_eq!(next(&mut events, ConnectionEventKind::Closed).await.generation, 3);
    assert!(soon(events.next()).await.is_none(), "nothing follows when the client is gone");
}

#[tokio::test]
async fn a_slow_watcher_misses_events_but_holds_up_nobody() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = connect(quick(server.tcp_url())).await;
    let mut events = client.events();
    for round in 0..100 {
        client.close().await;
        assert!(client.reopen());
        soon(client.ready()).await.unwrap();
        client.call::<()>(cmd("SET").key("k").arg(round)).await.unwrap();
    }
    let mut seen = 1;
    let mut last = soon(events.next()).await.unwrap();
    while last.generation < 101 || last.kind != ConnectionEventKind::Connected {
        last = soon(events.next()).await.unwrap();
        seen += 1;
    }
    assert!(seen <= 64, "only the newest are kept: {seen}");
}

#[tokio::test]
async fn ready_waits_through_failures() {
    let server = RedisServer::start(Flavor::Redis).await;
    server.kill().await;
    let client = Client::lazy(quick(server.tcp_url())).unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.ready().await }
    });
    firth_testkit::wait::until(LONG, "some tries have failed", async || client.last_error().is_some()).await;
    assert!(!waiting.is_finished());
    server.restart().await;
    soon(waiting).await.unwrap().unwrap();
    assert_eq!(client.state(), ConnectionState::Open);
}
