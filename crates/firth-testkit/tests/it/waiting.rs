//! The polling helper and the port reservations.

use firth_testkit::ports::Port;
use firth_testkit::wait;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

#[tokio::test]
async fn waiting_ends_as_soon_as_the_condition_holds() {
    let start = Instant::now();
    let mut polls = 0;
    wait::until(Duration::from_secs(30), "three polls have been made", async || {
        polls += 1;
        polls == 3
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
#[should_panic(expected = "waiting until pigs fly")]
async fn waiting_in_vain_says_for_what() {
    wait::until(Duration::from_millis(20), "pigs fly", async || false).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_runs_on_the_real_clock_even_when_tokios_is_paused() {
    let start = Instant::now();
    let limit = Duration::from_millis(60);
    assert!(wait::until_some(limit, async || None::<()>).await.is_none());
    assert!(start.elapsed() >= limit);
}

#[tokio::test]
async fn a_reserved_port_refuses_until_its_owner_listens_and_is_given_to_nobody_else() {
    let port = Port::reserve();
    assert!(TcpStream::connect(port.addr()).await.is_err());
    let listener = port.listen();
    assert!(TcpStream::connect(port.addr()).await.is_ok());
    drop(listener);
    let others: Vec<Port> = (0..200).map(|_| Port::reserve()).collect();
    assert!(others.iter().all(|other| other.number() != port.number()));
    assert!(TcpStream::connect(port.addr()).await.is_err());
}
