//! Two of ten workers die without a word: how long until each of their claims has an owner
//! again.

use super::rest::{connect, offer};
use crate::cell::Cell;
use crate::measure::{Clock, Row, precise};
use anyhow::{Context, Result, ensure};
use firth::claims::{Event, Worker};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

const WORKERS: u64 = 10;
const KILLED: usize = 2;

/// Name, claims, TTL in seconds.
pub(super) const ALL: [(&str, u64, u64); 4] = [
    ("takeover/2000", 2_000, 1),
    ("takeover/20000", 20_000, 1),
    ("takeover/2000/5s", 2_000, 5),
    ("takeover/20000/5s", 20_000, 5),
];

#[derive(Debug, Clone, Copy)]
pub(super) struct Takeover {
    claims: u64,
    ttl: Duration,
}

pub(super) fn named(name: &str) -> Option<Takeover> {
    let found = ALL.iter().find(|(known, ..)| *known == name);
    found.map(|(_, claims, ttl)| Takeover { claims: *claims, ttl: Duration::from_secs(*ttl) })
}

pub(super) fn measure(cell: &Cell, load: Takeover) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let service = format!("takeover-{}-{}", load.claims, load.ttl.as_secs());
        let brokers = connect(cell.port, WORKERS).await?;
        offer(&brokers[0].claims(&service), load.claims).await?;
        let mut workers = Vec::new();
        for (n, broker) in brokers.iter().enumerate() {
            let worker = broker.claims(&service).worker(format!("w{n}")).ttl(load.ttl).buffer(100_000);
            workers.push(worker.await.context("join")?);
        }
        let (taken, mut takeovers) = mpsc::unbounded_channel();
        let mut handles: Vec<_> = workers.iter().map(Worker::handle).collect();
        let mut tasks: Vec<_> =
            workers.into_iter().map(|worker| tokio::spawn(work(worker, taken.clone()))).collect();
        let even = load.claims / WORKERS;
        settle(&handles, load.claims, even).await;
        let doomed: u64 = handles.drain(..KILLED).map(|handle| handle.claim_count()).sum();
        let killed = Instant::now();
        let clock = Clock::start()?;
        tasks.drain(..KILLED).for_each(|task| task.abort());
        let mut times = Vec::new();
        while (times.len() as u64) < doomed {
            let at: Instant = takeovers.recv().await.context("the workers go on")?;
            times.push(at.duration_since(killed));
        }
        let spent = clock.stop()?;
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        let first = at(0.0);
        let last = at(1.0);
        ensure!(doomed > 0, "somebody had claims");
        let ttl_us = load.ttl.as_secs_f64() * 1e6;
        let extra = BTreeMap::from([
            ("claims_moved".to_owned(), precise(doomed)),
            ("first_ms".to_owned(), first / 1e3),
            ("last_ms".to_owned(), last / 1e3),
            ("after_ttl_ms".to_owned(), ((last - ttl_us) / 1e3).max(0.0)),
            ("spread_ms".to_owned(), (last - first) / 1e3),
        ]);
        Ok(Row {
            bench: cell.bench.clone(),
            workload: cell.workload.clone(),
            subject: cell.subject.clone(),
            ops_per_s: precise(doomed) / ((last - first).max(1.0) / 1e6),
            cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / precise(doomed),
            p50_us: at(0.50),
            p99_us: at(0.99),
            extra,
        })
    })
}

/// Waits for an even share.
async fn settle(handles: &[firth::claims::WorkerHandle], claims: u64, even: u64) {
    let is_even = || {
        let shares: Vec<u64> = handles.iter().map(firth::claims::WorkerHandle::claim_count).collect();
        shares.iter().sum::<u64>() == claims && shares.iter().all(|share| share.abs_diff(even) * 20 <= even)
    };
    while !is_even() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Keeps what it gets, tells when it takes something over, lets go what is recalled.
async fn work(mut worker: Worker, taken: mpsc::UnboundedSender<Instant>) {
    while let Some(Ok(event)) = worker.next().await {
        match event {
            Event::Granted(claim) if claim.is_takeover() => drop(taken.send(Instant::now())),
            Event::Recalled(claim) => drop(claim.release().await),
            _ => {}
        }
    }
}
