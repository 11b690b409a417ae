//! Starting, killing, freezing and restarting servers.

use firth_testkit::resp::Conn;
use firth_testkit::{Flavor, Persist, RedisServer, Reply, on_both};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

on_both!(
    a_server_answers_on_its_port_and_on_its_socket,
    a_killed_server_is_gone_and_comes_back_on_its_port,
    a_frozen_server_keeps_connections_but_does_not_answer,
    data_outlive_a_kill_only_if_they_are_persisted,
    a_snapshot_is_taken_at_shutdown,
    options_reach_the_server,
    a_relaunched_server_may_still_be_loading,
    many_servers_start_at_once_without_fighting_for_ports,
);

async fn a_server_answers_on_its_port_and_on_its_socket(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut tcp = Conn::over(TcpStream::connect(server.addr()).await.unwrap());
    let mut unix = Conn::over(UnixStream::connect(server.socket_path()).await.unwrap());
    assert_eq!(tcp.call(&["SET", "k", "v"]).await.unwrap(), Reply::Simple("OK".into()));
    assert_eq!(unix.call(&["GET", "k"]).await.unwrap().text(), "v");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    assert_eq!(server.info("server").await["tcp_port"], server.port().to_string());
    assert_eq!(server.info("server").await["process_id"], server.pid().to_string());
}

async fn a_killed_server_is_gone_and_comes_back_on_its_port(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let port = server.port();
    let pid = server.pid();
    server.kill().await;
    assert!(!server.is_running());
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    server.restart().await;
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["PING"]).await.text(), "PONG");
}

async fn a_frozen_server_keeps_connections_but_does_not_answer(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut conn = Conn::over(TcpStream::connect(server.addr()).await.unwrap());
    server.freeze();
    let ping = conn.call(&["PING"]);
    tokio::pin!(ping);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut ping).await.is_err());
    assert!(server.is_running());
    server.thaw();
    assert_eq!(ping.await.unwrap().text(), "PONG");
}

async fn data_outlive_a_kill_only_if_they_are_persisted(flavor: Flavor) {
    for (persist, expected) in [(Persist::AofAlways, 1), (Persist::None, 0)] {
        let server = RedisServer::builder().flavor(flavor).persist(persist).start().await;
        server.command(&["SET", "k", "v"]).await;
        server.restart().await;
        assert_eq!(server.command(&["DBSIZE"]).await.int(), expected, "{persist:?}");
    }
}

async fn a_snapshot_is_taken_at_shutdown(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::Rdb).start().await;
    server.command(&["SET", "k", "v"]).await;
    server.shutdown().await;
    server.restart().await;
    assert_eq!(server.command(&["GET", "k"]).await.text(), "v");
}

async fn options_reach_the_server(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .arg("maxmemory", "3mb")
        .config("maxmemory-policy noeviction")
        .start()
        .await;
    let limit = server.command(&["CONFIG", "GET", "maxmemory"]).await;
    assert_eq!(limit.field("maxmemory").unwrap().int(), 3 * 1024 * 1024);
    let filled = server.command(&["SET", "k", &"x".repeat(4 * 1024 * 1024)]).await;
    let refused = server.command(&["SET", "k2", "v"]).await;
    assert!(filled.is_error() || refused.text().starts_with("OOM"), "{refused:?}");
}

async fn a_relaunched_server_may_still_be_loading(flavor: Flavor) {
    let server = RedisServer::builder()
        .flavor(flavor)
        .persist(Persist::Rdb)
        .arg("key-load-delay", "2000") // microseconds per key
        .arg("loading-process-events-interval-bytes", "1024")
        .start()
        .await;
    server.command(&["DEBUG", "POPULATE", "300", "key", "200"]).await;
    server.shutdown().await;
    server.relaunch().await;
    assert!(server.command(&["GET", "key:1"]).await.text().starts_with("LOADING"));
    server.restart().await;
    assert_eq!(server.command(&["DBSIZE"]).await.int(), 300);
}

async fn many_servers_start_at_once_without_fighting_for_ports(flavor: Flavor) {
    let starts: Vec<_> = (0..8).map(|_| tokio::spawn(RedisServer::start(flavor))).collect();
    let mut ports = Vec::new();
    let mut servers = Vec::new();
    for start in starts {
        let server = start.await.unwrap();
        ports.push(server.port());
        servers.push(server);
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 8);
}

#[test]
fn fixture_futures_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    is_send(RedisServer::start(Flavor::Redis));
    is_send(firth_testkit::SentinelSet::start(Flavor::Redis, 1, 1));
    is_send(firth_testkit::Proxy::start(([127, 0, 0, 1], 1).into()));
}
