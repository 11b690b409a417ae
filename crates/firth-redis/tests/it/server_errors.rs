//! Servers in trouble: loading, out of memory, read only, full: each error tells whose fault it is,
//! whether the command has run, and whether to try again; none of them harms the connection.

use crate::support::*;
use firth_redis::{CallError, Client, ConnectError, Fault, LostCause, Script, cmd, pipe};
use firth_testkit::{Flavor, Persist, RedisServer, on_both, wait};
use std::time::Instant;

on_both!(
    a_loading_server_answers_so_until_it_has_loaded,
    a_server_out_of_memory_refuses_writes_and_serves_reads,
    a_server_that_cannot_save_refuses_writes,
    a_replica_refuses_writes,
    a_master_without_replicas_refuses_writes_if_told_to,
    a_busy_server_is_slow_but_not_dead,
    c03_a_scripts_own_error_is_no_promise,
    c11_a_long_command_without_a_limit_is_not_taken_for_a_dead_peer,
    c20_an_aborted_transaction_has_not_run,
    a_full_server_is_tried_again_later,
);

async fn a_loading_server_answers_so_until_it_has_loaded(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::Rdb).start().await;
    server.command(&["DEBUG", "POPULATE", "6000"]).await;
    server.command(&["SAVE"]).await;
    // 6 000 keys at 100 µs each
    server.command(&["CONFIG", "SET", "key-load-delay", "100"]).await;
    server.command(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]).await;
    server.command(&["CONFIG", "REWRITE"]).await;
    let client = connect(quick(server.tcp_url())).await;
    server.relaunch().await;
    let error = loop {
        soon(client.ready()).await.unwrap();
        match client.call::<String>(cmd("GET").key("key:1")).await {
            Err(error @ CallError::Server(_)) => break error,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
            Ok(_) => panic!("the server loaded too fast for this test"),
        }
    };
    assert_eq!(error.code(), Some("LOADING"));
    assert!(error.is_retryable() && !error.may_have_run() && error.fault() == Fault::Server);
    let connection = client.server().unwrap().connection_id;
    wait::until(LONG, "the data is there", async || {
        client.call::<String>(cmd("GET").key("key:1")).await.is_ok()
    })
    .await;
    assert_eq!(client.server().unwrap().connection_id, connection, "the connection lived through it");
}

async fn a_server_out_of_memory_refuses_writes_and_serves_reads(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    client.call::<()>(cmd("SET").key("k").arg("v")).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = client.call::<()>(cmd("SET").key("k").arg("w")).await.unwrap_err();
    assert_eq!(error.code(), Some("OOM"));
    assert!(!error.may_have_run() && error.is_retryable() && error.fault() == Fault::Server);
    let mixed = pipe().then(cmd("GET").key("k")).then(cmd("SET").key("k").arg("x")).then(cmd("DEL").key("k"));
    let (get, set, del) = client.pipeline::<(String, String, i64)>(mixed).await.unwrap();
    assert_eq!((get.unwrap().as_str(), set.unwrap_err().code(), del.unwrap()), ("v", Some("OOM"), 1));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    client.call::<()>(cmd("SET").key("k").arg("y")).await.unwrap();
}

async fn a_server_that_cannot_save_refuses_writes(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .config("save 3600 1")
        .config("dbfilename in-the-way.rdb")
        .start()
        .await;
    let client = connect(server.tcp_url()).await;
    client.call::<()>(cmd("SET").key("k").arg("v")).await.unwrap();
    // a folder where the file should go makes saving fail
    std::fs::create_dir(server.data_dir().join("in-the-way.rdb")).unwrap();
    server.command(&["BGSAVE"]).await;
    wait::until(LONG, "the save has failed", async || {
        server.info("persistence").await["rdb_last_bgsave_status"] == "err"
    })
    .await;
    let error = client.call::<()>(cmd("SET").key("k").arg("w")).await.unwrap_err();
    assert_eq!(error.code(), Some("MISCONF"));
    assert!(!error.may_have_run() && error.fault() == Fault::Server);
}

async fn a_replica_refuses_writes(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let replica = RedisServer::builder().flavor(flavor).replica_of(&master).start().await;
    let client = connect(replica.tcp_url()).await;
    assert_eq!(client.server().unwrap().role, "replica");
    wait::until(LONG, "it follows its master", async || {
        replica.info("replication").await["master_link_status"] == "up"
    })
    .await;
    let error = client.call::<()>(cmd("SET").key("k").arg("v")).await.unwrap_err();
    assert_eq!(error.code(), Some("READONLY"));
    assert!(!error.may_have_run() && error.is_retryable());
    echo(&client, "reads are fine").await.unwrap();
}

async fn a_master_without_replicas_refuses_writes_if_told_to(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).config("min-replicas-to-write 1").start().await;
    let client = connect(server.tcp_url()).await;
    let error = client.call::<()>(cmd("SET").key("k").arg("v")).await.unwrap_err();
    assert_eq!(error.code(), Some("NOREPLICAS"));
    assert!(!error.may_have_run() && error.fault() == Fault::Server);
}

async fn a_busy_server_is_slow_but_not_dead(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).config("busy-reply-threshold 50").start().await;
    let client = connect(watchful(server.tcp_url())).await;
    let mut session = client.session().await.unwrap();
    let endless = tokio::spawn(async move {
        session.call::<i64>(cmd("EVAL").arg("while true do end").arg(0).blocking()).await
    });
    let error = loop {
        match client.call::<Option<String>>(cmd("GET").key("k")).await {
            Err(error @ CallError::Server(_)) => break error,
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
            Ok(_) => {}
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(error.code(), Some("BUSY"));
    assert!(!error.may_have_run() && error.is_retryable());
    // several times the span that a silent server is given
    for _ in 0..10 {
        assert_eq!(client.call::<String>(cmd("GET").key("k")).await.unwrap_err().code(), Some("BUSY"));
        let _ = tokio::time::timeout(ms(60), std::future::pending::<()>()).await;
    }
    assert_eq!(client.call::<String>(cmd("SCRIPT").arg("KILL")).await.unwrap(), "OK");
    assert!(soon(endless).await.unwrap().is_err());
    assert!(client.call::<Option<String>>(cmd("GET").key("k")).await.unwrap().is_none());
}

async fn c03_a_scripts_own_error_is_no_promise(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let call = |script: Script| async {
        let script = script;
        client.call::<()>(cmd("DEL").key("n")).await.unwrap();
        let error = client.eval::<i64>(&script.key("n")).await.unwrap_err();
        assert_eq!(server.command(&["GET", "n"]).await.int(), 1, "it wrote, and once");
        error
    };
    for code in [
        "BUSY",
        "OOM",
        "READONLY",
        "LOADING",
        "MOVED",
        "NOSCRIPT",
        "MISCONF",
        "NOREPLICAS",
        "EXECABORT",
        "NOPERM",
    ] {
        let forged = format!("redis.call('INCR', KEYS[1]) return redis.error_reply('{code} of my own')");
        let error = call(Script::new(forged)).await;
        assert!(error.code() == Some(code) && error.may_have_run(), "{error:?}");
    }
    // The server's own words, met by the script in its middle.
    server.order(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    let halfway = "redis.call('INCR', KEYS[1]) local r = redis.pcall('SELECT', 99999) return r";
    let error = call(Script::new(halfway)).await;
    assert!(error.may_have_run(), "{error:?}");
    // A script that declares its writes is refused before it runs.
    let declared = Script::new("#!lua\nreturn redis.call('INCR', KEYS[1])");
    assert_eq!(client.eval::<i64>(&declared.key("n")).await.unwrap(), 2);
    server.order(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let full = client.eval::<i64>(&declared.key("n")).await.unwrap_err();
    assert!(full.code() == Some("OOM") && !full.may_have_run() && full.is_retryable(), "{full:?}");
    let undeclared = Script::new("return redis.call('INCR', KEYS[1])");
    let full = client.eval::<i64>(&undeclared.key("n")).await.unwrap_err();
    assert!(full.code() == Some("OOM") && full.may_have_run() && full.is_retryable(), "{full:?}");
    server.order(&["CONFIG", "SET", "maxmemory", "0"]).await;
    // What the server refuses before it runs anything is still a promise.
    let unknown = client.eval_known::<i64>(&Script::new("return 4711").key("n")).await.unwrap_err();
    assert!(unknown.code() == Some("NOSCRIPT") && !unknown.may_have_run(), "{unknown:?}");
    let plain = pipe().then(cmd("EVALSHA").arg("0".repeat(40)).arg(0)).then(cmd("PING"));
    let (unknown, pong) = client.pipeline::<(i64, String)>(plain).await.unwrap();
    assert!(!unknown.unwrap_err().may_have_run() && pong.is_ok());
}

async fn c11_a_long_command_without_a_limit_is_not_taken_for_a_dead_peer(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(watchful(server.tcp_url())).await;
    let connection = client.server().unwrap().connection_id;
    // Several times the span that a silent server is given.
    let long = || cmd("DEBUG").arg("SLEEP").arg("1");
    for limit in [None, Some(LONG)] {
        let begun = Instant::now();
        let call = client.call::<String>(long());
        let call = match limit {
            None => call.no_timeout(),
            Some(limit) => call.timeout(limit),
        };
        let other = client.call::<String>(cmd("PING")).timeout(ms(100));
        let (answer, other) = tokio::join!(call, other);
        assert_eq!(answer.unwrap(), "OK", "after {:?}", begun.elapsed());
        assert!(matches!(other, Err(CallError::Timeout { .. })), "{other:?}");
    }
    assert_eq!(client.server().unwrap().connection_id, connection, "the connection lived through it");
    // With a limit that is over, silence means what it meant.
    server.freeze();
    client.call::<String>(cmd("PING")).timeout(ms(20)).await.unwrap_err();
    wait::until(LONG, "the frozen server is found out", async || {
        matches!(client.last_error(), Some(LostCause::Silent(_)))
    })
    .await;
    server.thaw();
    wait::until(LONG, "it is back", async || echo(&client, "back").await.is_ok()).await;
}

async fn c20_an_aborted_transaction_has_not_run(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let wrong = pipe().then(cmd("INCR").key("n")).then(cmd("NOSUCH"));
    let error = client.transaction::<(i64, i64)>(wrong).await.unwrap_err();
    assert!(error.to_string().contains("NOSUCH"), "the cause is told: {error}");
    assert!(!error.may_have_run() && !error.is_retryable(), "{error:?}");
    let mut session = client.session().await.unwrap();
    let wrong = pipe().then(cmd("INCR").key("n")).then(cmd("GET"));
    assert!(!session.transaction::<(i64, i64)>(wrong).await.unwrap_err().may_have_run());
    assert!(server.command(&["GET", "n"]).await.is_nil());
    // A command that fails inside a transaction that ran may have done something.
    let failing = pipe().then(cmd("SET").key("n").arg("x")).then(cmd("INCR").key("n"));
    let (set, incr) = client.transaction::<(String, i64)>(failing).await.unwrap();
    assert!(set.is_ok() && incr.unwrap_err().may_have_run());
}

async fn a_full_server_is_tried_again_later(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).config("maxclients 20").start().await;
    let mut others = Vec::new();
    let refused = loop {
        match Client::connect(quick(server.tcp_url())).await {
            Ok(client) => others.push(client),
            Err(error) => break error,
        }
        assert!(others.len() <= 20);
    };
    assert!(matches!(refused, ConnectError::Refused { .. } | ConnectError::Broken { .. }), "{refused:?}");
    assert!(refused.is_retryable());
    let client = Client::lazy(quick(server.tcp_url())).unwrap();
    wait::until(LONG, "it was refused", async || client.last_error().is_some()).await;
    others.pop().unwrap().close().await;
    others.pop().unwrap().close().await;
    soon(client.ready()).await.unwrap();
    wait::until(LONG, "it is served", async || echo(&client, "in").await.is_ok()).await;
}
