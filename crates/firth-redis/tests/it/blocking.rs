//! Blocking commands never hold up others, and a blocked command without a caller takes nothing.

use crate::support::*;
use firth_redis::resp::StreamEntry;
use firth_redis::{CallError, Unpack, cmd, pipe};
use firth_testkit::{Flavor, RedisServer, on_both, wait};
use std::time::Instant;

on_both!(
    blocked_commands_hold_up_nobody,
    a_block_may_last_longer_than_the_request_limit,
    a_dropped_block_takes_no_element,
    close_ends_what_blocks,
    a_connection_serves_one_block_after_the_other,
    a_block_that_is_lost_says_that_it_may_have_run,
    waiting_for_replicas_belongs_behind_the_writes,
);

/// Waits until this many clients are blocked at the server.
async fn blocked(server: &RedisServer, count: &str) {
    wait::until(LONG, format!("{count} clients are blocked"), async || {
        server.info("clients").await["blocked_clients"] == count
    })
    .await;
}

async fn blocked_commands_hold_up_nobody(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let pops =
        Many::<(String, String)>::start(&client, 3, |n| cmd("BLPOP").key(format!("l{n}")).arg(0)).await;
    let read = Many::<Vec<(String, Vec<StreamEntry>)>>::start(&client, 1, |_| {
        cmd("XREAD").arg("BLOCK").arg(0).arg("STREAMS").key("s").arg("$")
    })
    .await;
    let waiting = tokio::spawn({
        let client = client.clone();
        let write = pipe().then(cmd("SET").key("w").arg(1)).then(cmd("WAIT").arg(1).arg(0));
        async move { client.pipeline::<(String, i64)>(write).await }
    });
    blocked(&server, "5").await;
    let begun = Instant::now();
    for n in 0..200 {
        echo(&client, &format!("free {n}")).await.unwrap();
    }
    assert!(begun.elapsed() < ms(5000));
    let id: String = client.call(cmd("XADD").key("s").arg("*").field("a", 1)).await.unwrap();
    assert_eq!(read.results().await.remove(0).unwrap()[0].1[0].id, *id);
    for n in 0..3 {
        client.call::<()>(cmd("RPUSH").key(format!("l{n}")).arg(n)).await.unwrap();
    }
    for (n, popped) in pops.results().await.into_iter().enumerate() {
        assert_eq!(popped.unwrap(), (format!("l{n}"), n.to_string()));
    }
    assert!(!waiting.is_finished());
    waiting.abort();
    blocked(&server, "0").await;
}

async fn a_block_may_last_longer_than_the_request_limit(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = watchful(server.tcp_url());
    config.timeouts.request = Some(ms(50));
    let client = connect(config).await;
    let begun = Instant::now();
    // longer also than a silent server is given: here silence is no sign of death
    let none: Option<(String, String)> = client.call(cmd("BLPOP").key("l").arg(0.6)).await.unwrap();
    assert!(none.is_none() && begun.elapsed() >= ms(600));
    let late = client.call::<String>(cmd("BLPOP").key("l").arg(0)).timeout(ms(60)).await.unwrap_err();
    assert!(
        matches!(late, CallError::Timeout { sent: true, .. }),
        "a limit of its own still holds: {late:?}"
    );
    blocked(&server, "0").await;
}

async fn a_dropped_block_takes_no_element(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    for round in 0..5 {
        let pop = Many::<(String, i64)>::start(&client, 1, |_| cmd("BLPOP").key("l").arg(0)).await;
        blocked(&server, "1").await;
        drop(pop); // a task handle: the call goes on
        let mut other = Box::pin(client.call::<(String, i64)>(cmd("BLPOP").key("m").arg(0)));
        assert!(futures_util::poll!(&mut other).is_pending());
        blocked(&server, "2").await;
        drop(other);
        blocked(&server, "1").await;
        client.call::<()>(cmd("RPUSH").key("m").arg(round)).await.unwrap();
        assert_eq!(server.command(&["LLEN", "m"]).await.int(), 1, "the element was lost to nobody");
        let taken: (String, i64) = client.call(cmd("BLPOP").key("m").arg(0)).await.unwrap();
        assert_eq!(taken, ("m".to_owned(), round));
        client.call::<()>(cmd("RPUSH").key("l").arg(0)).await.unwrap();
        blocked(&server, "0").await;
    }
    settles(&client).await;
}

async fn close_ends_what_blocks(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let pops = Many::<(String, String)>::start(&client, 3, |_| cmd("BLPOP").key("l").arg(0)).await;
    blocked(&server, "3").await;
    let begun = Instant::now();
    client.close().await;
    assert!(begun.elapsed() < ms(2000), "{:?}", begun.elapsed());
    for error in pops.results().await {
        assert!(matches!(error, Err(CallError::Closed { sent: true })), "{error:?}");
    }
    blocked(&server, "0").await;
    wait::until(LONG, "no task is left", async || tasks() == 0).await;
}

async fn a_connection_serves_one_block_after_the_other(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    client.call::<()>(cmd("SET").key("text").arg("x")).await.unwrap();
    client.call::<Option<(String, String)>>(cmd("BLPOP").key("l").arg(0.01)).await.unwrap();
    let before = server.info("stats").await["total_connections_received"].parse::<u64>().unwrap();
    for n in 0..20 {
        let wrong = client.call::<Option<(String, String)>>(cmd("BLPOP").key("text").arg(0.01)).await;
        assert_eq!(wrong.unwrap_err().code(), Some("WRONGTYPE"), "an error is an answer");
        client.call::<()>(cmd("RPUSH").key("l").arg(n)).await.unwrap();
        let popped: (String, i64) = client.call(cmd("BLPOP").key("l").arg(0)).await.unwrap();
        assert_eq!(popped.1, n);
    }
    let after = server.info("stats").await["total_connections_received"].parse::<u64>().unwrap();
    assert_eq!(after - before, 1, "only the fixture's own connection is new");
}

async fn a_block_that_is_lost_says_that_it_may_have_run(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(quick(server.tcp_url())).await;
    let pop = Many::<(String, String)>::start(&client, 1, |_| cmd("BLPOP").key("l").arg(0)).await;
    blocked(&server, "1").await;
    server.kill().await;
    let error = pop.results().await.remove(0).unwrap_err();
    assert!(matches!(error, CallError::Lost { sent: true, .. }), "{error:?}");
    let error = client.call::<String>(cmd("BLPOP").key("l").arg(0)).await.unwrap_err();
    assert!(!error.may_have_run(), "there is no server: {error:?}");
    server.restart().await;
    soon(client.ready()).await.unwrap();
    client.call::<()>(cmd("RPUSH").key("l").arg("x")).await.unwrap();
    assert_eq!(client.call::<(String, String)>(cmd("BLPOP").key("l").arg(0)).await.unwrap().1, "x");
}

async fn waiting_for_replicas_belongs_behind_the_writes(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let _replica = RedisServer::builder().flavor(flavor).replica_of(&master).start().await;
    let client = connect(master.tcp_url()).await;
    wait::until(LONG, "the replica is there", async || {
        master.info("replication").await["connected_slaves"] == "1"
    })
    .await;
    let write = pipe().then(cmd("SET").key("k").arg(1)).then(cmd("WAIT").arg(1).arg(5000));
    let (ok, replicas) = client.pipeline::<(String, i64)>(write).await.unwrap().unpack().unwrap();
    assert_eq!((ok.as_str(), replicas), ("OK", 1));
    let alone = client.call::<i64>(cmd("WAIT").arg(1).arg(100)).await.unwrap_err();
    assert!(matches!(&alone, CallError::Invalid(hint) if hint.contains("pipeline")), "{alone:?}");
    let mut session = client.session().await.unwrap();
    session.call::<()>(cmd("SET").key("k").arg(2)).await.unwrap();
    assert_eq!(session.call::<i64>(cmd("WAIT").arg(1).arg(5000)).await.unwrap(), 1);
}
