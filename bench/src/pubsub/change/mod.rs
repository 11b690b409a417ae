//! `migrate` and `failover`: what a subscriber of sharded channels goes through when its cluster
//! changes.
//!
//! Sixty channels on a cluster of three masters with a replica each, fifty numbered messages per
//! second on each; then the slots of one master's channels move to another one, or that master is
//! killed. The stage (a thread of its own, see [`stage`]) keeps the books of what the servers
//! accepted, the subject those of what it heard, and [`account`] compares them.

mod account;
mod firth;
mod follow;
mod fred;
mod gets;
mod owners;
mod publisher;
mod redis_rs;
mod rustis;
mod stage;
mod subject;

use crate::cell::{Cell, Rounds};
use crate::measure::Row;
use crate::suite::Plan;
use crate::table::Table;
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// Sharded channels of every subject.
const CHANNELS: usize = 60;

/// What happens to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The slots of one master's channels move to another master, one by one.
    Migrate,
    /// One master is killed and its replica takes over.
    Failover,
}

/// All of them, by their names in the JSON lines.
pub(crate) const ALL: [(&str, Change); 2] = [("migrate", Change::Migrate), ("failover", Change::Failover)];

/// The change that a workload's name stands for.
pub(crate) fn named(workload: &str) -> Option<Change> {
    ALL.iter().find(|(name, _)| *name == workload).map(|(_, change)| *change)
}

impl Change {
    /// Once per subject: the watch is long, and a figure is a sum over twenty channels already.
    pub(crate) fn plan(self, quick: bool) -> Plan {
        let seconds = match (self, quick) {
            (Self::Migrate, false) => 10,
            (Self::Migrate, true) => 5,
            (Self::Failover, false) => 30,
            (Self::Failover, true) => 10,
        };
        let warm = Duration::from_millis(if quick { 500 } else { 2000 });
        let rounds = Rounds { warm, timed: Duration::from_secs(seconds), counted: Duration::ZERO };
        Plan { slices: 1, rounds, table: Table::Change }
    }
}

/// The child's side: measures one cell in this process.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let change = named(&cell.workload).with_context(|| format!("no workload {}", cell.workload))?;
    match cell.subject.as_str() {
        "firth" => follow::measure::<firth::Firth>(cell, change),
        "redis" => follow::measure::<redis_rs::stable::Redis>(cell, change),
        "redis-rc" => follow::measure::<redis_rs::next::Redis>(cell, change),
        "fred" => follow::measure::<fred::Fred>(cell, change),
        "rustis" => follow::measure::<rustis::Rustis>(cell, change),
        other => bail!("no subject {other}"),
    }
}
