//! `bench client`: client libraries side by side on one server, one TCP connection each.
//!
//! For each workload the subjects take turns in short slices, each slice in a fresh process and
//! each turn in another order, so that noise of the machine hits all alike; a figure is the median
//! of its slices.

mod driver;
mod firth;
mod fred;
mod redis_rs;
mod rustis;
mod subject;
mod targets;
mod workload;

use crate::cell::Cell;
use crate::measure::Row;
use crate::suite::{Plan, Suite};
use anyhow::{Context, Result, bail};
use std::time::Duration;
use workload::Workload;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "client";

const SUBJECTS: [&str; 5] = ["firth", "redis", "redis-rc", "fred", "rustis"];

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: workload::ALL.iter().map(|workload| workload.name).collect(),
        subjects: SUBJECTS.to_vec(),
        takes_part: |_, _| true,
        plan: |_, quick| Plan::speed(Duration::from_millis(if quick { 400 } else { 500 }), quick),
        judge: targets::judge,
    }
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
