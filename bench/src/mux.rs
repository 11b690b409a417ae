//! `bench mux`: the steps of the multiplexer by themselves, without peers: the slot of a name, a
//! call to subscribe, a call to unsubscribe, a callback, and a pool of workers that serves many
//! subscriptions.

use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, Spent, percentiles, precise};
use crate::suite::{Plan, Suite};
use anyhow::{Context, Result, bail, ensure};
use firth_redis::mux::{Mux, Subscription};
use firth_redis::{Client, Pipe, cmd, slot};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "mux";

const WORKLOADS: [&str; 5] = ["slot", "subscribe", "unsubscribe", "callback", "pool"];
/// Calls, or messages, that are timed together.
const BATCH: usize = 500;
/// Subscriptions that share the workers in `pool`.
const POOLED: usize = 1_000;
const SAMPLES: usize = 1 << 16;

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: WORKLOADS.to_vec(),
        subjects: vec!["firth"],
        takes_part: |_, _| true,
        plan: |_, quick| Plan::speed(Duration::from_millis(if quick { 300 } else { 1000 }), quick),
        judge: |_, _| Vec::new(),
    }
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut stage = Stage::new(cell).await?;
        stage.round(cell, cell.rounds.warm).await?;
        stage.tally = Tally::new();
        stage.round(cell, cell.rounds.timed).await?;
        stage.tally.row(cell)
    })
}

/// What was measured so far.
struct Tally {
    ops: u64,
    spent: Spent,
    samples: Samples,
}

impl Tally {
    fn new() -> Self {
        Self { ops: 0, spent: Spent::default(), samples: Samples::with_capacity(SAMPLES) }
    }

    fn add(&mut self, ops: usize, spent: Spent) {
        self.ops += ops as u64;
        self.spent.wall += spent.wall;
        self.spent.cpu += spent.cpu;
    }

    fn row(self, cell: &Cell) -> Result<Row> {
        ensure!(self.ops > 0, "not one operation");
        let (p50_us, p99_us) = percentiles(&[self.samples])?;
        let ops = precise(self.ops);
        Ok(Row {
            bench: cell.bench.clone(),
            workload: cell.workload.clone(),
            subject: cell.subject.clone(),
            ops_per_s: ops / self.spent.wall.as_secs_f64(),
            cpu_us_per_op: self.spent.cpu.as_secs_f64() * 1e6 / ops,
            p50_us,
            p99_us,
            extra: BTreeMap::new(),
        })
    }
}

struct Stage {
    client: Client,
    mux: Mux,
    names: Vec<String>,
    tally: Tally,
}

impl Stage {
    async fn new(cell: &Cell) -> Result<Self> {
        let client = Client::connect(format!("redis://127.0.0.1:{}", cell.port)).await.context("connect")?;
        let mux = client.mux().clone();
        let names = (0..POOLED).map(|n| format!("bench:{{{n}}}:name")).collect();
        Ok(Self { client, mux, names, tally: Tally::new() })
    }

    /// Repeats the workload until this much time was measured.
    async fn round(&mut self, cell: &Cell, length: Duration) -> Result<()> {
        let until = self.tally.spent.wall + length;
        match cell.workload.as_str() {
            "callback" => return self.callbacks(1, until).await,
            "pool" => return self.callbacks(POOLED, until).await,
            _ => {}
        }
        while self.tally.spent.wall < until {
            match cell.workload.as_str() {
                "slot" => self.slots()?,
                "subscribe" | "unsubscribe" => self.subscribe(cell.workload == "subscribe").await?,
                other => bail!("no workload {other}"),
            }
        }
        Ok(())
    }

    fn slots(&mut self) -> Result<()> {
        let clock = Clock::start()?;
        let started = Instant::now();
        for name in &self.names {
            black_box(slot(black_box(name.as_bytes())));
        }
        self.tally.samples.push(started.elapsed() / self.names.len() as u32);
        self.tally.add(self.names.len(), clock.stop()?);
        Ok(())
    }

    /// One call per name, each confirmed by the server; only the calls in question are timed.
    async fn subscribe(&mut self, timed: bool) -> Result<()> {
        let names = self.names[..BATCH].to_vec();
        let mut held: Vec<Subscription> = Vec::with_capacity(BATCH);
        let clock = Clock::start()?;
        for name in names {
            let started = Instant::now();
            held.push(self.mux.subscribe([name]).await?);
            if timed {
                self.tally.samples.push(started.elapsed());
            }
        }
        if timed {
            self.tally.add(BATCH, clock.stop()?);
        }
        let clock = Clock::start()?;
        for subscription in held {
            let started = Instant::now();
            subscription.unsubscribe().await?;
            if !timed {
                self.tally.samples.push(started.elapsed());
            }
        }
        if !timed {
            self.tally.add(BATCH, clock.stop()?);
        }
        Ok(())
    }

    /// Publishes in pipelines and waits until the callbacks have run; the cost of publishing is
    /// part of it.
    async fn callbacks(&mut self, subscriptions: usize, until: Duration) -> Result<()> {
        let mut held = Vec::new();
        for name in &self.names[..subscriptions] {
            held.push(
                self.mux.subscribe([name.clone()]).for_each(|event, _| async move { drop(event) }).await?,
            );
        }
        let publish = |n: usize| cmd("PUBLISH").arg(&self.names[n % subscriptions]).arg("payload");
        let pipe: Pipe = (0..BATCH).map(publish).collect();
        while self.tally.spent.wall < until {
            let goal = self.mux.stats().callbacks + BATCH as u64;
            let clock = Clock::start()?;
            let started = Instant::now();
            self.client.pipeline::<Vec<i64>>(&pipe).await?;
            while self.mux.stats().callbacks < goal {
                tokio::task::yield_now().await;
            }
            self.tally.samples.push(started.elapsed() / BATCH as u32);
            self.tally.add(BATCH, clock.stop()?);
        }
        Ok(())
    }
}
