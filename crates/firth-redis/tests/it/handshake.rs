//! From a bare socket to a ready connection: RESP3, RESP2, databases, names, Unix sockets, and what
//! URLs say.

use crate::fake::Fake;
use crate::support::*;
use firth_redis::{Client, ConnectError, cmd};
use firth_testkit::{Flavor, RedisServer, on_both};

on_both!(
    the_server_tells_who_it_is,
    a_server_without_hello_is_spoken_to_in_resp2,
    the_database_and_the_name_are_set_on_every_connection,
    a_unix_socket_serves_like_tcp,
    a_new_connection_is_settled_like_the_old_one,
);

async fn the_server_tells_who_it_is(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(server.tcp_url()).await;
    let server_info = client.server().unwrap();
    assert_eq!(
        (server_info.protocol, server_info.mode.as_str(), server_info.role.as_str()),
        (3, "standalone", "master")
    );
    // Valkey calls itself redis unless told otherwise
    assert!(["redis", "valkey"].contains(&server_info.server.as_str()), "{server_info:?}");
    assert!(!server_info.version.is_empty());
    let id: i64 = client.call(cmd("CLIENT").arg("ID")).await.unwrap();
    assert_eq!(id, server_info.connection_id);
}

async fn a_server_without_hello_is_spoken_to_in_resp2(flavor: Flavor) {
    for password in [None, Some("pa ss")] {
        let builder = RedisServer::builder().flavor(flavor).config("rename-command HELLO \"\"");
        let server = match password {
            Some(password) => builder.password(password).start().await,
            None => builder.start().await,
        };
        let mut config = quick(server.tcp_url());
        (config.database, config.client_name) = (2, Some("old-school".into()));
        let client = connect(config).await;
        assert_eq!(client.server().unwrap().protocol, 2);
        client.call::<()>(cmd("HSET").key("h").field("a", 1).field("b", 2)).await.unwrap();
        let map: std::collections::HashMap<String, i64> = client.call(cmd("HGETALL").key("h")).await.unwrap();
        assert_eq!(map, [("a".to_owned(), 1), ("b".to_owned(), 2)].into());
        assert_eq!(client.call::<Option<String>>(cmd("GET").key("none")).await.unwrap(), None);
        let info: String = client.call(cmd("CLIENT").arg("INFO")).await.unwrap();
        assert!(info.contains("name=old-school") && info.contains("db=2"), "{info}");
        if password.is_some() {
            let error = Client::connect(format!("redis://:wrong@{}", server.addr())).await.unwrap_err();
            let ConnectError::Refused { step: "AUTH", error, .. } = &error else { panic!("{error:?}") };
            assert_eq!(&*error.code, "WRONGPASS");
        }
    }
}

async fn the_database_and_the_name_are_set_on_every_connection(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let client = connect(format!("{}5?name=worker-7", server.tcp_url())).await;
    client.call::<()>(cmd("SET").key("small").arg("x")).await.unwrap();
    client.call::<()>(cmd("SET").key("big").arg("x".repeat(200 << 10))).await.unwrap();
    client.call::<Option<(String, String)>>(cmd("BLPOP").key("l").arg(0.01)).await.unwrap();
    let list: String = client.call(cmd("CLIENT").arg("LIST")).await.unwrap();
    let ours: Vec<&str> = list.lines().filter(|line| line.contains("name=worker-7")).collect();
    assert_eq!(ours.len(), 3, "shared, bulk, blocking: {list}");
    assert!(ours.iter().all(|line| line.contains("db=5")), "{list}");
    assert_eq!(server.info("keyspace").await["db5"].split(',').next(), Some("keys=2"));
    let mut other = client.session().await.unwrap();
    other.call::<()>(cmd("SELECT").arg(6)).await.unwrap();
    assert_eq!(other.call::<i64>(cmd("DBSIZE")).await.unwrap(), 0);
    assert_eq!(client.call::<i64>(cmd("DBSIZE")).await.unwrap(), 2, "a session is nobody else's");
    let error = Client::connect(format!("{}99999", server.tcp_url())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { step: "SELECT", .. }), "{error:?}");
}

async fn a_unix_socket_serves_like_tcp(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).password("s/cret").start().await;
    let client = connect(format!("{}?db=3&name=local", server.unix_url())).await;
    let info: String = client.call(cmd("CLIENT").arg("INFO")).await.unwrap();
    assert!(info.contains("name=local") && info.contains("db=3"), "{info}");
    let gone = Client::connect(format!("{}.gone", server.unix_url())).await.unwrap_err();
    assert!(matches!(gone, ConnectError::Connect { .. }), "{gone:?}");
}

async fn a_new_connection_is_settled_like_the_old_one(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = quick(format!("{}4?name=steady", server.tcp_url()));
    config.client_name = Some("steady".into());
    let client = connect(config).await;
    client.call::<()>(cmd("SET").key("k").arg(1)).await.unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    firth_testkit::wait::until(LONG, "it is back", async || {
        client.call::<i64>(cmd("GET").key("k")).await.is_ok()
    })
    .await;
    let info: String = client.call(cmd("CLIENT").arg("INFO")).await.unwrap();
    assert!(info.contains("name=steady") && info.contains("db=4"), "{info}");
}

#[tokio::test]
async fn a_server_from_before_hello_gets_its_password_and_its_name() {
    let fake = Fake::bare(|_, mut peer| async move {
        let mut seen = Vec::new();
        while let Some(words) = peer.command().await {
            match words[0].as_str() {
                "HELLO" => peer.say(b"-ERR unknown command `HELLO`, with args beginning with: `3`\r\n").await,
                "PING" => {
                    let all = seen.join(" ");
                    peer.say_text(&all).await;
                }
                _ => {
                    seen.push(words.join("_"));
                    peer.say(b"+OK\r\n").await;
                }
            }
        }
    })
    .await;
    let url = fake.url().replace("redis://", "redis://app:pw@") + "/9?name=me";
    let client = connect(url).await;
    let seen: String = client.call(cmd("PING")).await.unwrap();
    assert!(seen.starts_with("AUTH_app_pw CLIENT_SETNAME_me SELECT_9"), "{seen}");
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_given_up() {
    let fake = Fake::bare(|_, peer| peer.fall_silent()).await;
    let mut config = quick(fake.url());
    config.timeouts.handshake = Some(ms(80));
    let error = soon(Client::connect(config)).await.unwrap_err();
    assert!(error.is_timeout() && error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn names_that_do_not_resolve_and_ports_that_do_not_listen_are_told_apart() {
    let error = Client::connect("redis://no-such-host.invalid").await.unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. } | ConnectError::Timeout { .. }), "{error:?}");
    let port = firth_testkit::ports::Port::reserve();
    let error = Client::connect(format!("redis://{}", port.addr())).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Connect { .. }) && error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_name_with_several_addresses_is_reached_at_the_one_that_listens() {
    // `localhost` usually is [::1] first, where this server does not listen
    let server = RedisServer::start(Flavor::Redis).await;
    let client = connect(format!("redis://localhost:{}", server.port())).await;
    echo(&client, "found").await.unwrap();
}
