//! Many tasks, one connection, a network that breaks again and again: every answer belongs to its
//! request, and dropping futures at any point neither leaks nor shifts anything.

use crate::support::*;
use firth_redis::config::QueueLimits;
use firth_redis::{Backoff, CallError, Client, Config, Unpack, cmd, pipe};
use firth_testkit::{Flavor, Proxy, RedisServer, on_both, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

on_both!(
    every_answer_belongs_to_its_request_under_repeated_cuts,
    dropping_futures_anywhere_neither_leaks_nor_shifts,
    dropping_waiters_for_room_loses_no_wake_up,
);

const TASKS: u64 = 64;
const REQUESTS: u64 = 100_000;
const CUTS: u64 = 40;

/// Reconnects at once, however often the connection breaks.
fn stubborn(url: String) -> Config {
    let mut config = quick(url);
    config.reconnect = Some(Backoff { immediate: u32::MAX, ..Backoff::default() });
    config
}

/// What happened to the requests of one run.
#[derive(Default)]
struct DropCounts {
    answered: AtomicU64,
    failed: AtomicU64,
}

impl DropCounts {
    fn total(&self) -> u64 {
        self.answered.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed)
    }

    fn count(&self, outcome: Result<(), CallError>, requests: u64) {
        match outcome {
            Ok(()) => self.answered.fetch_add(requests, Ordering::Relaxed),
            Err(CallError::Lost { .. } | CallError::Down { .. }) => {
                self.failed.fetch_add(requests, Ordering::Relaxed)
            }
            Err(other) => panic!("neither answered nor lost: {other:?}"),
        };
    }
}

async fn every_answer_belongs_to_its_request_under_repeated_cuts(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let client = connect(stubborn(proxy.url())).await;
    let tally = Arc::new(DropCounts::default());
    let tasks: Vec<_> =
        (0..TASKS).map(|task| tokio::spawn(ask_and_check(client.clone(), tally.clone(), task))).collect();
    for cut in 1..=CUTS {
        let due = cut * REQUESTS / (CUTS + 1);
        wait::until(LONG, format!("{due} requests are done"), async || tally.total() >= due).await;
        proxy.cut().await;
    }
    for task in tasks {
        soon(task).await.expect("no answer went astray");
    }
    let answered = tally.answered.load(Ordering::Relaxed);
    assert!(tally.total() >= REQUESTS && answered > REQUESTS / 2, "{answered} of {REQUESTS} answered");
    assert!(proxy.connections() > CUTS / 2, "{} connections", proxy.connections());
    soon(client.ready()).await.unwrap();
    echo(&client, "after all").await.unwrap();
    settles(&client).await;
}

/// One task: single calls and pipelines in turn, each with texts of its own.
async fn ask_and_check(client: Client, tally: Arc<DropCounts>, task: u64) {
    let mut n = 0;
    while tally.total() < REQUESTS {
        n += 1;
        if n % 4 == 0 {
            let texts: Vec<String> = (0..3).map(|i| format!("{task}/{n}/{i}")).collect();
            let all = texts.iter().map(|text| cmd("ECHO").arg(text)).collect::<firth_redis::Pipe>();
            let answers = client.pipeline::<Vec<String>>(all).await.and_then(Unpack::unpack);
            tally.count(answers.map(|answers| assert_eq!(answers, texts)), 3);
        } else {
            tally.count(echo(&client, &format!("{task}/{n}")).await, 1);
        }
        if client.state() != firth_redis::ConnectionState::Open {
            tokio::task::yield_now().await; // a refused call is ready at once: let others run
        }
    }
}

async fn dropping_futures_anywhere_neither_leaks_nor_shifts(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = quick(server.tcp_url());
    config.lanes.blocking = 8;
    let client = connect(config).await;
    let droppers: Vec<_> = (0..16).map(|seed| tokio::spawn(drop_at_random(client.clone(), seed))).collect();
    let keepers: Vec<_> = (0..16)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..1500 {
                    echo(&client, &format!("kept {task}/{n}")).await.unwrap();
                }
            })
        })
        .collect();
    for task in droppers.into_iter().chain(keepers) {
        soon(task).await.expect("no answer went astray");
    }
    settles(&client).await;
    wait::until(LONG, "nobody blocks at the server", async || {
        server.info("clients").await["blocked_clients"] == "0"
    })
    .await;
}

/// Starts calls of every kind and drops most of them at a random point.
async fn drop_at_random(client: Client, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for n in 0..1500u64 {
        let patience = Duration::from_micros(random.u64(0..400));
        let text = format!("dropped {seed}/{n}");
        match random.u32(0..10) {
            0 => drop(client.call::<String>(cmd("ECHO").arg(&text))),
            1 => {
                let mut call = Box::pin(client.call::<String>(cmd("ECHO").arg(&text)));
                let _ = futures_util::poll!(&mut call);
            }
            2 | 3 => {
                let two = pipe().then(cmd("ECHO").arg(&text)).then(cmd("ECHO").arg(n));
                if let Ok(Ok((first, second))) =
                    tokio::time::timeout(patience, client.pipeline::<(String, u64)>(two)).await
                {
                    assert_eq!((first.unwrap(), second.unwrap()), (text, n));
                }
            }
            4 => {
                let two = pipe().then(cmd("ECHO").arg(&text)).then(cmd("ECHO").arg(n));
                if let Ok(Ok((first, second))) =
                    tokio::time::timeout(patience, client.transaction::<(String, u64)>(two)).await
                {
                    assert_eq!((first.unwrap(), second.unwrap()), (text, n));
                }
            }
            5 if n % 8 == 0 => {
                let block = client.call::<(String, String)>(cmd("BLPOP").key(&text).arg(0));
                let _ = tokio::time::timeout(patience * 10, block).await;
            }
            6 if n % 8 == 0 => {
                let big = format!("{text}{}", "x".repeat(140 << 10));
                if let Ok(Ok(answer)) =
                    tokio::time::timeout(patience * 10, client.call::<String>(cmd("ECHO").arg(&big))).await
                {
                    assert_eq!(answer, big);
                }
            }
            _ => {
                if let Ok(answer) = tokio::time::timeout(patience, echo(&client, &text)).await {
                    answer.unwrap();
                }
            }
        }
    }
}

async fn dropping_waiters_for_room_loses_no_wake_up(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut config = quick(server.tcp_url());
    config.queue = QueueLimits { requests: 3, ..QueueLimits::default() };
    config.timeouts.request = None; // a lost wake-up would wait for ever
    let client = connect(config).await;
    let tasks: Vec<_> = (0..32u64)
        .map(|seed| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed);
                for n in 0..300 {
                    let text = format!("{seed}/{n}");
                    if random.bool() {
                        let patience = Duration::from_micros(random.u64(0..300));
                        let _ = tokio::time::timeout(patience, echo(&client, &text)).await;
                    } else {
                        echo(&client, &text).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    settles(&client).await;
}
