//! What all benches share in the parent process: go through workloads, let the subjects take turns
//! on a server of our own, judge, report. A bench states its [`Suite`]; its children do the
//! measuring.

use crate::args::Options;
use crate::cell::{Cell, Rounds};
use crate::measure::Row;
use crate::report::{Group, Report};
use crate::table::Table;
use crate::verdict::Verdict;
use crate::{server, turns};
use anyhow::Result;
use std::time::Duration;

/// Slices per cell in a full run for speed; `--quick` takes one.
const SLICES: usize = 5;

/// One bench.
pub(crate) struct Suite {
    /// Its name in the JSON lines.
    pub(crate) name: &'static str,
    pub(crate) workloads: Vec<&'static str>,
    pub(crate) subjects: Vec<&'static str>,
    /// Whether a subject is measured in a workload.
    pub(crate) takes_part: fn(&str, &str) -> bool,
    /// How a workload is measured; the flag asks for a quick run.
    pub(crate) plan: fn(&str, bool) -> Plan,
    /// The bench's targets.
    pub(crate) judge: fn(&str, &[Row]) -> Vec<Verdict>,
}

/// How a workload is measured and shown.
pub(crate) struct Plan {
    /// Measurements per subject.
    pub(crate) slices: usize,
    pub(crate) rounds: Rounds,
    pub(crate) table: Table,
}

impl Plan {
    /// For rates and costs: several slices, each with a timed round of this length.
    pub(crate) fn speed(timed: Duration, quick: bool) -> Self {
        let rounds = Rounds { warm: timed / 4, timed, counted: timed / 8 };
        Self { slices: if quick { 1 } else { SLICES }, rounds, table: Table::Speed }
    }
}

impl Suite {
    /// Runs what the options choose and prints it.
    pub(crate) fn run(&self, options: &Options) -> Result<()> {
        let workloads = options.chosen_workloads(&self.workloads)?;
        let subjects = options.chosen_subjects(&self.subjects)?;
        let server = server::start(options.server)?;
        let mut report = Report::new(self.name, options);
        for run in 0..options.runs {
            for (at, workload) in workloads.iter().enumerate() {
                let subjects: Vec<&str> =
                    subjects.iter().copied().filter(|one| (self.takes_part)(workload, one)).collect();
                let Plan { slices, rounds, table } = (self.plan)(workload, options.quick);
                let cell = |subject: &str| Cell {
                    bench: self.name.to_owned(),
                    workload: (*workload).to_owned(),
                    subject: subject.to_owned(),
                    server: options.server.to_string(),
                    port: server.port(),
                    rounds,
                    quick: options.quick,
                };
                let turns::Taken { rows, failures } =
                    turns::take(&subjects, slices, run + at, |subject| cell(subject).run_in_child());
                let verdicts = (self.judge)(workload, &rows);
                report.add(run, Group { workload, table, rows, failures, verdicts })?;
            }
        }
        report.finish()
    }
}
