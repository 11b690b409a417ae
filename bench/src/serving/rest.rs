//! A server at rest: how fast it is there, what it costs to do nothing, with some topics and groups
//! in it.

use super::process::Process;
use super::wire::{Connection, request};
use crate::cell::Cell;
use crate::measure::{Clock, Row, median};
use anyhow::Result;
use std::collections::BTreeMap;

const STARTS: usize = 5;
const TOPICS: usize = 10;

pub(crate) async fn measure(cell: &Cell) -> Result<Row> {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(Process::start(&cell.subject)?.started_in.as_secs_f64() * 1e3);
    }
    let server = Process::start(&cell.subject)?;
    let mut connection = Connection::open(server.address).await?;
    for topic in 0..TOPICS {
        let path = format!("/v1/topics/rest-{topic}");
        connection.ask(&request("PUT", &path, r#"{"partitions": 4}"#)).await?;
        connection.ask(&request("POST", &format!("{path}/records"), r#"{"payload": "x"}"#)).await?;
        connection.ask(&request("POST", &format!("{path}/groups/g/fetch"), r#"{"wait_ms": 1000}"#)).await?;
    }
    tokio::time::sleep(cell.rounds.warm).await;
    let clock = Clock::start()?;
    let cpu = server.cpu()?;
    tokio::time::sleep(cell.rounds.timed).await;
    let spent = clock.stop()?;
    let cpu = server.cpu()?.saturating_sub(cpu);
    let start_ms = median(starts);
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: 1e3 / start_ms,
        cpu_us_per_op: 0.0,
        p50_us: start_ms * 1e3,
        p99_us: start_ms * 1e3,
        extra: BTreeMap::from([
            ("start_ms".to_owned(), start_ms),
            ("idle_cpu_percent".to_owned(), cpu.as_secs_f64() / spent.wall.as_secs_f64() * 100.0),
            ("idle_mb".to_owned(), server.memory()?.0),
        ]),
    })
}
