//! What the laws here share: short configurations, waiting for a state, and the gathering of many
//! requests.

use firth_redis::config::Liveness;
use firth_redis::{Backoff, CallError, Client, Command, Config, ConnectionState, IntoConfig, cmd};
use firth_testkit::wait;
use std::future::IntoFuture;
use std::time::Duration;

/// Longer than anything here takes, short enough for a test to fail in time.
pub const LONG: Duration = Duration::from_secs(20);

/// Milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The usual configuration, but failing tries follow each other quickly for as long as it takes.
pub fn quick(url: impl IntoConfig) -> Config {
    let mut config = url.into_config().expect("the URL is valid");
    config.reconnect =
        Some(Backoff { immediate: 2, first: ms(5), max: ms(50), factor: 2.0, ..Backoff::default() });
    config
}

/// As [`quick`], and a silent server is found out in a fraction of a second.
pub fn watchful(url: impl IntoConfig) -> Config {
    let mut config = quick(url);
    config.liveness = Some(Liveness { ping_after: ms(50), dead_after: ms(150) });
    config.timeouts.connect = Some(ms(300));
    config.timeouts.handshake = Some(ms(300));
    config
}

/// After a failure the next try is not due before the test is over.
pub fn once(url: impl IntoConfig) -> Config {
    let mut config = quick(url);
    config.reconnect = Some(Backoff::fixed(Duration::from_secs(3600)));
    config
}

pub async fn connect(to: impl IntoConfig) -> Client {
    soon(Client::connect(to)).await.expect("the server is there")
}

/// A future that must end soon, with any limits of its own.
pub async fn soon<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("it ends in time")
}

/// Waits until the client's shared connection is in a state.
pub async fn reaches(client: &Client, state: ConnectionState) {
    wait::until(LONG, format!("the client is {state:?}"), async || client.state() == state).await;
}

/// Waits until nothing is left of any request.
pub async fn settles(client: &Client) {
    wait::until(LONG, "no request is left", async || client.in_flight() == 0).await;
}

/// Asks for `text` back, and checks that this very text comes.
pub async fn echo(client: &Client, text: &str) -> Result<(), CallError> {
    let answer: String = client.call(cmd("ECHO").arg(text)).await?;
    assert_eq!(answer, text, "an answer was given to another request");
    Ok(())
}

/// Polls calls of the same kind in tasks of their own; their results in order.
pub struct Many<T>(Vec<tokio::task::JoinHandle<Result<T, CallError>>>);

impl<T: firth_redis::FromValue + Send + 'static> Many<T> {
    /// Starts `count` calls and waits until the client has taken all of them.
    pub async fn start(client: &Client, count: usize, command: impl Fn(usize) -> Command) -> Self {
        let before = client.in_flight();
        let calls = (0..count)
            .map(|n| {
                let client = client.clone();
                let command = command(n);
                tokio::spawn(async move { client.call(command).no_timeout().await })
            })
            .collect();
        wait::until(LONG, "all requests are under way", async || client.in_flight() >= before + count).await;
        Self(calls)
    }

    pub async fn results(self) -> Vec<Result<T, CallError>> {
        let mut results = Vec::new();
        for call in self.0 {
            results.push(soon(call).await.expect("no call panics"));
        }
        results
    }
}

/// Tasks of this runtime that are alive; the test's own future is none.
pub fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}
