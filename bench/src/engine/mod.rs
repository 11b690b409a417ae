//! `bench engine`: the storage engines, and beside each the raw limit of what it stands on.
//!
//! A workload is an operation at a place: `append/redis`, `settle/file-fast`. Every measurement has
//! a server or a data directory of its own, so that memory and disk per record are those of that
//! measurement.

mod driver;
mod firth;
mod place;
mod raw_fjall;
mod raw_redis;
mod restart;
mod targets;
mod workload;

use crate::cell::{Cell, Rounds};
use crate::measure::Row;
use crate::suite::{Plan, Suite};
use crate::table::Table;
use anyhow::{Result, bail};
use std::time::Duration;
use workload::{Kind, Workload};

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "engine";

const SUBJECTS: [&str; 3] = ["firth", "raw", "raw-group"];

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: workload::ALL.iter().map(|workload| workload.name).collect(),
        subjects: SUBJECTS.to_vec(),
        takes_part: |workload, subject| Workload::named(workload).is_ok_and(|it| it.has(subject)),
        plan,
        judge: targets::judge,
    }
}

fn plan(workload: &str, quick: bool) -> Plan {
    let seconds = Duration::from_secs;
    match Workload::named(workload).map(|workload| workload.kind) {
        // The length is the deadline: filling takes what it takes.
        Ok(Kind::Restart) => {
            let rounds = Rounds { warm: seconds(240), timed: seconds(30), counted: Duration::ZERO };
            Plan { slices: 1, rounds, table: Table::Speed }
        }
        _ => {
            let timed = Duration::from_millis(if quick { 400 } else { 1000 });
            let rounds = Rounds { warm: timed / 4, timed, counted: Duration::ZERO };
            Plan { slices: if quick { 1 } else { 3 }, rounds, table: Table::Speed }
        }
    }
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let workload = Workload::named(&cell.workload)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let place = place::Place::make(workload.place, &cell.server).await?;
        match (cell.subject.as_str(), workload.kind) {
            ("firth", Kind::Restart) => restart::measure(cell, &place).await,
            ("firth", _) => driver::measure(cell, &place, firth::workers(workload, &place).await?).await,
            (raw, _) if workload.place.is_redis() => {
                let worker = raw_redis::Raw::prepare(workload.kind, raw == "raw-group", &place)?;
                driver::measure(cell, &place, vec![worker]).await
            }
            ("raw", _) => {
                let worker = raw_fjall::Raw::prepare(workload, &place)?;
                driver::measure(cell, &place, vec![worker]).await
            }
            (other, _) => bail!("no subject {other}"),
        }
    })
}
