//! `bench client`: client libraries side by side on one server, one TCP connection each.
//!
//! For each workload the subjects take turns in short slices, each slice in a fresh process and each
//! turn in another order, so that noise of the machine hits all alike; a figure is the median of its slices.

mod driver;
mod firth;
mod fred;
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
use workload::Workload;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "client";

const SUBJECTS: [&str; 5] = ["firth", "redis", "redis-rc", "fred", "rustis"];

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
            let taken = turns::take(&subjects, slices(options.quick), run + at, |subject| {
                cell(subject).run_in_child()
            });
            let verdicts = targets::judge(workload.name, &taken.rows);
            report.add(
                run,
                Group { workload: workload.name, rows: taken.rows, failures: taken.failures, verdicts },
            )?;
        }
    }
    report.finish()
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let workload: Workload = *workload::ALL
        .iter()
        .find(|workload| workload.name == cell.workload)
        .with_context(|| format!("no workload {}", cell.workload))?;
    match cell.subject.as_str() {
        "firth" => driver::measure::<firth::Firth>(cell, workload),
        "redis" => driver::measure::<redis_rs::stable::Redis>(cell, workload),
        "redis-rc" => driver::measure::<redis_rs::next::Redis>(cell, workload),
        "fred" => driver::measure::<fred::Fred>(cell, workload),
        "rustis" => driver::measure::<rustis::Rustis>(cell, workload),
        other => bail!("no subject {other}"),
    }
}

fn slices(quick: bool) -> usize {
    if quick { 1 } else { 5 }
}

fn rounds(quick: bool) -> Rounds {
    let millis = Duration::from_millis;
    if quick {
        Rounds { warm: millis(100), timed: millis(400), counted: millis(50) }
    } else {
        Rounds { warm: millis(150), timed: millis(500), counted: millis(80) }
    }
}
