//! `bench queue`: firth's queue beside the raw limit, NATS JetStream, apalis and BullMQ; messages
//! of 256 bytes.
//!
//! Each measurement runs in a fresh process with a server or folder of its own; subjects take turns
//! as in the other benches.

mod apalis;
mod bullmq;
mod driver;
mod firth;
mod jetstream;
mod limit;
mod meter;
pub(crate) mod nats;
mod place;
mod special;
mod subject;
mod targets;
mod workload;

use crate::cell::Rounds;
use crate::suite::{Plan, Suite};
use crate::table::Table;
use std::time::Duration;
use workload::{Act, Workload};

pub(crate) use driver::measure;
pub(crate) use special::victim;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "queue";

/// What this bench consists of. A peer that is not installed is named on stderr and left out.
pub(crate) fn suite() -> Suite {
    let mut subjects = vec!["firth", "raw"];
    match nats::binary() {
        Some(_) => subjects.extend(["jetstream-memory", "jetstream-file"]),
        None => {
            eprintln!("no nats-server found: JetStream is left out (`cargo xtask bench queue` fetches it)");
        }
    }
    subjects.extend(["apalis", "apalis-bare"]);
    match bullmq::home() {
        Some(_) => subjects.push("bullmq"),
        None => eprintln!(
            "no Node.js or no BullMQ found: BullMQ is left out (`cargo xtask bench queue` fetches it)"
        ),
    }
    Suite {
        name: NAME,
        workloads: workload::ALL.to_vec(),
        subjects,
        takes_part: |workload, subject| {
            Workload::named(workload).is_ok_and(|workload| workload.suits(subject))
        },
        plan,
        judge: targets::judge,
    }
}

/// Measurements end by count; the times only bound them.
fn plan(workload: &str, quick: bool) -> Plan {
    let act = Workload::named(workload).ok().map(|workload| workload.act);
    let is_long = matches!(act, Some(Act::Failing | Act::Idle | Act::Failover));
    let slices = if quick || is_long { 1 } else { 3 };
    // Many turns, each with a server of its own.
    let timed = Duration::from_secs(if act == Some(Act::Failing) { 600 } else { 120 });
    let rounds = Rounds { warm: Duration::ZERO, timed, counted: Duration::ZERO };
    Plan { slices, rounds, table: if is_long { Table::Figures } else { Table::Queue } }
}
