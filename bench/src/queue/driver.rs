//! Runs one workload on one subject inside a measuring process.

use super::meter::{Measured, Meter};
use super::place::Place;
use super::subject::{Pace, Subject};
use super::workload::{Act, Workload, messages};
use super::{apalis, bullmq, firth, jetstream, limit, special};
use crate::cell::Cell;
use crate::measure::{Row, precise};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One message a millisecond.
const PACE: Duration = Duration::from_millis(1);

/// Measures `cell`; to be called in a process of its own.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let workload = Workload::named(&cell.workload)?;
    // The server has the other core.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("build the runtime")?;
    runtime.block_on(async {
        if cell.subject == crate::verdict::FIRTH {
            firth::count_metrics()?;
        }
        match workload.act {
            Act::Failing => special::failing(cell, workload).await,
            Act::Idle => special::idle(cell, workload).await,
            Act::Failover => special::failover(cell, workload).await,
            _ => speed(cell, workload).await,
        }
    })
}

async fn speed(cell: &Cell, workload: Workload) -> Result<Row> {
    let place = Arc::new(Place::start(&cell.subject, workload, &cell.server).await?);
    let run = Run { place: &place, workload, goal: messages(&cell.subject, workload, cell.quick) };
    let before = place.bytes()?;
    let measured = match cell.subject.as_str() {
        "firth" => run.act(&firth::Firth::open(&place, workload.number).await?).await?,
        "raw" => run.act(&limit::Limit::open(&place, workload.number)).await?,
        "jetstream-memory" | "jetstream-file" => run.act(&jetstream::JetStream::open(&place).await?).await?,
        "apalis" => run.act(&apalis::Apalis::open(&place, false).await?).await?,
        "apalis-bare" => run.act(&apalis::Apalis::open(&place, true).await?).await?,
        "bullmq" => bullmq::measure(&place, workload.act, run.goal)?,
        other => bail!("no subject {other}"),
    };
    let mut row = row(cell, &measured);
    if workload.act == Act::Produce {
        let bytes = (place.bytes()? - before) / precise(run.goal);
        row.extra.insert("bytes_per_item".to_owned(), bytes.max(0.0));
    }
    Ok(row)
}

pub(super) struct Run<'a> {
    pub(super) place: &'a Arc<Place>,
    pub(super) workload: Workload,
    pub(super) goal: u64,
}

impl Run<'_> {
    pub(super) async fn act(&self, subject: &impl Subject) -> Result<Measured> {
        let meter = Meter::new(self.place, self.goal);
        match self.workload.act {
            Act::Produce => subject.produce(&meter, Pace::Full, true).await?,
            Act::Consume => {
                subject.produce(&Meter::new(self.place, self.goal), Pace::Full, false).await?;
                subject.consume(&meter, false).await?;
            }
            Act::Latency => {
                let send = subject.produce(&meter, Pace::Every(PACE), false);
                tokio::try_join!(send, subject.consume(&meter, true))?;
            }
            _ => drop(tokio::try_join!(
                subject.produce(&meter, Pace::Full, false),
                subject.consume(&meter, false)
            )?),
        }
        meter.end()
    }
}

pub(super) fn row(cell: &Cell, measured: &Measured) -> Row {
    let messages = precise(measured.messages);
    let per_message = |time: Duration| time.as_secs_f64() * 1e6 / messages;
    let client = per_message(measured.spent.cpu);
    let server = per_message(measured.server);
    Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: messages / measured.spent.wall.as_secs_f64(),
        cpu_us_per_op: client,
        p50_us: measured.p50_us,
        p99_us: measured.p99_us,
        extra: BTreeMap::from([("server_cpu_us_per_op".to_owned(), server)]),
    }
}
