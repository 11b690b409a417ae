//! Drives `firth` through its public API from outside, by JSON lines, and judges what came of it.
//!
//! The binary `firth-driver` is one process of a workload (a producer, a consumer, …); an outside
//! program starts several, breaks things on purpose and records what each says. [`history`] reads
//! such a record and states what broke a promise.
//!
//! | command | lines |
//! |---|---|
//! | `setup` | makes the topic and its groups; says nothing, exit code 0 |
//! | `produce` | reads [`Input`]s; answers `sent_ok` when the send is as durable as `--durability` says, or `sent_err` |
//! | `consume` | tells `assigned`, `revoked`, `delivered`; reads [`Command`]s; answers `ack_ok` or `ack_err` |
//! | `final` | prints `final`: what is not settled, and the ids of dead letters |
//!
//! Each works on an engine that it opens itself, or on a running `firth serve` over HTTP
//! ([`Target`]). A server is the one owner of its groups' partitions: its clients share them, and
//! their epochs ([`Promise::exclusive`](history::Promise::exclusive)).
//!
//! End of input is a graceful end. Each line is flushed; logs go to stderr (`RUST_LOG`, warnings
//! unless set). `sha` is the SHA-256 of the payload in lower-case hex, [`sha_of`].
//!
//! It is a crate of its own and not a part of firth-testkit, because the tests of firth-redis use
//! that kit and firth stands on firth-redis: the kit cannot depend on what it tests.

mod args;
mod consume;
pub mod history;
mod http;
mod produce;
mod protocol;
mod setup;
mod tally;
mod wire;

pub use args::{Args, Consume, Durability, Target, TargetArgs};
pub use protocol::{Command, Event, Input, sha_of};

use anyhow::{Context, Result};
use firth::{Backoff, Broker};
use std::time::{Duration, Instant};

/// How long a process tries to begin.
const PATIENCE: Duration = Duration::from_secs(30);
const PACE: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1));

/// Runs one command to its end.
pub fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let outcome = runtime.block_on(async {
        match args.target() {
            Target::Engine(url) => on_engine(&url, args).await,
            Target::Server(url) => http::run(&url, args).await,
        }
    });
    // A thread may still wait for input; its result is not needed.
    runtime.shutdown_background();
    outcome
}

async fn on_engine(url: &str, args: Args) -> Result<()> {
    match args {
        Args::Setup { topic, partitions, groups, .. } => {
            patiently(async || setup::run(connect(url).await?, &topic, partitions, &groups).await).await
        }
        Args::Produce { topic, .. } => {
            produce::run(patiently(async || produce::open(connect(url).await?, &topic).await).await?).await
        }
        Args::Consume { consume, .. } => {
            consume::run(patiently(async || consume::open(connect(url).await?, &consume).await).await?).await
        }
        Args::Final { topic, group, .. } => {
            let tally = patiently(async || tally::take(connect(url).await?, &topic, &group).await);
            tally::tell(tally.await?).await
        }
    }
}

async fn connect(url: &str) -> firth::Result<Broker> {
    Broker::connect(url).await
}

/// Tries to begin until it works: a process may be started while the server is down.
async fn patiently<T>(mut begin: impl AsyncFnMut() -> firth::Result<T>) -> Result<T> {
    let give_up = Instant::now() + PATIENCE;
    let mut failures = 0;
    loop {
        match begin().await {
            Err(error) if error.is_retryable() && Instant::now() < give_up => {
                tracing::warn!(%error, "cannot begin; trying again");
                failures += 1;
                tokio::time::sleep(PACE.delay(failures)).await;
            }
            begun => return begun.context("begin"),
        }
    }
}
