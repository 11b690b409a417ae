//! `bench edge`: one gateway, many WebSocket clients. `firth` is the gateway; `raw` writes the same
//! bytes to as many sockets with nothing between, which is the limit.
//!
//! The gateway runs in a process of its own (`bench edge-server`), the clients in the measuring
//! one: their memory and CPU are not mixed, and each has its own file descriptors. An operation is
//! one message at one client.
//!
//! `latency/topic` and `latency/router` are the way of one event from a topic to a client, without
//! and with a router between.
//!
//! `fanout` has two rounds: one message to all, again and again, timed until the last client has
//! it; then 16 messages at a time, which an edge should carry in one write.

pub(crate) mod clients;
pub(crate) mod path;
mod server;

use crate::cell::Cell;
use crate::measure::{Row, median};
use crate::suite::{Plan, Suite};
use crate::verdict::{self, Limit};
use anyhow::{Context, Result};
use clients::Clients;
use server::Server;
pub(crate) use server::serve;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Name of this bench in the JSON lines.
pub(crate) const NAME: &str = "edge";

const SUBJECTS: [&str; 2] = ["firth", "raw"];
/// Messages that come at once in the second round.
const AT_ONCE: usize = 16;
/// How often one message goes to all.
const SINGLES: usize = 25;

/// What this bench consists of.
pub(crate) fn suite() -> Suite {
    Suite {
        name: NAME,
        workloads: vec!["fanout/1000", "fanout/10000", "latency/topic", "latency/router"],
        subjects: SUBJECTS.to_vec(),
        takes_part: |workload, subject| subject == "firth" || workload.starts_with("fanout"),
        plan: |_, quick| {
            let plan = Plan::speed(Duration::from_millis(if quick { 2000 } else { 5000 }), true);
            Plan { slices: if quick { 1 } else { 3 }, ..plan }
        },
        judge: |workload, rows| verdict::judge(limits(workload), rows),
    }
}

/// 8 KiB for a client, 120 ms for one message to all, 1.5 million messages a second; 200 ms from
/// the source to a client.
fn limits(workload: &str) -> &'static [Limit] {
    match workload {
        "fanout/10000" => &[
            Limit::AtMost("bytes_per_item", 8192.0),
            Limit::AtMost("to_all_ms", 120.0),
            Limit::AtMost("wall_us_per_message", 1.0 / 1.5),
        ],
        "latency/topic" | "latency/router" => &[Limit::AtMost("p99_ms", 200.0)],
        _ => &[],
    }
}

/// The child's side: measures one cell.
pub(crate) fn measure(cell: &Cell) -> Result<Row> {
    if let Some(by) = cell.workload.strip_prefix("latency/") {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        return runtime.block_on(path::measure(cell, by == "router"));
    }
    let count: usize = cell
        .workload
        .strip_prefix("fanout/")
        .and_then(|count| count.parse().ok())
        .context("no such workload")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut server = Server::start(&cell.subject)?;
    let empty = server.memory()?;
    let clients = runtime.block_on(Clients::connect(server.port, count))?;
    publish(&mut server, &clients, 1)?;
    let per_client = (server.memory()?.saturating_sub(empty)) as f64 / count as f64;
    let mut singles = Vec::new();
    for _ in 0..SINGLES {
        let begun = Instant::now();
        publish(&mut server, &clients, 1)?;
        singles.push(begun.elapsed().as_secs_f64() * 1e6);
        // Idle again: the next one goes out at once.
        std::thread::sleep(Duration::from_millis(20));
    }
    singles.sort_by(f64::total_cmp);
    let cpu = server.cpu()?;
    let begun = Instant::now();
    let mut messages = 0;
    while begun.elapsed() < cell.rounds.timed {
        publish(&mut server, &clients, AT_ONCE)?;
        messages += AT_ONCE * count;
    }
    let wall = begun.elapsed().as_secs_f64();
    let cpu = server.cpu()? - cpu;
    let loaded = (server.memory()?.saturating_sub(empty)) as f64 / count as f64;
    let extra = [
        ("bytes_per_item", per_client),
        ("bytes_loaded", loaded),
        ("to_all_ms", median(singles.clone()) / 1000.0),
        ("wall_us_per_message", wall * 1e6 / messages as f64),
    ];
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: messages as f64 / wall,
        cpu_us_per_op: cpu * 1e6 / messages as f64,
        p50_us: median(singles.clone()),
        p99_us: singles[singles.len() - 1],
        extra: BTreeMap::from(extra.map(|(name, value)| (name.to_owned(), value))),
    })
}

/// Lets the gateway publish, and waits until every client has everything.
fn publish(server: &mut Server, clients: &Clients, messages: usize) -> Result<()> {
    let wanted = clients.received() + messages * clients.count();
    server.publish(messages)?;
    clients.wait_for(wanted)
}
