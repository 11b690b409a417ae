//! Passwords, users and their rights: right ones work in one step, wrong ones are clear errors and
//! never a storm.

use crate::support::*;
use firth_redis::{
    Backoff, CallError, Client, ConnectError, ConnectionEventKind, ConnectionPhase, ConnectionState, Fault,
    LostCause, Script, cmd, pipe,
};
use firth_testkit::{Flavor, RedisServer, on_both, wait};
use std::time::Instant;

on_both!(
    a_password_is_given_in_the_first_step,
    a_wrong_password_is_a_clear_error_and_no_storm,
    no_password_where_one_is_needed_is_a_clear_error,
    a_user_has_only_its_rights,
    a_script_that_met_a_forbidden_command_may_have_run,
    a_refused_transaction_is_not_taken_for_one_that_did_not_run,
    rights_come_back_without_a_restart,
);

async fn a_password_is_given_in_the_first_step(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .password("p@ss w/rd:?#")
        .acl_user("alice", "on >wonder&land ~* +@all")
        .start()
        .await;
    let client = connect(server.tcp_url()).await;
    assert_eq!(client.server().unwrap().protocol, 3, "HELLO and AUTH in one");
    let who: String = client.call(cmd("ACL").arg("WHOAMI")).await.unwrap();
    assert_eq!(who, "default");
    let url = format!("redis://alice:wonder%26land@{}/?name=in-wonderland", server.addr());
    let client = connect(url).await;
    assert_eq!(client.call::<String>(cmd("ACL").arg("WHOAMI")).await.unwrap(), "alice");
    assert_eq!(client.call::<String>(cmd("CLIENT").arg("GETNAME")).await.unwrap(), "in-wonderland");
}

async fn a_wrong_password_is_a_clear_error_and_no_storm(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).password("right").start().await;
    let url = format!("redis://:wrong@{}", server.addr());
    let begun = Instant::now();
    let error = Client::connect(url.as_str()).await.unwrap_err();
    assert!(begun.elapsed() < ms(2000));
    let ConnectError::Refused { error: ref words, step: "HELLO", .. } = error else { panic!("{error:?}") };
    assert_eq!(&*words.code, "WRONGPASS");
    assert!(!error.is_retryable() && !error.to_string().contains("wrong@"), "{error}");

    let mut config = quick(url.as_str());
    config.reconnect = Some(Backoff { immediate: 50, first: ms(40), max: ms(500), factor: 2.0, jitter: 0.0 });
    let client = Client::lazy(config).unwrap();
    let mut events = client.events();
    let first = soon(events.next()).await.unwrap();
    let begun = Instant::now();
    for attempts in first.attempts + 1..first.attempts + 5 {
        let event = soon(events.next()).await.unwrap();
        assert_eq!(
            (event.kind, event.phase, event.attempts),
            (ConnectionEventKind::Disconnected, ConnectionPhase::Handshake, attempts)
        );
    }
    // at least 40 + 80 + 160 + 320: refused tries never follow each other at once
    assert!(begun.elapsed() >= ms(590), "{:?}", begun.elapsed());
    reaches(&client, ConnectionState::Failed).await;
    let error = client.call::<String>(cmd("PING")).await.unwrap_err();
    let CallError::Down { cause: LostCause::Reconnect(why) } = &error else { panic!("{error:?}") };
    assert!(matches!(**why, ConnectError::Refused { .. }) && !error.is_retryable() && !error.may_have_run());
    client.close().await;
}

async fn no_password_where_one_is_needed_is_a_clear_error(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).password("right").start().await;
    let error = Client::connect(format!("redis://{}", server.addr())).await.unwrap_err();
    let ConnectError::Refused { error: words, .. } = &error else { panic!("{error:?}") };
    assert_eq!(&*words.code, "NOAUTH");
    let error = Client::connect(format!("redis://nobody:right@{}", server.addr())).await.unwrap_err();
    let ConnectError::Refused { error: words, .. } = &error else { panic!("{error:?}") };
    assert_eq!(&*words.code, "WRONGPASS");
}

async fn a_user_has_only_its_rights(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .acl_user("reader", "on >pw ~mine:* -@all +get +mget +ping")
        .start()
        .await;
    let client = connect(format!("redis://reader:pw@{}/", server.addr())).await;
    let none: Option<String> = client.call(cmd("GET").key("mine:1")).await.unwrap();
    assert!(none.is_none());
    for command in [cmd("SET").key("mine:1").arg("x"), cmd("GET").key("yours:1")] {
        let error = client.call::<Option<String>>(command).await.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"));
        assert!(!error.may_have_run() && !error.is_retryable() && error.fault() == Fault::Caller);
    }
    // a database needs SELECT, which this user may not
    let error = Client::connect(format!("redis://reader:pw@{}/1", server.addr())).await.unwrap_err();
    let ConnectError::Refused { step: "SELECT", error: words, .. } = &error else { panic!("{error:?}") };
    assert_eq!(&*words.code, "NOPERM");
}

async fn a_script_that_met_a_forbidden_command_may_have_run(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).acl_user("app", "on >pw ~* +@all -del").start().await;
    let client = connect(format!("redis://app:pw@{}/", server.addr())).await;
    let script = Script::new("redis.call('SET', KEYS[1], 1); return redis.call('DEL', KEYS[1])");
    let error = client.eval::<i64>(&script.key("k")).await.unwrap_err();
    assert_eq!(server.command(&["GET", "k"]).await.int(), 1, "it wrote before it was stopped");
    assert!(error.may_have_run(), "{error}");
}

async fn a_refused_transaction_is_not_taken_for_one_that_did_not_run(flavor: Flavor) {
    let server =
        RedisServer::builder().flavor(flavor).acl_user("app", "on >pw ~* +@all -multi").start().await;
    let client = connect(format!("redis://app:pw@{}/", server.addr())).await;
    let error = client.transaction::<(i64,)>(pipe().then(cmd("INCR").key("n"))).await.unwrap_err();
    assert_eq!(server.command(&["GET", "n"]).await.int(), 1, "without MULTI it ran");
    assert!(error.may_have_run() && error.to_string().contains("NOPERM"), "{error}");
}

async fn rights_come_back_without_a_restart(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).acl_user("app", "on >old ~* +@all").start().await;
    let client = connect(quick(format!("redis://app:old@{}/", server.addr()))).await;
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">new"]).await;
    server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    wait::until(LONG, "the client is refused", async || {
        matches!(client.last_error(), Some(LostCause::Reconnect(_)))
    })
    .await;
    server.command(&["ACL", "SETUSER", "app", ">old"]).await;
    soon(client.ready()).await.unwrap();
    echo(&client, "welcome back").await.unwrap();
}
