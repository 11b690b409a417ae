//! A crowd: as many producers as consumers, each on a connection of its own, for the whole timed
//! round. Not one error is allowed, and the server's memory has a limit.

use super::process::Process;
use super::wire::{Connection, request};
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, percentiles, precise};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const TOPICS: usize = 10;
const GROUPS: usize = 10;
/// Between two requests of a producer, so that the crowd shares the machine.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Counts {
    produced: AtomicU64,
    settled: AtomicU64,
}

/// `members` produce, as many consume.
pub(crate) async fn measure(cell: &Cell, members: usize) -> Result<Row> {
    let server = Process::start(&cell.subject)?;
    let mut connection = Connection::open(server.address).await?;
    for topic in 0..TOPICS {
        connection.ask(&request("PUT", &format!("/v1/topics/crowd-{topic}"), r#"{"partitions": 4}"#)).await?;
    }
    let counts = Arc::new(Counts::default());
    let until = Instant::now() + cell.rounds.timed;
    let clock = Clock::start()?;
    let cpu = server.cpu()?;
    let mut tasks = Vec::new();
    for seat in 0..members {
        tasks.push(tokio::spawn(produce(server.address, seat, until, counts.clone())));
        tasks.push(tokio::spawn(consume(server.address, seat, until, counts.clone())));
    }
    let mut samples = Vec::new();
    for task in tasks {
        samples.push(task.await.context("a member of the crowd failed")??);
    }
    let spent = clock.stop()?;
    let server_cpu = server.cpu()?.saturating_sub(cpu);
    let produced = counts.produced.load(Relaxed);
    let settled = counts.settled.load(Relaxed);
    ensure!(settled > 0, "nothing was settled");
    let ops = precise(produced + settled);
    let (p50_us, p99_us) = percentiles(&samples)?;
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: ops / spent.wall.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / ops,
        p50_us,
        p99_us,
        extra: BTreeMap::from([
            ("produced".to_owned(), precise(produced)),
            ("settled".to_owned(), precise(settled)),
            ("server_cpu_us_per_op".to_owned(), server_cpu.as_secs_f64() * 1e6 / ops),
            ("peak_mb".to_owned(), server.memory()?.1),
        ]),
    })
}

async fn produce(
    to: std::net::SocketAddr,
    seat: usize,
    until: Instant,
    counts: Arc<Counts>,
) -> Result<Samples> {
    let mut connection = Connection::open(to).await?;
    let mut samples = Samples::with_capacity(1 << 10);
    let topic = seat % TOPICS;
    let body = format!(r#"{{"key":"k{seat}","payload":"{}"}}"#, "p".repeat(256));
    let request = request("POST", &format!("/v1/topics/crowd-{topic}/records"), &body);
    while Instant::now() < until {
        let began = Instant::now();
        connection.ask(&request).await?;
        samples.push(began.elapsed());
        counts.produced.fetch_add(1, Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(samples)
}

async fn consume(
    to: std::net::SocketAddr,
    seat: usize,
    until: Instant,
    counts: Arc<Counts>,
) -> Result<Samples> {
    let mut connection = Connection::open(to).await?;
    let mut samples = Samples::with_capacity(1 << 10);
    let path = format!("/v1/topics/crowd-{}/groups/g{}", seat % TOPICS, seat / TOPICS % GROUPS);
    let fetch = request("POST", &format!("{path}/fetch"), r#"{"max": 50, "wait_ms": 2000}"#);
    while Instant::now() < until {
        let answer: Value = serde_json::from_slice(connection.ask(&fetch).await?)?;
        let deliveries = answer["deliveries"].as_array().context("deliveries")?;
        let ack: Vec<_> = deliveries.iter().map(|delivery| &delivery["delivery"]).collect();
        if ack.is_empty() {
            continue;
        }
        let began = Instant::now();
        let verdicts = serde_json::json!({ "ack": ack }).to_string();
        let report = connection.ask(&request("POST", &format!("{path}/settle"), &verdicts)).await?;
        let report: Value = serde_json::from_slice(report)?;
        ensure!(report["failed"].as_array().is_some_and(Vec::is_empty), "not settled: {}", report["failed"]);
        samples.push(began.elapsed());
        counts.settled.fetch_add(ack.len() as u64, Relaxed);
    }
    Ok(samples)
}
