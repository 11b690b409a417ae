//! Deadlines per request, on tokio's paused clock where the server has nothing to say.

use crate::fake::Fake;
use crate::support::*;
use firth_redis::{CallError, Client, ConnectionState, LostCause, Script, cmd, pipe};
use firth_testkit::{Flavor, RedisServer};
use std::time::Duration;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// A client of a server that greets and then falls silent; the clock is paused once it is
/// connected. Nothing but deadlines and pings can happen.
async fn before_silence(change: impl FnOnce(&mut firth_redis::Config)) -> (Fake, Client) {
    let fake = Fake::answering_hello(|_, peer| peer.fall_silent()).await;
    let mut config = quick(fake.url());
    config.liveness = None;
    change(&mut config);
    let client = connect(config).await;
    tokio::time::pause();
    (fake, client)
}

#[tokio::test]
async fn each_request_has_its_own_deadline() {
    let (_fake, client) = before_silence(|_| {}).await;
    let begun = Instant::now();
    let limits = [3000u64, 40, 700, 1, 5000];
    let calls = limits.map(|limit| {
        let client = &client;
        async move {
            let error = client.call::<String>(cmd("PING")).timeout(ms(limit)).await.unwrap_err();
            assert!(matches!(error, CallError::Timeout { after, .. } if after == ms(limit)), "{error:?}");
            begun.elapsed()
        }
    });
    for (took, limit) in futures_util::future::join_all(calls).await.into_iter().zip(limits) {
        assert!(took >= ms(limit) && took <= ms(limit + 4), "{took:?} instead of {limit} ms");
    }
    assert_eq!(client.state(), ConnectionState::Open, "an expired request does not harm the connection");
}

#[tokio::test]
async fn the_configured_limit_holds_unless_the_call_says_otherwise() {
    let (_fake, client) = before_silence(|c| c.timeouts.request = Some(2 * SECOND)).await;
    let begun = Instant::now();
    assert!(client.call::<String>(cmd("PING")).await.unwrap_err().is_timeout());
    assert!(begun.elapsed() >= 2 * SECOND && begun.elapsed() < 3 * SECOND);
    let endless = client.pipeline::<Vec<String>>(pipe().then(cmd("PING"))).no_timeout();
    assert!(tokio::time::timeout(1000 * SECOND, endless).await.is_err(), "it waits as long as it takes");
}

#[tokio::test]
async fn no_time_at_all_means_that_nothing_is_sent() {
    let (_fake, client) = before_silence(|_| {}).await;
    let error = client.call::<String>(cmd("PING")).timeout(Duration::ZERO).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { sent: false, .. }), "{error:?}");
    assert_eq!(client.in_flight(), 0);
}

#[tokio::test]
async fn requests_queued_while_connecting_expire_on_time() {
    let fake = Fake::bare(|_, peer| peer.fall_silent()).await;
    let mut config = quick(fake.url());
    config.timeouts.handshake = None;
    config.timeouts.connect = None;
    let client = Client::lazy(config).unwrap();
    firth_testkit::wait::until(LONG, "the server sees the client", async || fake.connections() == 1).await;
    tokio::time::pause();
    let begun = Instant::now();
    let first = client.call::<String>(cmd("PING")).timeout(9 * SECOND);
    let second = client.call::<String>(cmd("PING")).timeout(2 * SECOND);
    let (first, second) =
        tokio::join!(async { (first.await, begun.elapsed()) }, async { (second.await, begun.elapsed()) });
    for ((outcome, took), limit) in [(first, 9 * SECOND), (second, 2 * SECOND)] {
        assert!(matches!(outcome, Err(CallError::Timeout { sent: false, .. })), "{outcome:?}");
        assert!(took >= limit && took <= limit + ms(4), "{took:?} instead of {limit:?}");
    }
    assert_eq!(client.state(), ConnectionState::Connecting);
}

#[tokio::test]
async fn a_stale_clock_does_not_shorten_a_deadline() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = connect(server.tcp_url()).await;
    for _ in 0..3 {
        let mut first = Box::pin(client.call::<String>(cmd("PING")));
        assert!(futures_util::poll!(&mut first).is_pending(), "the connection's task is called");
        // one thread, so that the task cannot run while we block it
        std::thread::sleep(ms(150));
        assert_eq!(client.call::<String>(cmd("PING")).timeout(ms(100)).await.unwrap(), "PONG");
        assert_eq!(first.await.unwrap(), "PONG");
    }
}

#[tokio::test]
async fn the_idle_ping_finds_a_silent_server_on_time() {
    let (fake, client) = before_silence(|c| {
        c.liveness = Some(firth_redis::config::Liveness { ping_after: SECOND, dead_after: 5 * SECOND });
        c.reconnect = None;
    })
    .await;
    let begun = Instant::now();
    let mut events = client.events();
    assert!(client.call::<String>(cmd("PING")).timeout(SECOND).await.unwrap_err().is_timeout());
    let lost = events.next().await.unwrap();
    assert!(matches!(lost.cause, Some(LostCause::Silent(silence)) if silence >= 6 * SECOND), "{lost:?}");
    let took = begun.elapsed();
    assert!(took >= 5 * SECOND && took < 7 * SECOND, "{took:?}");
    assert_eq!(fake.connections(), 1, "no request waits, so no second connection is asked");
}

#[tokio::test]
async fn c11_a_lost_connection_is_found_out_though_a_request_waits_without_a_limit() {
    // The first connection hears nothing any more, a new one is served.
    let fake = Fake::answering_hello(|number, mut peer| async move {
        if number == 0 {
            return peer.fall_silent().await;
        }
        while peer.command().await.is_some() {
            peer.say(b"+PONG\r\n").await;
        }
    })
    .await;
    let mut config = watchful(fake.url());
    config.timeouts.request = None;
    let client = connect(config).await;
    let error = soon(client.call::<String>(cmd("PING"))).await.unwrap_err();
    assert!(matches!(error, CallError::Lost { sent: true, cause: LostCause::Silent(_) }), "{error:?}");
    assert_eq!(soon(client.call::<String>(cmd("PING"))).await.unwrap(), "PONG");
}

#[tokio::test]
async fn a_limit_as_long_as_eternity_is_no_limit() {
    let server = RedisServer::start(Flavor::Redis).await;
    let mut config = quick(server.tcp_url());
    let for_ever = Some(Duration::MAX);
    (config.timeouts.resolve, config.timeouts.connect) = (for_ever, for_ever);
    (config.timeouts.handshake, config.timeouts.request) = (for_ever, for_ever);
    config.timeouts.close = Duration::MAX;
    config.liveness =
        Some(firth_redis::config::Liveness { ping_after: Duration::MAX, dead_after: Duration::MAX });
    config.queue.requests = 1;
    let client = connect(config).await;
    let calls = (0..10).map(|n| client.call::<i64>(cmd("ECHO").arg(n)).timeout(Duration::MAX));
    for (n, answer) in soon(futures_util::future::join_all(calls)).await.into_iter().enumerate() {
        assert_eq!(answer.unwrap(), n as i64);
    }
    client
        .call::<Option<(String, String)>>(cmd("BLPOP").key("l").arg(0.01))
        .timeout(Duration::MAX)
        .await
        .unwrap();
    soon(client.close()).await;
}

#[tokio::test]
async fn the_shortest_limits_are_not_early() {
    let (_fake, client) = before_silence(|_| {}).await;
    for micros in [1, 400, 1000, 1600] {
        let limit = Duration::from_micros(micros);
        let begun = Instant::now();
        assert!(client.call::<String>(cmd("PING")).timeout(limit).await.unwrap_err().is_timeout());
        assert!(begun.elapsed() >= limit, "{:?} instead of {limit:?}", begun.elapsed());
        tokio::time::advance(Duration::from_micros(333)).await;
    }
}

#[tokio::test]
async fn c20_scripts_and_sessions_have_deadlines_of_their_own() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = connect(server.tcp_url()).await;
    let quick_script = Script::new("return 7");
    assert_eq!(client.eval::<i64>(&quick_script.key("k")).timeout(LONG).await.unwrap(), 7);
    assert_eq!(client.eval::<i64>(&quick_script.key("k")).no_timeout().await.unwrap(), 7);
    let mut session = client.session().await.unwrap();
    assert_eq!(session.call::<String>(cmd("PING")).timeout(LONG).await.unwrap(), "PONG");
    server.freeze();
    for limit in [ms(30), ms(60)] {
        let error = client.eval::<i64>(&quick_script.key("k")).timeout(limit).await.unwrap_err();
        assert!(matches!(error, CallError::Timeout { after, sent: true } if after == limit), "{error:?}");
        let error = session.call::<String>(cmd("PING")).timeout(limit).await.unwrap_err();
        assert!(matches!(error, CallError::Timeout { after, sent: true } if after == limit), "{error:?}");
    }
    server.thaw();
}

#[tokio::test]
async fn c20_a_script_that_is_sent_twice_has_one_deadline() {
    // Takes its time to say that it does not know the script, and is then silent.
    let fake = Fake::answering_hello(|_, mut peer| async move {
        while let Some(words) = peer.command().await {
            if words[0] == "EVALSHA" {
                tokio::time::sleep(ms(150)).await;
                peer.say(b"-NOSCRIPT No matching script. Please use EVAL.\r\n").await;
            }
        }
    })
    .await;
    let mut config = quick(fake.url());
    config.timeouts.request = Some(ms(400));
    let client = connect(config).await;
    tokio::time::pause();
    let begun = Instant::now();
    let error = client.eval::<i64>(&Script::new("return 7").key("k")).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { after, .. } if after == ms(400)), "{error:?}");
    assert!(begun.elapsed() < ms(500), "{:?}", begun.elapsed());
}
