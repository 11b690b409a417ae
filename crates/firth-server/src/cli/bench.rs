//! `firth bench`: a quick load on the chosen server or engine, through a topic of its own that is
//! deleted again.

use super::output::{json, line, table};
use super::{progress, units};
use crate::client::{Client, group_path, topic_path};
use crate::wire::{Fetch, Fetched, Outgoing, Receipts, Settle, SettledReport, Topic, TopicSpec};
use axum::http::Method;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Latencies kept per connection.
const SAMPLES: usize = 100_000;
/// How long nothing may be consumed before something is broken.
const PATIENCE: Duration = Duration::from_secs(30);
const FETCH: usize = 500;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth bench
  firth bench --messages 1000000 --batch 500 --connections 32
  firth bench --engine redis://127.0.0.1 --size 1KiB --json

The load and what it measures share this machine: compare figures of one machine only.";

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    /// How many messages
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    messages: u64,
    /// Bytes of each payload
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = units::size)]
    size: u64,
    /// Messages per request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,
    /// Requests at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    connections: u64,
    /// Partitions of the topic
    #[arg(long, value_name = "N", default_value_t = 4)]
    partitions: u32,
}

/// What one phase did.
#[derive(Serialize)]
struct Figures {
    phase: &'static str,
    messages: u64,
    seconds: f64,
    messages_per_s: u64,
    mib_per_s: f64,
    requests: u64,
    p50_us: u32,
    p99_us: u32,
}

pub(crate) async fn run(client: &Client, args: BenchArgs, as_json: bool) -> Result<()> {
    let topic = format!("firth-bench-{:016x}", fastrand::u64(..));
    let spec = TopicSpec { partitions: Some(args.partitions), ..TopicSpec::default() };
    client.send::<Topic>(Method::PUT, &topic_path(&topic), &spec).await?;
    let measured = measure(client, &topic, &args).await;
    let deleted = client.delete(&topic_path(&topic)).await;
    let phases = measured?;
    deleted?;
    if as_json {
        return phases.iter().try_for_each(json);
    }
    let rows = phases.iter().map(|figures| {
        [
            figures.phase.to_owned(),
            units::count(figures.messages),
            format!("{:.2} s", figures.seconds),
            units::count(figures.messages_per_s),
            format!("{:.1}", figures.mib_per_s),
            format!("{} us", figures.p50_us),
            format!("{} us", figures.p99_us),
        ]
    });
    table(["PHASE", "MESSAGES", "TIME", "PER SECOND", "MIB/S", "P50", "P99"], rows.collect())?;
    line(&format!(
        "{} bytes each, {} per request, {} requests at a time, {} partitions",
        args.size, args.batch, args.connections, args.partitions
    ))
}

async fn measure(client: &Client, topic: &str, args: &BenchArgs) -> Result<[Figures; 2]> {
    let produced = phase("produce", args, |bar, left| {
        let client = client.clone();
        let path = format!("{}/records", topic_path(topic));
        let args = args.clone();
        async move { produce(&client, &path, &args, &left, &bar).await }
    });
    let produced = produced.await?;
    let consumed = phase("consume", args, |bar, left| {
        let client = client.clone();
        let path = group_path(topic, "bench");
        async move { consume(&client, &path, &left, &bar).await }
    });
    Ok([produced, consumed.await?])
}

/// Runs one phase on all connections; `left` is what they share.
async fn phase<F: Future<Output = Result<Vec<u32>>> + Send + 'static>(
    name: &'static str,
    args: &BenchArgs,
    mut work: impl FnMut(ProgressBar, Arc<AtomicU64>) -> F,
) -> Result<Figures> {
    let bar = progress::steps(name, args.messages);
    let left = Arc::new(AtomicU64::new(args.messages));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..args.connections {
        running.spawn(work(bar.clone(), left.clone()));
    }
    let mut samples = Vec::new();
    while let Some(ended) = running.join_next().await {
        let ended =
            ended.map_err(|error| Error::new(ErrorKind::Internal, "a connection failed").with_source(error));
        samples.extend(ended??);
    }
    let took = started.elapsed();
    bar.finish_and_clear();
    Ok(Figures::new(name, args, took, samples))
}

impl Figures {
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    fn new(phase: &'static str, args: &BenchArgs, took: Duration, mut samples: Vec<u32>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let last = samples.len().saturating_sub(1);
            samples.get((samples.len() * percent / 100).min(last)).copied().unwrap_or_default()
        };
        let bytes = (args.messages * args.size) as f64;
        Self {
            phase,
            messages: args.messages,
            seconds: took.as_secs_f64(),
            messages_per_s: progress::per_second(args.messages, took),
            mib_per_s: bytes / took.as_secs_f64().max(1e-6) / (1024.0 * 1024.0),
            requests: samples.len() as u64,
            p50_us: at(50),
            p99_us: at(99),
        }
    }
}

fn sample(samples: &mut Vec<u32>, since: Instant) {
    if samples.len() < SAMPLES {
        samples.push(u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
}

async fn produce(
    client: &Client,
    path: &str,
    args: &BenchArgs,
    left: &AtomicU64,
    bar: &ProgressBar,
) -> Result<Vec<u32>> {
    let mut samples = Vec::new();
    let payload = "x".repeat(usize::try_from(args.size).unwrap_or(usize::MAX));
    let message = || Outgoing { payload: Some(payload.clone()), ..Outgoing::default() };
    let full: Vec<_> = (0..args.batch).map(|_| message()).collect();
    loop {
        let mine = left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(args.batch)));
        let mine = mine.unwrap_or_default().min(args.batch);
        if mine == 0 {
            return Ok(samples);
        }
        let began = Instant::now();
        let batch = &full[..usize::try_from(mine).unwrap_or(full.len())];
        client.send::<Receipts>(Method::POST, path, &batch).await?;
        sample(&mut samples, began);
        note(bar, mine);
    }
}

async fn consume(client: &Client, path: &str, left: &AtomicU64, bar: &ProgressBar) -> Result<Vec<u32>> {
    let mut samples = Vec::new();
    let mut last = Instant::now();
    let how = Fetch { max: Some(FETCH), wait_ms: Some(100), lease_ms: None };
    while left.load(Ordering::Relaxed) > 0 {
        let began = Instant::now();
        let fetched: Fetched = client.send(Method::POST, &format!("{path}/fetch"), &how).await?;
        let ack: Vec<_> = fetched.deliveries.into_iter().map(|delivered| delivered.delivery).collect();
        if ack.is_empty() {
            if last.elapsed() > PATIENCE {
                let context = format!("{} messages never came", left.load(Ordering::Relaxed));
                return Err(Error::new(ErrorKind::Timeout, context));
            }
            continue;
        }
        let verdicts = Settle { ack, ..Settle::default() };
        let report: SettledReport = client.send(Method::POST, &format!("{path}/settle"), &verdicts).await?;
        sample(&mut samples, began);
        last = Instant::now();
        let settled = report.settled as u64;
        let taken = |left: u64| Some(left.saturating_sub(settled));
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        note(bar, settled);
    }
    Ok(samples)
}

fn note(bar: &ProgressBar, messages: u64) {
    bar.inc(messages);
    bar.set_message(progress::rate(bar.position(), bar.elapsed()));
}
