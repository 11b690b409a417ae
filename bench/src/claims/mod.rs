//! `bench claims`: what it costs to hold many claims at rest, beside a lock per unit, and how long
//! a takeover takes when two of ten workers die.

mod locks;
mod rest;
mod takeover;
mod targets;

use crate::cell::{Cell, Rounds};
use crate::measure::Row;
use crate::server::Admin;
use crate::suite::{Plan, Suite};
use crate::table::Table;
use anyhow::{Result, bail};
use std::time::Duration;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "claims";

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    let names = rest::ALL.iter().chain(&takeover::ALL).map(|(name, ..)| *name);
    Suite {
        name: NAME,
        workloads: names.collect(),
        subjects: vec!["firth", "locks"],
        // A lock per unit has no takeover of its own to measure.
        takes_part: |workload, subject| subject == "firth" || rest::named(workload).is_some(),
        plan: |workload, quick| match rest::named(workload) {
            Some(_) => plan(Duration::from_secs(if quick { 6 } else { 15 })),
            None => plan(Duration::from_secs(60)),
        },
        judge: targets::judge,
    }
}

fn plan(timed: Duration) -> Plan {
    let rounds = Rounds { warm: Duration::from_secs(30), timed, counted: Duration::ZERO };
    Plan { slices: 1, rounds, table: Table::Speed }
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    match (rest::named(&cell.workload), takeover::named(&cell.workload), cell.subject.as_str()) {
        (Some(load), _, "firth") => rest::measure(cell, load),
        (Some(load), _, "locks") => locks::measure(cell, load),
        (_, Some(load), "firth") => takeover::measure(cell, load),
        _ => bail!("no workload {} for {}", cell.workload, cell.subject),
    }
}

/// What the server has done so far: script calls, and commands, those inside scripts included.
fn server_counts(admin: &mut Admin) -> Result<(f64, f64)> {
    let stats = admin.info("commandstats")?;
    let calls = ["cmdstat_evalsha:calls=", "cmdstat_eval:calls=", "cmdstat_pexpire:calls="].iter();
    let calls = calls.filter_map(|name| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name))?;
        line.split(',').next()?.parse::<f64>().ok()
    });
    let total = admin.info("stats")?;
    let total = total.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok((calls.sum(), total.and_then(|text| text.trim().parse().ok()).unwrap_or_default()))
}
