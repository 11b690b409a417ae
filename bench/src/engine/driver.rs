//! Runs the workers of one subject inside a measuring process: each repeats its step until a shared
//! flag says stop.

use super::place::Place;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, Spent, percentiles, precise};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Latency samples kept per worker.
const SAMPLES: usize = 1 << 16;

/// One task of a subject.
pub(crate) trait Worker: Send + 'static {
    /// One step; answers how many records (or leases) it handled.
    fn step(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

/// Measures `cell` with these workers; to be called in a process of its own.
pub(crate) async fn measure<W: Worker>(cell: &Cell, place: &Place, workers: Vec<W>) -> Result<Row> {
    let bytes_before = place.bytes().await?;
    let (warm, workers) = round(workers, cell.rounds.warm).await?;
    let server_before = place.server_cpu()?;
    let (timed, workers) = round(workers, cell.rounds.timed).await?;
    let server = place.server_cpu()?.saturating_sub(server_before);
    let bytes = place.bytes().await?.saturating_sub(bytes_before);
    drop(workers);

    let (p50_us, p99_us) = percentiles(&timed.samples)?;
    let ops = precise(timed.ops);
    let per_op = |time: Duration| time.as_secs_f64() * 1e6 / ops;
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: ops / timed.spent.wall.as_secs_f64(),
        cpu_us_per_op: per_op(timed.spent.cpu),
        p50_us,
        p99_us,
        extra: BTreeMap::from([
            ("bytes_per_item".to_owned(), precise(bytes) / precise(warm.ops + timed.ops)),
            ("server_cpu_us_per_op".to_owned(), per_op(server)),
        ]),
    })
}

/// What a round did.
struct Round {
    ops: u64,
    spent: Spent,
    samples: Vec<Samples>,
}

async fn round<W: Worker>(workers: Vec<W>, length: Duration) -> Result<(Round, Vec<W>)> {
    let stop = Arc::new(AtomicBool::new(false));
    let clock = Clock::start()?;
    let tasks: Vec<_> =
        workers.into_iter().map(|worker| tokio::spawn(repeat(worker, stop.clone()))).collect();
    let timer = std::thread::spawn(move || {
        std::thread::sleep(length);
        stop.store(true, Relaxed);
    });
    let mut ops = 0;
    let mut samples = vec![];
    let mut workers = vec![];
    for task in tasks {
        let (worker, done, latencies) = task.await.context("a worker panicked")??;
        ops += done;
        samples.push(latencies);
        workers.push(worker);
    }
    let spent = clock.stop()?;
    timer.join().ok().context("the timer thread cannot panic")?;
    ensure!(ops > 0, "not one step within {length:?}");
    Ok((Round { ops, spent, samples }, workers))
}

async fn repeat<W: Worker>(mut worker: W, stop: Arc<AtomicBool>) -> Result<(W, u64, Samples)> {
    let mut ops = 0;
    let mut samples = Samples::with_capacity(SAMPLES);
    while !stop.load(Relaxed) {
        let began = Instant::now();
        ops += worker.step().await?;
        samples.push(began.elapsed());
        // A subject that never waits must still let its siblings in.
        tokio::task::yield_now().await;
    }
    Ok((worker, ops, samples))
}
