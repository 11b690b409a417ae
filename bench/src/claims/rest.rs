//! Holding claims while nothing happens: calls to the server, CPU on both sides, heap per claim.

use crate::alloc::Count;
use crate::cell::Cell;
use crate::measure::{Clock, Row, precise};
use crate::server::Admin;
use anyhow::{Context, Result};
use firth::Broker;
use firth::claims::Claims;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How many claims on how many workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) claims: u64,
    pub(super) workers: u64,
}

pub(super) const ALL: [(&str, u64, u64); 6] = [
    ("rest/1000", 1_000, 1),
    ("rest/10000", 10_000, 1),
    ("rest/50000", 50_000, 1),
    ("rest/1000/10", 1_000, 10),
    ("rest/10000/10", 10_000, 10),
    ("rest/50000/10", 50_000, 10),
];

/// The TTL of the workers at rest.
pub(super) const TTL: Duration = Duration::from_secs(5);

pub(super) fn named(name: &str) -> Option<Load> {
    ALL.iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, claims, workers)| Load { claims: *claims, workers: *workers })
}

pub(super) fn measure(cell: &Cell, load: Load) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let service = format!("rest-{}-{}", load.claims, load.workers);
        let mut admin = Admin::connect(cell.port)?;
        let brokers = connect(cell.port, load.workers).await?;
        offer(&brokers[0].claims(&service), load.claims).await?;
        let count = Count::start();
        let readers = fill(&brokers, &service, load).await?;
        let heap = count.live_bytes();
        drop(count);
        tokio::time::sleep(TTL).await;
        let (calls, commands) = super::server_counts(&mut admin)?;
        let server = admin.server_cpu()?;
        let clock = Clock::start()?;
        tokio::time::sleep(cell.rounds.timed).await;
        let spent = clock.stop()?;
        let server = admin.server_cpu()?.saturating_sub(server);
        let (calls_after, commands_after) = super::server_counts(&mut admin)?;
        readers.iter().for_each(JoinHandle::abort);
        let seconds = spent.wall.as_secs_f64();
        let claims = precise(load.claims);
        let ticks = seconds / (TTL.as_secs_f64() / 3.0) * precise(load.workers);
        let extra = BTreeMap::from([
            ("calls_per_s".to_owned(), (calls_after - calls) / seconds),
            ("calls_per_tick".to_owned(), (calls_after - calls) / ticks),
            ("server_cmds_per_s".to_owned(), (commands_after - commands) / seconds),
            ("server_cpu_us_per_op".to_owned(), server.as_secs_f64() * 1e6 / (claims * seconds)),
            ("bytes_per_item".to_owned(), heap / claims),
        ]);
        Ok(row(cell, claims, spent.cpu.as_secs_f64() * 1e6 / (claims * seconds), extra))
    })
}

/// An op is a claim held for a second.
pub(super) fn row(cell: &Cell, claims: f64, cpu_us_per_op: f64, extra: BTreeMap<String, f64>) -> Row {
    Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: claims,
        cpu_us_per_op,
        p50_us: 0.0,
        p99_us: 0.0,
        extra,
    }
}

/// One connection per worker, as if each were a process.
pub(super) async fn connect(port: u16, workers: u64) -> Result<Vec<Broker>> {
    let mut brokers = Vec::new();
    for _ in 0..workers {
        brokers.push(Broker::connect(&format!("redis://127.0.0.1:{port}?durability=fast")).await?);
    }
    Ok(brokers)
}

pub(super) async fn offer(claims: &Claims, count: u64) -> Result<()> {
    let units = (0..count).map(|n| (format!("unit-{n:06}"), "{\"stream\":\"call\"}"));
    claims.offer_all(units).await.context("offer")?;
    Ok(())
}

/// Workers that together have everything, each with a reader of its events.
async fn fill(brokers: &[Broker], service: &str, load: Load) -> Result<Vec<JoinHandle<()>>> {
    let mut handles = Vec::new();
    let mut readers = Vec::new();
    for (n, broker) in brokers.iter().enumerate() {
        let mut worker = broker.claims(service).worker(format!("w{n}")).ttl(TTL).await.context("join")?;
        handles.push(worker.handle());
        readers.push(tokio::spawn(async move { while worker.next().await.is_some() {} }));
    }
    let even = load.claims / load.workers;
    let is_settled = || {
        let shares: Vec<u64> = handles.iter().map(firth::claims::WorkerHandle::claim_count).collect();
        shares.iter().sum::<u64>() == load.claims
            && shares.iter().all(|share| share.abs_diff(even) * 20 <= even)
    };
    while !is_settled() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(readers)
}
