//! Runs one subject as a subscriber inside a measuring process: rounds of one task that takes
//! message after message and grants the publisher new credit as they come.
//!
//! A subject that loses messages does not stop the bench: a watch writes off what does not come and
//! grants anew, and the share that was lost is part of the row.

use super::publisher::{self, BATCH, Publisher};
use super::subject::Subject;
use super::workload::{PAYLOAD, Workload, channel};
use crate::alloc::Count;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, Spent, percentiles, precise};
use crate::server::Admin;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Batches on their way at most: 20 000 messages, about 2 MB in the server's output buffer.
pub(crate) const WINDOW: u8 = 200;
/// Batches granted at a time.
const GRANT: u8 = 20;
/// Without a message for this long, those that were granted are taken for lost. Far longer than a
/// busy machine keeps a process waiting: a window granted too early would stay on the way for good.
const STALL: Duration = Duration::from_millis(500);
/// How often the watch looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long the end waits for stragglers.
const LAST_WAIT: Duration = Duration::from_millis(200);
const SAMPLES: usize = 1 << 18;

/// Measures `cell` with subject `S`; to be called in a process of its own.
pub(crate) fn measure<S: Subject>(cell: &Cell, workload: Workload) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(rounds::<S>(cell, workload))
}

async fn rounds<S: Subject>(cell: &Cell, workload: Workload) -> Result<Row> {
    let mut admin = Admin::connect(cell.port)?;
    let strangers = admin.connections()?;
    let names: Vec<String> = (0..workload.channels).map(channel).collect();
    let mut subject = S::connect(cell.port).await.context("connect")?;
    let heap = Count::start();
    subject.subscribe(&names).await.context("subscribe")?;
    let heap_per_channel = heap.live_bytes() / precise(names.len() as u64);
    drop(heap);
    let connections = admin.connections()? - strangers;

    let publisher = Publisher::start(cell.port, workload.channels)?;
    let line = Arc::new(Line { publisher, received: AtomicU64::new(0) });
    line.publisher.grant(WINDOW)?;
    let watch = Watch::start(line.clone());
    let subject = round(subject, &line, cell.rounds.warm).await?.subject;
    let server_before = admin.server_cpu()?;
    let timed = round(subject, &line, cell.rounds.timed).await?;
    let server = admin.server_cpu()?.saturating_sub(server_before);
    let count = Count::start();
    let counted = round(timed.subject, &line, cell.rounds.counted).await?;
    let allocs_per_op = precise(count.calls()) / precise(counted.ops);
    drop(count);
    watch.end()?;
    let lost_share = lost(counted.subject, &line).await?;

    let (p50_us, p99_us) = percentiles(&[timed.samples])?;
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
            ("bytes_per_item".to_owned(), heap_per_channel),
            ("connections".to_owned(), precise(connections)),
            ("lost_share".to_owned(), lost_share),
            ("server_cpu_us_per_op".to_owned(), per_op(server)),
        ]),
    })
}

/// The way from publisher to subject.
struct Line {
    publisher: Publisher,
    received: AtomicU64,
}

/// What a round did, and the subject for the next.
struct Round<S> {
    subject: S,
    ops: u64,
    spent: Spent,
    samples: Samples,
}

async fn round<S: Subject>(subject: S, line: &Arc<Line>, length: Duration) -> Result<Round<S>> {
    let stop = Arc::new(AtomicBool::new(false));
    let samples = Samples::with_capacity(SAMPLES);
    let before = line.received.load(Relaxed);
    let clock = Clock::start()?;
    let task = tokio::spawn(receive(subject, line.clone(), samples, stop.clone()));
    let timer = std::thread::spawn(move || {
        std::thread::sleep(length);
        stop.store(true, Relaxed);
    });
    let (subject, samples) = task.await.context("the receiving task panicked")??;
    let spent = clock.stop()?;
    timer.join().ok().context("the timer thread cannot panic")?;
    let ops = line.received.load(Relaxed) - before;
    ensure!(ops > 0, "not one message within {length:?}");
    Ok(Round { subject, ops, spent, samples })
}

async fn receive<S: Subject>(
    mut subject: S,
    line: Arc<Line>,
    mut samples: Samples,
    stop: Arc<AtomicBool>,
) -> Result<(S, Samples)> {
    let mut received = line.received.load(Relaxed);
    while !stop.load(Relaxed) {
        let message = subject.next().await?;
        take_in(S::payload(&message), &mut samples)?;
        received += 1;
        line.received.store(received, Relaxed);
        if received.is_multiple_of(u64::from(GRANT) * BATCH) {
            line.publisher.grant(GRANT)?;
        }
    }
    Ok((subject, samples))
}

/// Checks a payload and, where it is stamped, notes how long it took.
fn take_in(payload: &[u8], samples: &mut Samples) -> Result<()> {
    ensure!(payload.len() == PAYLOAD, "a message of {} bytes instead of {PAYLOAD}", payload.len());
    let stamp = payload.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    if stamp != 0 {
        samples.push(publisher::now().saturating_sub(Duration::from_nanos(stamp)));
    }
    Ok(())
}

/// Receives what is still on its way; the rest of what was granted is lost. Gives its share.
async fn lost<S: Subject>(mut subject: S, line: &Line) -> Result<f64> {
    let granted = line.publisher.granted();
    let mut received = line.received.load(Relaxed);
    while received < granted {
        let Ok(message) = tokio::time::timeout(LAST_WAIT, subject.next()).await else { break };
        message?;
        received += 1;
    }
    Ok(precise(granted.saturating_sub(received)) / precise(granted))
}

/// A thread that grants a new window when nothing arrives any more.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Watch {
    fn start(line: Arc<Line>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut before = 0;
            let mut since = Instant::now();
            while !stopped.load(Relaxed) {
                std::thread::sleep(LOOK);
                let received = line.received.load(Relaxed);
                if received != before {
                    (before, since) = (received, Instant::now());
                } else if since.elapsed() >= STALL {
                    line.publisher.grant(WINDOW)?;
                    since = Instant::now();
                }
            }
            Ok(())
        });
        Self { stop, thread }
    }

    fn end(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        self.thread.join().ok().context("the watch cannot panic")?
    }
}
