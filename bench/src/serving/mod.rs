//! `bench server`: the program `firth` as a process of its own, loaded over HTTP on loopback;
//! beside `raw`, a hand-written server that reads the same requests and answers without parsing or
//! storing, as the limit of this machine.
//!
//! Load and server share the machine's cores, so the load is as cheap as it can be: prepared
//! requests, one thread.

mod bare;
mod crowd;
mod load;
mod process;
mod rest;
mod targets;
mod wire;

use crate::args::Options;
use crate::cell::Cell;
use crate::measure::Row;
use crate::report::{Group, Report};
use crate::suite::Plan;
use crate::turns;
use anyhow::{Result, bail};
use std::time::Duration;

pub(crate) use bare::serve as serve_bare;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "server";

const BATCH: &str = "produce/batch";
const SINGLE: &str = "produce/single";
const REST: &str = "rest";
const CROWD: &str = "crowd/1000";
const WORKLOADS: [&str; 4] = [BATCH, SINGLE, REST, CROWD];
const SUBJECTS: [&str; 2] = ["firth", "raw"];

/// Runs what the options choose and prints it. Each measuring process starts the server that it
/// loads.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workloads = options.chosen_workloads(&WORKLOADS)?;
    let subjects = options.chosen_subjects(&SUBJECTS)?;
    let mut report = Report::new(NAME, options);
    for run in 0..options.runs {
        for (at, workload) in workloads.iter().enumerate() {
            let Plan { slices, rounds, table } = plan(workload, options.quick);
            let cell = |subject: &str| Cell {
                bench: NAME.to_owned(),
                workload: (*workload).to_owned(),
                subject: subject.to_owned(),
                server: options.server.to_string(),
                port: 0,
                rounds,
                quick: options.quick,
            };
            // The limit has no topics, so it only takes part where something is sent.
            let takes_part = |subject: &&str| *subject == "firth" || matches!(*workload, BATCH | SINGLE);
            let subjects: Vec<_> = subjects.iter().copied().filter(takes_part).collect();
            let turns::Taken { rows, failures } =
                turns::take(&subjects, slices, run + at, |subject| cell(subject).run_in_child());
            let verdicts = targets::judge(workload, &rows);
            report.add(run, Group { workload, table, rows, failures, verdicts })?;
        }
    }
    report.finish()
}

fn plan(workload: &str, quick: bool) -> Plan {
    let seconds = match (workload, quick) {
        (CROWD, false) => 30,
        (REST, false) => 10,
        (CROWD | REST, true) => 5,
        (_, false) => 4,
        (_, true) => 2,
    };
    let mut plan = Plan::speed(Duration::from_secs(seconds), quick);
    plan.slices = if quick || matches!(workload, CROWD | REST) { 1 } else { 3 };
    plan
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match cell.workload.as_str() {
            BATCH => load::measure(cell, 100).await,
            SINGLE => load::measure(cell, 1).await,
            REST => rest::measure(cell).await,
            CROWD => crowd::measure(cell, 1000).await,
            other => bail!("no workload {other}"),
        }
    })
}
