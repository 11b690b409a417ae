//! What only firth is asked: what failing messages cost, what an idle group costs, how fast a dead
//! owner is replaced.

use super::driver::{Run, row};
use super::firth::{Firth, GROUP, TOPIC};
use super::meter::Measured;
use super::place::Place;
use super::workload::{Workload, messages};
use crate::cell::Cell;
use crate::measure::{Clock, Row, Spent, median};
use anyhow::{Context, Result, ensure};
use firth::Broker;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often messages with failures are measured beside those without: one turn scatters by eight
/// hundredths, about as much as is allowed.
const TURNS: usize = 21;

/// End to end with and without failures, in turns; the row is that with failures.
pub(super) async fn failing(cell: &Cell, workload: Workload) -> Result<Row> {
    let mut rates = [vec![], vec![]];
    let mut costs = vec![];
    let mut last = None;
    // Turn by turn: what a machine does to both of a turn is not taken for the cost of failures.
    for turn in 0..TURNS {
        let mut of_turn = [0.0; 2];
        for fails in [turn % 2 == 1, turn % 2 == 0] {
            let place = Arc::new(Place::start(&cell.subject, workload, &cell.server).await?);
            let firth = Firth::open(&place, workload.number).await?;
            let firth = firth.failing(fails);
            let run = Run { place: &place, workload, goal: messages(&cell.subject, workload, cell.quick) };
            let row = row(cell, &run.act(&firth).await?);
            firth.close().await?;
            of_turn[usize::from(fails)] = row.ops_per_s;
            rates[usize::from(fails)].push(row.ops_per_s);
            if fails {
                last = Some(row);
            }
        }
        costs.push(1.0 - of_turn[1] / of_turn[0]);
    }
    let [plain, failing] = rates.map(median);
    let mut row = last.context("there were runs with failures")?;
    row.ops_per_s = failing;
    row.extra.insert("plain_per_s".to_owned(), plain);
    row.extra.insert("cost_share".to_owned(), median(costs));
    Ok(row)
}

/// One member with all partitions and nothing to do.
pub(super) async fn idle(cell: &Cell, workload: Workload) -> Result<Row> {
    let place = Arc::new(Place::start(&cell.subject, workload, &cell.server).await?);
    let firth = Firth::open(&place, workload.number).await?;
    let consumer = firth.broker().consumer(TOPIC, GROUP).await?;
    let handle = consumer.handle();
    let running = tokio::spawn(consumer.run(|_| async { Ok(()) }).into_future());
    let all = usize::try_from(workload.number)?;
    handle.assigned(|owned| owned.len() == all).await.context("the consumer ended")?;
    // What belongs to the beginning ends.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let clock = Clock::start()?;
    let before = place.cpu()?;
    tokio::time::sleep(Duration::from_secs(if cell.quick { 10 } else { 20 })).await;
    let spent = clock.stop()?;
    let server = place.cpu()?.saturating_sub(before);
    handle.close();
    running.await.context("the consumer's task")??;
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / spent.wall.as_secs_f64();
    Ok(figures(cell, [("client_cpu_percent", percent(spent.cpu)), ("server_cpu_percent", percent(server))]))
}

/// Kills an owner that has a record in its hands, several times; the slowest takeover counts.
pub(super) async fn failover(cell: &Cell, workload: Workload) -> Result<Row> {
    let ttl = Duration::from_secs(workload.number.into());
    let mut takeovers = Vec::new();
    for round in 0..if cell.quick { 2 } else { 4 } {
        let place = Place::start(&cell.subject, workload, &cell.server).await?;
        let firth = Firth::open(&place, 1).await?;
        firth.broker().producer(TOPIC).await?.send("to be taken over").await?;
        let mut victim = Victim::start(&place.url(), ttl)?;
        let mut heir = firth.broker().consumer(TOPIC, GROUP).lease(ttl).await?;
        // At another moment between two renewals each time.
        tokio::time::sleep(ttl + ttl / 3 * round / 4).await;
        victim.kill()?;
        let begun = Instant::now();
        let delivery = heir.next().await.context("the consumer ended")??;
        takeovers.push(begun.elapsed().as_secs_f64() * 1e3);
        delivery.ack().await?;
        heir.close().await?;
        firth.close().await?;
    }
    let slowest = takeovers.iter().copied().fold(0.0, f64::max);
    let over = slowest - ttl.as_secs_f64() * 1e3;
    Ok(figures(cell, [("takeover_ms", slowest), ("median_ms", median(takeovers)), ("over_ttl_ms", over)]))
}

fn figures<const N: usize>(cell: &Cell, extra: [(&str, f64); N]) -> Row {
    let nothing = Spent { wall: Duration::from_secs(1), cpu: Duration::ZERO };
    let measured = Measured { messages: 1, spent: nothing, server: Duration::ZERO, p50_us: 0.0, p99_us: 0.0 };
    let extra: BTreeMap<String, f64> =
        extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Row { extra, ops_per_s: 0.0, ..row(cell, &measured) }
}

/// A member in a process of its own that takes a record and never settles it.
struct Victim(std::process::Child);

impl Victim {
    fn start(url: &str, ttl: Duration) -> Result<Self> {
        let own = std::env::current_exe().context("path of this program")?;
        let mut child = Command::new(own)
            .args(["queue-victim", url, &ttl.as_millis().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a member")?;
        let stdout = child.stdout.take().context("its output")?;
        let victim = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim() == "holding", "a member ended early");
        Ok(victim)
    }

    fn kill(&mut self) -> Result<()> {
        self.0.kill().context("kill a member")?;
        self.0.wait().map(drop).context("wait for it")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The victim's side: `queue-victim URL TTL_MS`.
pub(crate) fn victim(mut args: impl Iterator<Item = String>) -> Result<()> {
    let url = args.next().context("a URL")?;
    let ttl = Duration::from_millis(args.next().context("a time to live")?.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let broker = Broker::connect(&url).await?;
        let mut consumer = broker.consumer(TOPIC, GROUP).lease(ttl).await?;
        let delivery = consumer.next().await.context("the consumer ended")??;
        println!("holding");
        std::future::pending::<()>().await;
        drop(delivery);
        Ok(())
    })
}
