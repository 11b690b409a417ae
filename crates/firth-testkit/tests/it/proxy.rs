//! Each fault does what its method says, and nothing else.

use firth_testkit::resp::Conn;
use firth_testkit::{Direction, Flavor, Proxy, RedisServer, on_both, wait};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(10);

on_both!(commands_pass_unchanged, a_cut_resets_all_and_welcomes_new_connections);

/// A peer that sends back what it receives.
async fn echo() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    addr
}

async fn read_exactly(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    tokio::time::timeout(LONG, stream.read_exact(&mut bytes)).await.expect("bytes come").unwrap();
    bytes
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(SHORT, stream.read(&mut [0])).await.is_err()
}

async fn is_reset(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    let read = tokio::time::timeout(LONG, stream.read(&mut byte)).await.expect("the reset comes");
    read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

async fn commands_pass_unchanged(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut conn = Conn::over(TcpStream::connect(proxy.addr()).await.unwrap());
    let value = "v".repeat(3_000_000);
    assert_eq!(conn.call(&["SET", "k", &value]).await.unwrap().text(), "OK");
    assert_eq!(conn.call(&["GET", "k"]).await.unwrap().text(), value);
    assert_eq!(proxy.connections(), 1);
    assert!(proxy.bytes_to_client() > 3_000_000 && proxy.bytes_to_server() > 3_000_000);
}

async fn a_cut_resets_all_and_welcomes_new_connections(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(TcpStream::connect(proxy.addr()).await.unwrap());
    }
    wait::until(LONG, "all are accepted", async || proxy.open_connections() == 5).await;
    proxy.cut().await;
    assert_eq!(proxy.open_connections(), 0);
    for stream in &mut streams {
        assert!(is_reset(stream).await);
    }
    let mut conn = Conn::over(TcpStream::connect(proxy.addr()).await.unwrap());
    assert_eq!(conn.call(&["PING"]).await.unwrap().text(), "PONG");
    assert_eq!(proxy.connections(), 6);
}

#[tokio::test]
async fn refused_connections_fail_at_once_while_open_ones_live_on() {
    let proxy = Proxy::start(echo().await).await;
    let mut open = TcpStream::connect(proxy.addr()).await.unwrap();
    open.write_all(b"a").await.unwrap();
    read_exactly(&mut open, 1).await;
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    open.write_all(b"b").await.unwrap();
    assert_eq!(read_exactly(&mut open, 1).await, b"b");
    proxy.heal().await;
    assert!(TcpStream::connect(proxy.addr()).await.is_ok());
}

#[tokio::test]
async fn half_open_swallows_without_closing_and_healing_resets_what_lost_bytes() {
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        let proxy = Proxy::start(echo().await).await;
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        proxy.half_open(direction);
        stream.write_all(b"lost").await.unwrap();
        assert!(is_silent(&mut stream).await, "{direction:?}");
        let reached = if direction == Direction::ToClient { 4 } else { 0 };
        assert_eq!((proxy.bytes_to_server(), proxy.bytes_to_client()), (reached, 0), "{direction:?}");
        let mut bystander = TcpStream::connect(proxy.addr()).await.unwrap();
        wait::until(LONG, "the bystander is accepted", async || proxy.open_connections() == 2).await;
        proxy.heal().await;
        assert!(is_reset(&mut stream).await, "{direction:?}");
        bystander.write_all(b"x").await.unwrap();
        assert_eq!(read_exactly(&mut bystander, 1).await, b"x");
    }
}

#[tokio::test]
async fn a_half_open_proxy_hides_that_the_server_is_gone() {
    let server = RedisServer::start(Flavor::Redis).await;
    let proxy = Proxy::start(server.addr()).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    wait::until(LONG, "the link is up", async || server.info("clients").await["connected_clients"] == "2")
        .await;
    proxy.half_open(Direction::Both);
    server.shutdown().await;
    assert!(is_silent(&mut stream).await);
}

#[tokio::test]
async fn stalled_bytes_arrive_whole_after_healing() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.stall(Direction::ToClient);
    stream.write_all(b"patience").await.unwrap();
    assert!(is_silent(&mut stream).await);
    proxy.heal().await;
    assert_eq!(read_exactly(&mut stream, 8).await, b"patience");
}

#[tokio::test]
async fn a_delay_adds_latency_but_does_not_limit_throughput() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    for _ in 0..20 {
        stream.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await; // twenty chunks instead of one
    }
    read_exactly(&mut stream, 20).await;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(130), "{took:?}");
    assert!(took < Duration::from_millis(1000), "chunks are delayed side by side: {took:?}");
}

#[tokio::test]
async fn a_throttle_holds_its_rate() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.throttle(100_000);
    let start = Instant::now();
    stream.write_all(&[7; 40_000]).await.unwrap();
    read_exactly(&mut stream, 40_000).await;
    let took = start.elapsed();
    assert!(took > Duration::from_millis(300) && took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn healing_frees_what_a_throttle_holds() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.throttle(10);
    stream.write_all(&[7; 5_000]).await.unwrap();
    read_exactly(&mut stream, 1).await;
    proxy.heal().await;
    assert_eq!(read_exactly(&mut stream, 4_999).await, [7; 4_999]);
}

#[tokio::test]
async fn split_bytes_arrive_in_order_and_apart() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.split(1);
    let sent: Vec<u8> = (0..2000u16).map(|n| n.to_le_bytes()[0]).collect();
    // A reader that waits for the processor finds many pieces at once, so one round proves nothing.
    wait::until(LONG, "2000 bytes come in more than 20 reads", async || {
        stream.write_all(&sent).await.unwrap();
        let mut received = Vec::new();
        let mut reads = 0;
        let mut buffer = [0; 4096];
        while received.len() < sent.len() {
            let count = tokio::time::timeout(LONG, stream.read(&mut buffer)).await.unwrap().unwrap();
            received.extend_from_slice(&buffer[..count]);
            reads += 1;
        }
        assert_eq!(received, sent);
        reads > 20
    })
    .await;
}

#[tokio::test]
async fn truncation_lets_exactly_so_many_bytes_through_on_each_connection() {
    let proxy = Proxy::start(echo().await).await;
    for limit in [0, 1, 5, 11] {
        proxy.truncate_after(limit);
        for _ in 0..2 {
            let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
            stream.write_all(b"hello world, hello").await.unwrap();
            let bytes = read_exactly(&mut stream, usize::try_from(limit).unwrap()).await;
            assert_eq!(bytes, &b"hello world, hello"[..bytes.len()]);
            assert!(is_reset(&mut stream).await);
        }
    }
}

#[tokio::test]
async fn truncation_counts_from_the_moment_it_is_set() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(b"before").await.unwrap();
    read_exactly(&mut stream, 6).await;
    proxy.truncate_after(3);
    stream.write_all(b"after").await.unwrap();
    assert_eq!(read_exactly(&mut stream, 3).await, b"aft");
    assert!(is_reset(&mut stream).await);
}

#[tokio::test]
async fn a_flipped_byte_is_the_only_one_that_changes() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.flip(2);
    stream.write_all(b"abcd").await.unwrap();
    assert_eq!(read_exactly(&mut stream, 4).await, [b'a', b'b', !b'c', b'd']);
}

#[tokio::test]
async fn a_retargeted_proxy_sends_new_connections_elsewhere() {
    let one = RedisServer::start(Flavor::Redis).await;
    let two = RedisServer::start(Flavor::Redis).await;
    two.command(&["SET", "name", "two"]).await;
    let proxy = Proxy::start(one.addr()).await;
    let mut old = Conn::over(TcpStream::connect(proxy.addr()).await.unwrap());
    assert!(old.call(&["GET", "name"]).await.unwrap().is_nil());
    proxy.retarget(two.addr());
    let mut new = Conn::over(TcpStream::connect(proxy.addr()).await.unwrap());
    assert_eq!(new.call(&["GET", "name"]).await.unwrap().text(), "two");
    assert!(old.call(&["GET", "name"]).await.unwrap().is_nil());
}

#[tokio::test]
async fn a_close_passes_through_in_both_directions() {
    let proxy = Proxy::start(echo().await).await;
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(b"last words").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut all = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, b"last words");
    wait::until(LONG, "the link is gone", async || proxy.open_connections() == 0).await;
}

#[tokio::test]
async fn a_dropped_proxy_takes_its_connections_along() {
    let proxy = Proxy::start(echo().await).await;
    let addr = proxy.addr();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    drop(proxy);
    let read = tokio::time::timeout(LONG, stream.read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)));
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_dead_target_resets_the_client() {
    let server = RedisServer::start(Flavor::Redis).await;
    let proxy = Proxy::start(server.addr()).await;
    server.kill().await;
    match TcpStream::connect(proxy.addr()).await {
        Ok(mut stream) => assert!(is_reset(&mut stream).await),
        // The reset may be quicker than the end of connecting.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}
