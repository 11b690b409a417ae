//! `bench pubsub`: client libraries side by side as subscribers of 1, 1 000 and 10 000 channels.
//!
//! A publisher process of its own feeds the measured one through the server, so that a figure holds
//! the receiving side alone; subjects take turns as in `bench client`.

mod driver;
mod fred;
mod publisher;
mod redis_rs;
mod rustis;
mod subject;
mod targets;
mod workload;

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Options;
use crate::cell::{Cell, Rounds};
use crate::measure::Row;
use crate::report::{Group, Report};
use crate::{server, turns};

pub(crate) use publisher::publish;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "pubsub";

const SUBJECTS: [&str; 4] = ["redis", "redis-rc", "fred", "rustis"];

/// Runs the whole bench and prints it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workloads = options.chosen_workloads(&workload::ALL, |workload| workload.name)?;
    let subjects = options.chosen_subjects(&SUBJECTS)?;
    let server = server::start()?;
    let mut report = Report::new(NAME, options);
    for run in 0..options.runs {
        for (at, workload) in workloads.iter().enumerate() {
            let cell = |subject: &str| Cell {
                bench: NAME.to_owned(),
                workload: workload.name.to_owned(),
                subject: subject.to_owned(),
                port: server.port(),
                rounds: rounds(options.quick),
            };
            let slices = if options.quick { 1 } else { 5 };
            let taken = turns::take(&subjects, slices, run + at, |subject| cell(subject).run_in_child());
            let verdicts = targets::judge(workload.name, &taken.rows);
            let turns::Taken { rows, failures } = taken;
            report.add(run, Group { workload: workload.name, rows, failures, verdicts })?;
        }
    }
    report.finish()
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let workload = *workload::ALL
        .iter()
        .find(|workload| workload.name == cell.workload)
        .with_context(|| format!("no workload {}", cell.workload))?;
    match cell.subject.as_str() {
        "redis" => driver::measure::<redis_rs::stable::Redis>(cell, workload),
        "redis-rc" => driver::measure::<redis_rs::next::Redis>(cell, workload),
        "fred" => driver::measure::<fred::Fred>(cell, workload),
        "rustis" => driver::measure::<rustis::Rustis>(cell, workload),
        other => bail!("no subject {other}"),
    }
}

fn rounds(quick: bool) -> Rounds {
    let millis = Duration::from_millis;
    if quick {
        Rounds { warm: millis(200), timed: millis(800), counted: millis(100) }
    } else {
        Rounds { warm: millis(300), timed: millis(1000), counted: millis(200) }
    }
}
