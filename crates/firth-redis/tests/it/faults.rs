//! Broken networks and broken servers: every request ends with the right error in time, the
//! connection recovers without help, and no reply goes astray.

use crate::support::*;
use firth_redis::{CallError, Client, ConnectionEventKind, ConnectionState, LostCause, Unpack, cmd, pipe};
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::time::Instant;

on_both!(
    one_byte_at_a_time_changes_nothing,
    a_cut_at_every_byte_of_the_replies_ends_each_request_rightly,
    a_cut_at_every_byte_of_the_handshake_is_an_error_and_leaves_no_task,
    a_half_open_peer_is_found_out_and_replaced,
    a_frozen_server_is_found_out_and_serves_again_when_thawed,
    a_late_reply_is_thrown_away_and_the_connection_lives_on,
    requests_in_flight_end_at_once_when_the_server_is_killed,
);

/// A server and a proxy before it.
async fn rig(flavor: Flavor) -> (RedisServer, Proxy) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    (server, proxy)
}

async fn one_byte_at_a_time_changes_nothing(flavor: Flavor) {
    let (_server, proxy) = rig(flavor).await;
    proxy.split(1);
    let client = connect(proxy.url()).await;
    let value = "0123456789\r\n".repeat(100);
    client.call::<()>(cmd("SET").key("k").arg(&value)).await.unwrap();
    assert_eq!(client.call::<String>(cmd("GET").key("k")).await.unwrap(), value);
    client.call::<()>(cmd("XADD").key("x").arg("1-1").field("a", "b").field("c", 3)).await.unwrap();
    type Entries = Vec<(String, Vec<(String, String)>)>;
    let all = pipe().then(cmd("INCR").key("n")).then(cmd("XRANGE").key("x").arg("-").arg("+"));
    let all = all.then(cmd("LPOP").key("k")).then(cmd("GET").key("none"));
    let (n, x, wrong, none) =
        client.pipeline::<(i64, Entries, Option<String>, Option<String>)>(all).await.unwrap();
    assert_eq!(n.unwrap(), 1);
    let fields = vec![("a".to_owned(), "b".to_owned()), ("c".to_owned(), "3".to_owned())];
    assert_eq!(x.unwrap(), [("1-1".to_owned(), fields)]);
    assert_eq!(wrong.unwrap_err().code(), Some("WRONGTYPE"));
    assert_eq!(none.unwrap(), None);
    let (a, b) = client
        .transaction::<(i64, String)>(pipe().then(cmd("INCR").key("n")).then(cmd("ECHO").arg("hi")))
        .await
        .unwrap()
        .unpack()
        .unwrap();
    assert_eq!((a, b.as_str(), proxy.connections()), (2, "hi", 1));
}

async fn a_cut_at_every_byte_of_the_replies_ends_each_request_rightly(flavor: Flavor) {
    let (server, proxy) = rig(flavor).await;
    let client = connect(quick(proxy.url())).await;
    // ":1\r\n:1\r\n" is 8 bytes, "$5\r\nhello\r\n" 11, "+PONG\r\n" 7
    let ends = [8, 19, 26];
    for cut in 0..ends[2] {
        server.freeze(); // so that all three are sent before the first answer
        proxy.truncate_after(cut);
        let sent = proxy.bytes_to_server() + 91; // what the three take at least
        let both = pipe().then(cmd("SETNX").key(cut).arg(1)).then(cmd("EXISTS").key(cut));
        let (many, text, pong, ()) = soon(async {
            tokio::join!(
                client.pipeline::<Vec<i64>>(both),
                client.call::<String>(cmd("ECHO").arg("hello")),
                client.call::<String>(cmd("PING")),
                async {
                    wait::until(LONG, "all are sent", async || proxy.bytes_to_server() >= sent).await;
                    server.thaw();
                }
            )
        })
        .await;
        let outcomes = [
            many.and_then(Unpack::unpack).map(|all| assert_eq!(all, [1, 1])),
            text.map(|text| assert_eq!(text, "hello")),
            pong.map(|pong| assert_eq!(pong, "PONG")),
        ];
        for (outcome, end) in outcomes.into_iter().zip(ends) {
            match outcome {
                Ok(()) => assert!(end <= cut, "an answer of {end} bytes came whole in {cut}"),
                Err(error) => {
                    assert!(end > cut, "an answer of {end} bytes was there, cut at {cut}: {error:?}");
                    assert!(matches!(error, CallError::Lost { sent: true, .. }), "{error:?}");
                    assert!(error.may_have_run() && error.is_retryable());
                }
            }
        }
        proxy.heal().await;
        soon(client.ready()).await.unwrap();
        echo(&client, "it recovers without help").await.unwrap();
    }
    assert_eq!(client.in_flight(), 0);
}

async fn a_cut_at_every_byte_of_the_handshake_is_an_error_and_leaves_no_task(flavor: Flavor) {
    let (_server, proxy) = rig(flavor).await;
    connect(proxy.url()).await.close().await;
    let handshake = proxy.bytes_to_client();
    for cut in 0..handshake {
        proxy.truncate_after(cut);
        let error = soon(Client::connect(quick(proxy.url()))).await.expect_err("the handshake was cut");
        assert!(error.is_retryable(), "{error:?}");
    }
    wait::until(LONG, "all tasks are gone", async || tasks() == 0).await;
    proxy.heal().await;
    connect(proxy.url()).await;
}

async fn a_half_open_peer_is_found_out_and_replaced(flavor: Flavor) {
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        let (server, proxy) = rig(flavor).await;
        let client = connect(watchful(proxy.url())).await;
        let mut events = client.events();
        proxy.half_open(direction);
        let begun = Instant::now();
        let late = client.call::<i64>(cmd("INCR").key("n")).timeout(ms(60)).await.unwrap_err();
        assert!(matches!(late, CallError::Timeout { sent: true, .. }) && late.may_have_run(), "{late:?}");
        assert!(begun.elapsed() >= ms(59) && begun.elapsed() < ms(1000), "{:?}", begun.elapsed());
        let lost = soon(events.next()).await.unwrap();
        assert_eq!((lost.kind, lost.generation), (ConnectionEventKind::Disconnected, 1));
        assert!(matches!(lost.cause, Some(LostCause::Silent(_))), "{lost:?}");
        proxy.heal().await;
        soon(client.ready()).await.unwrap();
        client.call::<()>(cmd("SET").key("k").arg(1)).await.unwrap();
        assert_eq!(server.command(&["GET", "k"]).await.int(), 1);
    }
}

async fn a_frozen_server_is_found_out_and_serves_again_when_thawed(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(watchful(server.tcp_url())).await;
    let mut events = client.events();
    server.freeze();
    let late: Vec<_> = (0..10).map(|n| client.call::<i64>(cmd("INCR").key(n)).timeout(ms(60))).collect();
    for error in futures_util::future::join_all(late).await {
        let error = error.unwrap_err();
        assert!(error.is_timeout() && error.may_have_run(), "{error:?}");
    }
    let lost = soon(events.next()).await.unwrap();
    assert!(matches!(lost.cause, Some(LostCause::Silent(_))), "{lost:?}");
    server.thaw();
    soon(client.ready()).await.unwrap();
    echo(&client, "thawed").await.unwrap();
    settles(&client).await;
}

async fn a_late_reply_is_thrown_away_and_the_connection_lives_on(flavor: Flavor) {
    let (_server, proxy) = rig(flavor).await;
    let client = connect(proxy.url()).await;
    proxy.stall(Direction::ToClient);
    let late: Vec<_> = (0..20).map(|n| client.call::<i64>(cmd("ECHO").arg(n)).timeout(ms(40))).collect();
    for error in futures_util::future::join_all(late).await {
        assert!(matches!(error, Err(CallError::Timeout { sent: true, .. })), "{error:?}");
    }
    let next = Many::<usize>::start(&client, 20, |n| cmd("ECHO").arg(1000 + n)).await;
    proxy.heal().await;
    for (n, answer) in next.results().await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), 1000 + n);
    }
    assert_eq!((proxy.connections(), client.in_flight(), client.state()), (1, 0, ConnectionState::Open));
}

async fn requests_in_flight_end_at_once_when_the_server_is_killed(flavor: Flavor) {
    let (server, proxy) = rig(flavor).await;
    let client = connect(quick(proxy.url())).await;
    server.freeze();
    let before = proxy.bytes_to_server();
    let calls = Many::<i64>::start(&client, 100, |n| cmd("INCR").key(format!("key:{n:04}"))).await;
    let long = {
        let client = client.clone();
        let all = (0..1000).map(|_| cmd("INCR").key("p")).collect::<firth_redis::Pipe>();
        tokio::spawn(async move { client.pipeline::<Vec<i64>>(all).no_timeout().await })
    };
    wait::until(LONG, "all bytes are with the server", async || {
        proxy.bytes_to_server() - before > 100 * 28 + 1000 * 20
    })
    .await;
    server.kill().await;
    for error in calls.results().await {
        let error = error.unwrap_err();
        assert!(matches!(error, CallError::Lost { sent: true, .. }), "{error:?}");
        assert!(error.may_have_run() && error.is_retryable() && !error.is_timeout());
    }
    assert!(matches!(soon(long).await.unwrap(), Err(CallError::Lost { sent: true, .. })));
    server.restart().await;
    soon(client.ready()).await.unwrap();
    echo(&client, "restarted").await.unwrap();
    assert!(client.last_error().is_some());
}
