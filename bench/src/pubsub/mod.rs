//! `bench pubsub`: client libraries side by side as subscribers of 1, 1 000 and 10 000 channels,
//! and of sharded channels while their cluster changes ([`change`]).
//!
//! A publisher process of its own feeds the measured one through the server, so that a figure holds
//! the receiving side alone; subjects take turns as in `bench client`.

mod change;
mod driver;
mod firth;
mod fred;
mod publisher;
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

pub(crate) use publisher::publish;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "pubsub";

const SUBJECTS: [&str; 5] = ["firth", "redis", "redis-rc", "fred", "rustis"];

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: workload::ALL
            .iter()
            .map(|workload| workload.name)
            .chain(change::ALL.iter().map(|(name, _)| *name))
            .collect(),
        subjects: SUBJECTS.to_vec(),
        takes_part: |_, _| true,
        plan: |workload, quick| match change::named(workload) {
            Some(change) => change.plan(quick),
            None => Plan::speed(Duration::from_millis(if quick { 800 } else { 1000 }), quick),
        },
        judge: targets::judge,
    }
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    if change::named(&cell.workload).is_some() {
        return change::measure(cell);
    }
    let workload = *workload::ALL
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
