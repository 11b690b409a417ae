//! Runs one workload on one subject inside a measuring process: rounds of tasks that repeat a step
//! until a shared flag says stop.
//!
//! The driver is in every figure, so it stays thin: a step is chosen at compile time, a task counts
//! in a local variable, and busy workloads read the clock in every 32nd step only.

use super::subject::{Subject, check};
use super::workload::{self, BATCH, Data, Key, Kind, LARGE, SMALL, Workload};
use crate::alloc::Count;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, Spent, percentiles, precise};
use crate::server::Admin;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Barrier;

/// Latency samples kept per round, over all tasks.
const SAMPLES: usize = 1 << 20;
/// From this many tasks on, only every n-th step is timed; a power of two.
const BUSY_TASKS: usize = 64;
const SAMPLE_EVERY: usize = 32;

/// Measures `cell` with subject `S`; to be called in a process of its own.
pub(crate) fn measure<S: Subject>(cell: &Cell, workload: Workload) -> Result<Row> {
    let runtime = if workload.multi_thread {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    } else {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    };
    let run = async {
        match workload.kind {
            Kind::Get => Run::<S, Get>::rounds(cell, workload).await,
            Kind::Set => Run::<S, Set>::rounds(cell, workload).await,
            Kind::Pipeline => Run::<S, Pipeline>::rounds(cell, workload).await,
            Kind::Get64k => Run::<S, Get64k>::rounds(cell, workload).await,
            Kind::Xadd => Run::<S, Xadd>::rounds(cell, workload).await,
            Kind::XreadGroup => Run::<S, XreadGroup>::rounds(cell, workload).await,
        }
    };
    runtime.context("build the runtime")?.block_on(run)
}

/// What the steps of all tasks share.
struct Shared<S> {
    subject: S,
    data: Data,
    admin: Mutex<Admin>,
}

impl<S> Shared<S> {
    /// The side connection. No step runs while another holds it for long: only one task rewinds.
    fn with_admin<T>(&self, act: impl FnOnce(&mut Admin) -> Result<T>) -> Result<T> {
        act(&mut self.admin.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The key for step `n`. The number of keys is a power of two: a mask costs less than a division.
fn key(keys: &[Key], n: usize) -> &Key {
    &keys[n & (keys.len() - 1)]
}

/// One step of a task; gives the number of ops that it did. `n` differs from step to step and task
/// to task.
trait Step: Send + 'static {
    fn step<S: Subject>(
        shared: &Shared<S>,
        subject: &mut S,
        n: usize,
    ) -> impl Future<Output = Result<u64>> + Send;
}

struct Get;
struct Set;
struct Pipeline;
struct Get64k;
struct Xadd;
struct XreadGroup;

impl Step for Get {
    async fn step<S: Subject>(shared: &Shared<S>, subject: &mut S, n: usize) -> Result<u64> {
        let keys = &shared.data.small;
        check("length of a value", subject.get(key(keys, n)).await?, SMALL)?;
        Ok(1)
    }
}

impl Step for Set {
    async fn step<S: Subject>(shared: &Shared<S>, subject: &mut S, n: usize) -> Result<u64> {
        let keys = &shared.data.small;
        subject.set(key(keys, n), &shared.data.value).await?;
        Ok(1)
    }
}

impl Step for Pipeline {
    async fn step<S: Subject>(shared: &Shared<S>, subject: &mut S, n: usize) -> Result<u64> {
        let keys = &shared.data.small;
        let start = (n * BATCH) % (keys.len() - BATCH);
        let length = subject.get_all(&keys[start..start + BATCH]).await?;
        check("length of a batch of values", length, BATCH * SMALL)?;
        Ok(BATCH as u64)
    }
}

impl Step for Get64k {
    async fn step<S: Subject>(shared: &Shared<S>, subject: &mut S, n: usize) -> Result<u64> {
        let keys = &shared.data.large;
        check("length of a large value", subject.get(key(keys, n)).await?, LARGE)?;
        Ok(1)
    }
}

impl Step for Xadd {
    async fn step<S: Subject>(shared: &Shared<S>, subject: &mut S, _: usize) -> Result<u64> {
        subject.append(&shared.data.value).await?;
        Ok(1)
    }
}

impl Step for XreadGroup {
    async fn step<S: Subject>(shared: &Shared<S>, subject: &mut S, _: usize) -> Result<u64> {
        let read = subject.read_and_ack().await?;
        if read == 0 {
            shared.with_admin(workload::rewind)?;
        }
        Ok(read as u64)
    }
}

/// The rounds of one cell.
struct Run<S, P> {
    shared: Arc<Shared<S>>,
    workload: Workload,
    step: std::marker::PhantomData<P>,
}

/// What a round did.
struct Round {
    ops: u64,
    spent: Spent,
    samples: Vec<Samples>,
}

impl<S: Subject, P: Step> Run<S, P> {
    async fn rounds(cell: &Cell, workload: Workload) -> Result<Row> {
        let mut admin = Admin::connect(cell.port)?;
        let data = Data::new();
        data.prepare(workload.kind, &mut admin)?;
        let subject = S::connect(cell.port).await.context("connect")?;
        let shared = Arc::new(Shared { subject, data, admin: Mutex::new(admin) });
        let run = Self { shared, workload, step: std::marker::PhantomData };

        run.round(cell.rounds.warm).await?;
        run.shared.with_admin(|admin| run.shared.data.prepare(workload.kind, admin))?;
        let server_before = run.shared.with_admin(Admin::server_cpu)?;
        let timed = run.round(cell.rounds.timed).await?;
        let server = run.shared.with_admin(Admin::server_cpu)?.saturating_sub(server_before);
        let allocs_per_op = run.allocations(cell.rounds.counted).await?;
        run.shared.with_admin(|admin| admin.run(&["FLUSHALL", "SYNC"]))?;

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
                ("allocs_per_op".to_owned(), allocs_per_op),
                ("server_cpu_us_per_op".to_owned(), per_op(server)),
            ]),
        })
    }

    /// Allocations per op, in a round of their own.
    async fn allocations(&self, length: Duration) -> Result<f64> {
        let (tasks, gate, stop) = self.spawn();
        let timer = stop_after(length, stop);
        let count = Count::start();
        gate.wait().await;
        let (ops, _) = join(tasks).await?;
        let calls = count.calls();
        drop(count);
        timer.join().ok().context("the timer thread cannot panic")?;
        Ok(precise(calls) / precise(ops))
    }

    async fn round(&self, length: Duration) -> Result<Round> {
        let (tasks, gate, stop) = self.spawn();
        let timer = stop_after(length, stop);
        let clock = Clock::start()?;
        gate.wait().await;
        let (ops, samples) = join(tasks).await?;
        let spent = clock.stop()?;
        timer.join().ok().context("the timer thread cannot panic")?;
        ensure!(ops > 0, "not one op within {length:?}");
        Ok(Round { ops, spent, samples })
    }

    /// Starts the tasks; they begin when the caller, too, waits at the gate.
    fn spawn(&self) -> (Vec<Task>, Arc<Barrier>, Arc<AtomicBool>) {
        let gate = Arc::new(Barrier::new(self.workload.tasks + 1));
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..self.workload.tasks).map(|seat| {
            let shared = self.shared.clone();
            let gate = gate.clone();
            let stop = stop.clone();
            let samples = Samples::with_capacity(SAMPLES / self.workload.tasks);
            let every = if self.workload.tasks >= BUSY_TASKS { SAMPLE_EVERY } else { 1 };
            tokio::spawn(async move {
                gate.wait().await;
                repeat::<S, P>(&shared, seat, every, samples, &stop).await
            })
        });
        (tasks.collect(), gate, stop)
    }
}

type Task = tokio::task::JoinHandle<Result<(u64, Samples)>>;

/// One task's loop.
async fn repeat<S: Subject, P: Step>(
    shared: &Shared<S>,
    seat: usize,
    every: usize,
    mut samples: Samples,
    stop: &AtomicBool,
) -> Result<(u64, Samples)> {
    let mut subject = shared.subject.clone();
    let mut ops = 0;
    // Far apart starts, so that tasks neither ask for the same key nor sample at the same moment.
    let mut n = seat.wrapping_mul(7919);
    while !stop.load(Relaxed) {
        let began = (n & (every - 1) == 0).then(Instant::now);
        ops += P::step(shared, &mut subject, n).await?;
        if let Some(began) = began {
            samples.push(began.elapsed());
        }
        n = n.wrapping_add(1);
    }
    Ok((ops, samples))
}

/// Sets the flag from a thread of its own: a runtime timer would be late behind busy tasks.
fn stop_after(length: Duration, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(length);
        stop.store(true, Relaxed);
    })
}

async fn join(tasks: Vec<Task>) -> Result<(u64, Vec<Samples>)> {
    let mut ops = 0;
    let mut samples = Vec::with_capacity(tasks.len());
    for task in tasks {
        let (done, latencies) = task.await.context("a task panicked")??;
        ops += done;
        samples.push(latencies);
    }
    Ok((ops, samples))
}
