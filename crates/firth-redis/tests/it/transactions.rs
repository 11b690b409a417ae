//! MULTI/EXEC, sessions with WATCH, scripts, and the commands that belong to no shared connection.

use crate::support::*;
use firth_redis::{CallError, Client, Script, Unpack, cmd, pipe};
use firth_testkit::{Flavor, RedisServer, on_both};

on_both!(
    a_transaction_runs_whole_and_each_command_has_its_own_result,
    a_command_that_cannot_be_queued_keeps_all_from_running,
    a_watched_key_that_changed_is_a_conflict,
    a_session_is_a_connection_of_its_own,
    scripts_are_loaded_when_the_server_does_not_know_them,
    what_belongs_to_a_connection_is_refused_with_a_hint,
);

async fn a_transaction_runs_whole_and_each_command_has_its_own_result(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let three =
        pipe().then(cmd("SET").key("k").arg("text")).then(cmd("INCR").key("k")).then(cmd("INCR").key("n"));
    let (set, wrong, n) = client.transaction::<(String, i64, i64)>(three).await.unwrap();
    assert_eq!((set.unwrap().as_str(), n.unwrap()), ("OK", 1));
    let wrong = wrong.unwrap_err();
    assert!(matches!(&wrong, CallError::Server(_)) && wrong.code() == Some("ERR"), "{wrong:?}");
    let nested = pipe()
        .then(cmd("RPUSH").key("l").arg("a").arg("b"))
        .then(cmd("LRANGE").key("l").arg(0).arg(-1))
        .then(cmd("GET").key("none"));
    let (len, list, none) =
        client.transaction::<(i64, Vec<String>, Option<i64>)>(nested).await.unwrap().unpack().unwrap();
    assert_eq!((len, list, none), (2, vec!["a".to_owned(), "b".to_owned()], None));
    assert!(client.transaction::<Vec<i64>>(pipe()).await.unwrap().is_empty());
    let many = (0..100).map(|_| cmd("INCR").key("many")).collect::<firth_redis::Pipe>();
    let counts = client.transaction::<Vec<i64>>(many).await.unwrap().unpack().unwrap();
    assert_eq!(counts, (1..=100).collect::<Vec<i64>>());
    let wrong_size = client.transaction::<(i64,)>(pipe().then(cmd("PING")).then(cmd("PING"))).await;
    assert!(matches!(wrong_size, Err(CallError::Invalid(_))));
}

async fn a_command_that_cannot_be_queued_keeps_all_from_running(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let bad =
        pipe().then(cmd("INCR").key("n")).then(cmd("NOSUCHCOMMAND").arg("x")).then(cmd("INCR").key("n"));
    let error = client.transaction::<(i64, i64, i64)>(bad).await.unwrap_err();
    let words = error.server().unwrap();
    assert!(
        &*words.code == "ERR" && words.message.contains("unknown command"),
        "the cause, not EXECABORT: {words}"
    );
    assert!(server.command(&["GET", "n"]).await.is_nil());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = client.transaction::<(i64,)>(pipe().then(cmd("INCR").key("n"))).await.unwrap_err();
    assert_eq!((error.code(), error.may_have_run()), (Some("OOM"), false));
    echo(&client, "the connection is not left in a transaction").await.unwrap();
}

async fn a_watched_key_that_changed_is_a_conflict(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let mut session = client.session().await.unwrap();
    client.call::<()>(cmd("SET").key("n").arg(1)).await.unwrap();
    session.call::<()>(cmd("WATCH").key("n")).await.unwrap();
    let n: i64 = session.call(cmd("GET").key("n")).await.unwrap();
    client.call::<()>(cmd("SET").key("n").arg(10)).await.unwrap();
    let set = || pipe().then(cmd("SET").key("n").arg(n + 1));
    let error = session.transaction::<(String,)>(set()).await.unwrap_err();
    assert!(matches!(error, CallError::Conflict) && !error.may_have_run() && error.is_retryable());
    assert_eq!(server.command(&["GET", "n"]).await.int(), 10);
    session.call::<()>(cmd("WATCH").key("n")).await.unwrap();
    session.transaction::<(String,)>(set()).await.unwrap().unpack().unwrap();
    assert_eq!(server.command(&["GET", "n"]).await.int(), 2);
    session.close().await;
}

async fn a_session_is_a_connection_of_its_own(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(quick(server.tcp_url())).await;
    let mut session = client.session().await.unwrap();
    session.call::<()>(cmd("SELECT").arg(7)).await.unwrap();
    let two = pipe().then(cmd("SET").key("k").arg(1)).then(cmd("GET").key("k"));
    let (_, k) = session.pipeline::<(String, i64)>(two).await.unwrap().unpack().unwrap();
    assert_eq!((k, client.call::<Option<i64>>(cmd("GET").key("k")).await.unwrap()), (1, None));
    // a dropped call leaves no reply behind for the next
    let _ = tokio::time::timeout(ms(0), session.call::<String>(cmd("ECHO").arg("dropped"))).await;
    assert_eq!(session.call::<String>(cmd("ECHO").arg("kept")).await.unwrap(), "kept");
    assert!(matches!(session.call::<String>(cmd("SUBSCRIBE").arg("c")).await, Err(CallError::Invalid(_))));
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let error = soon(async {
        loop {
            if let Err(error) = session.call::<i64>(cmd("GET").key("k")).await {
                break error;
            }
        }
    })
    .await;
    assert!(
        matches!(error, CallError::Lost { .. } | CallError::Closed { .. } | CallError::Down { .. }),
        "{error:?}"
    );
    firth_testkit::wait::until(LONG, "it does not come back without its state", async || {
        matches!(session.call::<i64>(cmd("GET").key("k")).await, Err(CallError::Closed { sent: false }))
    })
    .await;
}

async fn scripts_are_loaded_when_the_server_does_not_know_them(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let script = Script::new("return {KEYS[1], KEYS[2], ARGV[1], redis.call('INCR', KEYS[1])}");
    for round in 1..=5 {
        let call = script.keys(["a", "b"]).arg(round);
        let answer: (String, String, i64, i64) = client.eval(&call).await.unwrap();
        assert_eq!(answer, ("a".into(), "b".into(), round, round), "it runs once per call");
        if round % 2 == 0 {
            server.command(&["SCRIPT", "FLUSH"]).await;
        }
    }
    let many = futures_util::future::join_all((0..50).map(|_| async {
        client.eval::<(String, String, i64, i64)>(&script.keys(["a", "b"]).arg(0)).await.unwrap().3
    }));
    let mut counts = many.await;
    counts.sort_unstable();
    assert_eq!(counts, (6..56).collect::<Vec<i64>>());
    let error = client.eval::<()>(&Script::new("return redis.call('NOPE')").key("k")).await.unwrap_err();
    assert!(matches!(error, CallError::Server(_)), "{error:?}");
}

async fn what_belongs_to_a_connection_is_refused_with_a_hint(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    for (command, hint) in [
        (cmd("SUBSCRIBE").arg("c"), "mux"),
        (cmd("psubscribe").arg("c*"), "mux"),
        (cmd("MONITOR"), "one-way"),
        (cmd("HELLO").arg(2), "configuration"),
        (cmd("QUIT"), "close()"),
        (cmd("CLIENT").arg("REPLY").arg("OFF"), "without replies"),
        (cmd("MULTI"), "transaction()"),
        (cmd("WATCH").key("k"), "session()"),
        (cmd("SELECT").arg(1), "session()"),
        (cmd("AUTH").arg("pw"), "configuration"),
        (cmd("WAIT").arg(1).arg(0), "pipeline"),
    ] {
        refused(&client, command.clone(), hint).await;
        if command.name() != "WAIT" {
            let error =
                client.pipeline::<Vec<String>>(pipe().then(cmd("ECHO").arg(1)).then(command.clone())).await;
            let Err(CallError::Invalid(text)) = &error else {
                panic!("{command:?} in a pipeline: {error:?}")
            };
            assert!(text.contains(hint) && text.starts_with(command.name()), "{text}");
        }
    }
    let info: String = client.call(cmd("CLIENT").arg("INFO")).await.unwrap();
    assert!(info.contains("db=0") && info.contains("resp=3"), "nothing reached the server: {info}");
    assert_eq!(server.info("commandstats").await.get("cmdstat_echo"), None);
}

async fn refused(client: &Client, command: firth_redis::Command, hint: &str) {
    let error = client.call::<String>(command.clone()).await.unwrap_err();
    let CallError::Invalid(text) = &error else { panic!("{command:?}: {error:?}") };
    assert!(text.contains(hint), "{text}");
    assert!(!error.may_have_run() && !error.is_retryable());
}
