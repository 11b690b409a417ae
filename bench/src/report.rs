//! Prints what the benches measured: JSON lines as they come, or a table with ratios to the best
//! peer and, over several runs, medians and in how many runs a target was met.

use crate::args::Options;
use crate::measure::{Row, median};
use crate::plot;
use crate::table::{Table, heading};
use crate::turns::Failure;
use crate::verdict::{Limit, Verdict};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;

/// One workload of one run, or of all runs together.
pub(crate) struct Group {
    pub(crate) workload: &'static str,
    pub(crate) table: Table,
    pub(crate) rows: Vec<Row>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// Collects the groups of all runs and prints them.
pub(crate) struct Report<'a> {
    bench: &'static str,
    options: &'a Options,
    groups: Vec<Group>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(bench: &'static str, options: &'a Options) -> Self {
        Self { bench, options, groups: vec![] }
    }

    /// Takes in one workload of one run, printing it if it is not part of a median to come.
    pub(crate) fn add(&mut self, run: usize, group: Group) -> Result<()> {
        for failure in &group.failures {
            eprintln!("{} {}: {}", group.workload, failure.subject, failure.reason);
        }
        if self.options.json {
            for row in &group.rows {
                println!("{}", serde_json::to_string(&row.rounded())?);
            }
        } else if self.options.runs == 1 {
            print!("{}", table(&merge(&[&group])));
        } else {
            eprintln!("run {} of {}: {}", run + 1, self.options.runs, group.workload);
        }
        self.groups.push(group);
        Ok(())
    }

    /// Prints medians and the sum of the verdicts, writes the picture; fails if a subject failed.
    pub(crate) fn finish(self) -> Result<()> {
        let merged = self.merged();
        if !self.options.json {
            if self.options.runs > 1 {
                merged.iter().for_each(|one| print!("{}", table(one)));
            }
            print!("{}", summary(&merged));
        }
        if let Some(path) = &self.options.svg {
            let speed = merged.iter().filter(|one| one.table == Table::Speed);
            let rows: Vec<_> = speed.map(|one| (one.workload, &one.rows[..])).collect();
            std::fs::write(path, plot::svg(self.bench, &rows))
                .with_context(|| format!("write {}", path.display()))?;
        }
        match self.groups.iter().map(|group| group.failures.len()).sum() {
            0 => Ok(()),
            failures => bail!("{failures} measurements failed"),
        }
    }

    /// One group per workload, in the order in which they first came.
    fn merged(&self) -> Vec<Merged> {
        let mut names: Vec<&str> = vec![];
        for group in &self.groups {
            if !names.contains(&group.workload) {
                names.push(group.workload);
            }
        }
        let of = |name: &&str| self.groups.iter().filter(|group| group.workload == *name).collect::<Vec<_>>();
        names.iter().map(|name| merge(&of(name))).collect()
    }
}

/// A workload over all its runs.
struct Merged {
    workload: &'static str,
    table: Table,
    rows: Vec<Row>,
    outcomes: Vec<Outcome>,
}

/// One target over all runs.
struct Outcome {
    limit: Limit,
    figure: f64,
    peer: Option<String>,
    met: usize,
    runs: usize,
}

impl Outcome {
    fn text(&self) -> String {
        let (what, least_or_most, bound) = match self.limit {
            Limit::Cpu(most) => ("cpu", "≤", most),
            Limit::Rate(least) => ("ops/s", "≥", least),
            Limit::P99(most) => ("p99", "≤", most),
            Limit::RateOf(_, least) => ("ops/s", "≥", least),
            Limit::ServerOf(_, most) => ("server µs", "≤", most),
            Limit::AtMost(name, most) => (heading(name), "≤", most),
            Limit::AtLeast(name, least) => (heading(name), "≥", least),
        };
        let word = if self.met == self.runs { "met" } else { "MISSED" };
        let count = if self.runs > 1 { format!(" ({} of {})", self.met, self.runs) } else { String::new() };
        let figure = match &self.peer {
            Some(peer) => format!("{:.2} × {peer}", self.figure),
            None => format!("{:.2}", self.figure),
        };
        format!("{what} {figure}, target {least_or_most} {bound:.2}: {word}{count}")
    }
}

/// Joins the groups of one workload, of which there is at least one.
fn merge(groups: &[&Group]) -> Merged {
    let mut subjects: Vec<&str> = vec![];
    for row in groups.iter().flat_map(|group| &group.rows) {
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
    }
    let all = |subject: &str| -> Vec<Row> {
        groups.iter().flat_map(|group| &group.rows).filter(|row| row.subject == subject).cloned().collect()
    };
    let rows = subjects.iter().filter_map(|subject| Row::median(&all(subject))).collect();
    let count = groups.iter().map(|group| group.verdicts.len()).max().unwrap_or_default();
    let outcomes = (0..count).filter_map(|at| {
        let verdicts: Vec<&Verdict> = groups.iter().filter_map(|group| group.verdicts.get(at)).collect();
        Some(Outcome {
            limit: verdicts.first()?.limit,
            figure: median(verdicts.iter().map(|verdict| verdict.figure).collect()),
            peer: verdicts.first()?.peer.clone(),
            met: verdicts.iter().filter(|verdict| verdict.met()).count(),
            runs: groups.len(),
        })
    });
    let Group { workload, table, .. } = *groups[0];
    Merged { workload, table, rows, outcomes: outcomes.collect() }
}

fn table(merged: &Merged) -> String {
    let mut text = merged.table.render(merged.workload, &merged.rows);
    for outcome in &merged.outcomes {
        writeln!(text, "  target: {}", outcome.text()).expect("a String takes every write");
    }
    text
}

/// How many targets were met in every run.
fn summary(merged: &[Merged]) -> String {
    let outcomes: Vec<&Outcome> = merged.iter().flat_map(|one| &one.outcomes).collect();
    if outcomes.is_empty() {
        return "\nno target judged: that needs firth and a peer\n".to_owned();
    }
    let met = outcomes.iter().filter(|outcome| outcome.met == outcome.runs).count();
    format!("\n{met} of {} targets met in every run\n", outcomes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample_row;
    use crate::verdict::judge;

    fn group(firth_cpu: f64) -> Group {
        let rows = vec![
            sample_row("get/1/st", "firth", 200.0, firth_cpu),
            sample_row("get/1/st", "redis", 100.0, 2.0),
        ];
        let verdicts = judge(&[Limit::Cpu(0.5), Limit::Rate(1.5)], &rows);
        Group { workload: "get/1/st", table: Table::Speed, rows, failures: vec![], verdicts }
    }

    #[test]
    fn a_target_counts_as_met_only_if_every_run_met_it() {
        let groups = [group(0.8), group(1.2), group(0.9)];
        let merged = merge(&groups.iter().collect::<Vec<_>>());
        let text = table(&merged);
        assert!(text.contains("cpu 0.45 × redis, target ≤ 0.50: MISSED (2 of 3)"), "{text}");
        assert!(text.contains("ops/s 2.00 × redis, target ≥ 1.50: met (3 of 3)"), "{text}");
        assert!(summary(&[merged]).contains("1 of 2 targets met"));
    }
}
