//! `bench router`: which subscriptions want an event, and how fast events go from a topic to a
//! gateway.
//!
//! - `match/N`: one index with N subscriptions of one collection, about 300 of which want each
//!   event. An operation is one event.
//! - `deliver/WIRE`: a topic that is full, one node with 100 000 subscriptions, one gateway that
//!   takes batches of 100. An operation is one event, accepted by the gateway and settled. `raw`
//!   hands ready batches to the same wire with nothing before it, which is the limit.
//! - `deliver/nats` is request and reply through a nats-server of its own, `deliver/jetstream` ends
//!   when JetStream has stored the batch.
//! - `stall/64`: 2000 events a second in turn for 64 gateways, one of which takes batches and
//!   answers none, for two seconds out of four: the others' latency then, beside that of the other
//!   two; 24 turns, the median over spans of a quarter of a second.
//! - `latency/WIRE`: 500 events a second through the same node, from before the send until the
//!   gateway has it.
//!
//! Both ends share the process, as the ceilings in the targets were measured; it runs on the
//! allocator of the program `firth`.

mod deliver;
pub(crate) mod gateway;
mod matching;
mod stall;

use crate::cell::Cell;
use crate::measure::Row;
use crate::suite::{Plan, Suite};
use crate::verdict::{self, Limit};
use anyhow::{Result, bail};
use std::time::Duration;

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "router";

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: vec![
            "match/1000",
            "match/100000",
            "match/1000000",
            "deliver/http2",
            "deliver/grpc",
            "deliver/grpc-stream",
            "deliver/nats",
            "deliver/jetstream",
            "stall/64",
            "latency/http2",
            "latency/grpc",
        ],
        subjects: vec!["firth", "raw"],
        takes_part: |workload, subject| {
            // JetStream stores the same batch only once.
            subject == "firth" || (workload.starts_with("deliver/") && workload != "deliver/jetstream")
        },
        plan: |workload, quick| {
            let mut plan = Plan::speed(Duration::from_millis(if quick { 2000 } else { 5000 }), true);
            if workload.starts_with("stall/") {
                plan.rounds.timed = stall::LENGTH;
            }
            Plan { slices: if quick { 1 } else { 3 }, ..plan }
        },
        judge: |workload, rows| verdict::judge(limits(workload), rows),
    }
}

/// 2.5 µs for an event at a million subscriptions and 10 µs for a subscription; 300 000 events a
/// second by gRPC; 1 ms when there is little to do.
fn limits(workload: &str) -> &'static [Limit] {
    match workload {
        "match/1000000" => &[Limit::AtLeast("ops_per_s", 400_000.0), Limit::AtMost("subscribe_us", 10.0)],
        "match/100000" => &[Limit::AtMost("p99_us", 10_000.0)],
        "deliver/grpc" | "deliver/grpc-stream" => &[Limit::AtLeast("ops_per_s", 300_000.0)],
        "deliver/http2" => &[Limit::AtLeast("ops_per_s", 50_000.0)],
        "stall/64" => &[Limit::AtMost("p99_ratio", 1.1)],
        "latency/http2" | "latency/grpc" => &[Limit::AtMost("p50_us", 1000.0)],
        _ => &[],
    }
}

/// The child's side: measures one cell.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    let Some((what, which)) = cell.workload.split_once('/') else { bail!("no such workload") };
    if what == "match" {
        return matching::measure(cell, which.parse()?);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match (what, cell.subject.as_str()) {
        ("stall", _) => runtime.block_on(stall::measure(cell)),
        ("deliver", "raw") => runtime.block_on(deliver::raw(cell, which)),
        ("deliver", _) => runtime.block_on(deliver::routed(cell, which)),
        ("latency", _) => runtime.block_on(deliver::latency(cell, which)),
        _ => bail!("no such workload"),
    }
}
