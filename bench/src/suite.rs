//! What all benches share in the parent process: go through workloads, let the subjects take turns on a
//! server of our own, judge, report. A bench states its [`Suite`]; its children do the measuring.

use std::time::Duration;

use anyhow::Result;

use crate::args::Options;
use crate::cell::{Cell, Rounds};
use crate::measure::Row;
use crate::report::{Group, Report};
use crate::verdict::Verdict;
use crate::{server, turns};

/// Slices per cell in a full run; `--quick` takes one.
const SLICES: usize = 5;

/// One bench.
pub(crate) struct Suite {
    /// Its name in the JSON lines.
    pub(crate) name: &'static str,
    pub(crate) workloads: Vec<&'static str>,
    pub(crate) subjects: &'static [&'static str],
    /// Length of the timed round of a slice, in a full and in a quick run.
    pub(crate) timed: (Duration, Duration),
    /// The bench's targets.
    pub(crate) judge: fn(&str, &[Row]) -> Vec<Verdict>,
}

impl Suite {
    /// Runs what the options choose and prints it.
    pub(crate) fn run(&self, options: &Options) -> Result<()> {
        let workloads = options.chosen_workloads(&self.workloads)?;
        let subjects = options.chosen_subjects(self.subjects)?;
        let server = server::start()?;
        let (slices, rounds) = self.pace(options.quick);
        let mut report = Report::new(self.name, options);
        for run in 0..options.runs {
            for (at, workload) in workloads.iter().enumerate() {
                let cell = |subject: &str| Cell {
                    bench: self.name.to_owned(),
                    workload: (*workload).to_owned(),
                    subject: subject.to_owned(),
                    port: server.port(),
                    rounds,
                };
                let turns::Taken { rows, failures } =
                    turns::take(&subjects, slices, run + at, |subject| cell(subject).run_in_child());
                let verdicts = (self.judge)(workload, &rows);
                report.add(run, Group { workload, rows, failures, verdicts })?;
            }
        }
        report.finish()
    }

    fn pace(&self, quick: bool) -> (usize, Rounds) {
        let (slices, timed) = if quick { (1, self.timed.1) } else { (SLICES, self.timed.0) };
        (slices, Rounds { warm: timed / 4, timed, counted: timed / 8 })
    }
}
