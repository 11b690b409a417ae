//! Runs one subject through one change inside a measuring process: the subject on this thread, the
//! stage on another. CPU is that of this thread alone.

use super::Change;
use super::account::{Figures, Log, figures, latencies};
use super::gets::{self, Gets};
use super::stage::{Scene, Stage, Story};
use super::subject::{Follower, Heard};
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, Spent, percentiles, precise};
use crate::pubsub::publisher::now;
use anyhow::{Context, Result, ensure};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::timeout;

/// How long a subject may take to connect and subscribe.
const SUBSCRIBE: Duration = Duration::from_secs(15);
const SAMPLES: usize = 1 << 18;

/// Measures `cell` with subject `F`; to be called in a process of its own.
pub(crate) fn measure<F: Follower>(cell: &Cell, change: Change) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Stage { scene, subscribed, over, leave, progress, thread } = Stage::start(cell, change);
    let listening = runtime.block_on(async {
        let scene = scene.await.context("there is no cluster")?;
        let mut subject =
            timeout(SUBSCRIBE, enter::<F>(&scene)).await.context("subscribing takes too long")??;
        ensure!(subscribed.send(()).is_ok(), "the stage is gone");
        let clock = Clock::start_thread()?;
        let gets = (change == Change::Migrate).then(|| Gets::start::<F>(&subject.reader(), &scene.keys));
        let log = listen(&mut subject, over, |channel, number| {
            progress[channel].fetch_max(number, Relaxed);
        })
        .await;
        let spent = clock.stop()?;
        let gets = match gets {
            Some(gets) => Some(gets.end().await?),
            None => None,
        };
        Ok(Listened { log, spent, gets })
    });
    drop(leave);
    let story = thread.join().ok().context("the stage panicked, its message is above")?;
    match (story, listening) {
        (Ok(story), Ok(listened)) => row(cell, &story, &listened),
        (Err(stage), Err(subject)) => Err(subject.context(format!("{stage:#}"))),
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => Err(error),
    }
}

/// What a subject heard and did.
struct Listened {
    log: Log,
    spent: Spent,
    gets: Option<gets::Outcome>,
}

async fn enter<F: Follower>(scene: &Scene) -> Result<F> {
    let mut subject = F::connect(&scene.nodes).await.context("connect")?;
    subject.subscribe(&scene.channels).await.context("subscribe")?;
    Ok(subject)
}

/// Writes down what the subject says until the stage is done; `note` hears of each message at once.
async fn listen<F: Follower>(
    subject: &mut F,
    mut over: tokio::sync::oneshot::Receiver<()>,
    note: impl Fn(usize, u64),
) -> Log {
    let mut log = Log::with_capacity(SAMPLES);
    loop {
        let heard = tokio::select! {
            biased;
            _ = &mut over => return log,
            heard = subject.next() => heard,
        };
        match heard {
            Ok(Heard::Else) => {}
            Ok(heard) => {
                if let Heard::Message(channel, number) = heard {
                    note(channel, number);
                }
                log.push((now(), heard));
            }
            Err(error) => {
                eprintln!("the subject says no more: {error:#}");
                // The stage ends by itself.
                drop(over.await);
                return log;
            }
        }
    }
}

fn row(cell: &Cell, story: &Story, listened: &Listened) -> Result<Row> {
    let Listened { log, spent, gets } = listened;
    let figures: Figures = figures(story, log);
    let mut samples = Samples::with_capacity(SAMPLES);
    latencies(story, log).for_each(|latency| samples.push(latency));
    let (p50_us, p99_us) = percentiles(&[samples])?;
    let heard = log.iter().filter(|(_, heard)| matches!(heard, Heard::Message(..))).count();
    let heard = precise(heard as u64);
    let mut extra: Vec<(&str, f64)> = figures.named().into();
    if let Some(gets) = gets {
        extra.push(("wrong_replies", precise(gets.wrong)));
        extra.push(("failed_gets", precise(gets.failed)));
        extra.push(("gets", precise(gets.right + gets.wrong + gets.failed)));
    }
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: heard / spent.wall.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / heard,
        p50_us,
        p99_us,
        extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    })
}
