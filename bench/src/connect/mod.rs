//! `bench connect`: PostgreSQL's change stream to a topic, a gateway and a browser.
//!
//! Each measurement has a database of its own. `stream` reads rows that were committed while no
//! reader was there, `snapshot` copies rows that were there before; the limits of both are
//! PostgreSQL's own programs on the same data (`pg_recvlogical`, `COPY`). `large` reads one
//! transaction of a million rows into files. `latency/…` commits one row at a time. The row holds
//! the server's clock from the middle of its statement, so a figure has the end of the statement
//! and the commit in it. `idle` is a source of a database where nothing happens.

mod database;
mod path;
mod rows;

use crate::cell::Cell;
use crate::measure::Row;
use crate::suite::{Plan, Suite};
use crate::verdict::{self, Limit};
use anyhow::{Result, bail};
use std::time::Duration;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "connect";

/// How long a measurement of many rows may take.
const LONG: Duration = Duration::from_secs(120);

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: vec![
            "stream/memory",
            "stream/file",
            "snapshot/memory",
            "large/file",
            "latency/topic",
            "latency/gateway",
            "latency/browser",
            "idle",
        ],
        subjects: vec!["firth", "pg_recvlogical", "copy"],
        takes_part: |workload, subject| match subject {
            "pg_recvlogical" => workload == "stream/memory",
            "copy" => workload == "snapshot/memory",
            _ => true,
        },
        plan: |workload, quick| {
            let timed = match workload.starts_with("latency") {
                true => Duration::from_secs(if quick { 3 } else { 10 }),
                false => LONG,
            };
            Plan { slices: 1, ..Plan::speed(timed, true) }
        },
        judge: |workload, rows| verdict::judge(limits(workload), rows),
    }
}

/// 100 000 rows a second from one slot, a millisecond to a gateway, five to a browser, half a
/// percent of a core at rest, 128 MiB for a transaction of a million rows.
fn limits(workload: &str) -> &'static [Limit] {
    match workload {
        "stream/memory" | "stream/file" => &[Limit::AtLeast("ops_per_s", 100_000.0)],
        "snapshot/memory" => &[Limit::AtLeast("ops_per_s", 50_000.0)],
        "large/file" => &[Limit::AtMost("peak_mb", 128.0)],
        "latency/gateway" => &[Limit::AtMost("p50_us", 1_000.0)],
        "latency/browser" => &[Limit::AtMost("p50_us", 5_000.0)],
        "idle" => &[Limit::AtMost("idle_cpu_percent", 0.5)],
        _ => &[],
    }
}

/// The child's side: measures one cell.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match (&*cell.subject, cell.workload.split_once('/').unwrap_or((&cell.workload, ""))) {
            ("pg_recvlogical", _) => rows::received(cell).await,
            ("copy", _) => rows::copied_out(cell).await,
            (_, ("stream", engine)) => rows::streamed(cell, engine).await,
            (_, ("snapshot", _)) => rows::snapshot(cell).await,
            (_, ("large", _)) => rows::large(cell).await,
            (_, ("latency", to)) => path::measure(cell, to).await,
            (_, ("idle", _)) => rows::idle(cell).await,
            (_, (other, _)) => bail!("no workload {other}"),
        }
    })
}
