//! Produce over 32 connections: each sends a prepared request, waits for its answer, and sends the
//! next.

use super::process::Process;
use super::wire::{Connection, PATIENCE, request};
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, percentiles, precise};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

const CONNECTIONS: usize = 32;
const PAYLOAD: usize = 256;
const TOPIC: &str = "/v1/topics/load";

/// Measures requests of `batch` messages; an op is one message.
pub(crate) async fn measure(cell: &Cell, batch: usize) -> Result<Row> {
    let server = Process::start(&cell.subject)?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(server.address).await?);
    }
    connections[0].ask(&request("PUT", TOPIC, r#"{"partitions": 4}"#)).await?;
    let (connections, _, _) = round(connections, batch, cell.rounds.warm).await?;
    let clock = Clock::start()?;
    let cpu = server.cpu()?;
    let (_, requests, samples) = round(connections, batch, cell.rounds.timed).await?;
    let spent = clock.stop()?;
    let server_cpu = server.cpu()?.saturating_sub(cpu);
    let ops = precise(requests * batch as u64);
    let (p50_us, p99_us) = percentiles(&samples)?;
    let per_op = |time: Duration| time.as_secs_f64() * 1e6 / ops;
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: ops / spent.wall.as_secs_f64(),
        cpu_us_per_op: per_op(spent.cpu),
        p50_us,
        p99_us,
        extra: BTreeMap::from([
            ("server_cpu_us_per_op".to_owned(), per_op(server_cpu)),
            ("peak_mb".to_owned(), server.memory()?.1),
        ]),
    })
}

/// The request of one connection: payloads of 256 bytes, keys of a thousand customers.
fn prepared(seat: usize, batch: usize) -> Vec<u8> {
    let payload = "p".repeat(PAYLOAD);
    let message =
        |n: usize| format!(r#"{{"key":"customer-{}","payload":"{payload}"}}"#, (seat * 31 + n * 7) % 1000);
    let body = match batch {
        1 => message(0),
        _ => format!("[{}]", (0..batch).map(message).collect::<Vec<_>>().join(",")),
    };
    request("POST", &format!("{TOPIC}/records"), &body)
}

/// Loads for this long; gives the connections back, the number of requests, and latencies.
async fn round(
    connections: Vec<Connection>,
    batch: usize,
    length: Duration,
) -> Result<(Vec<Connection>, u64, Vec<Samples>)> {
    let until = Instant::now() + length;
    let tasks = connections.into_iter().enumerate().map(|(seat, mut connection)| {
        let request = prepared(seat, batch);
        tokio::spawn(async move {
            let mut requests = 0_u64;
            let mut samples = Samples::with_capacity(1 << 15);
            while Instant::now() < until {
                let began = Instant::now();
                let answer = connection.exchange(&request).await?;
                ensure!(answer.starts_with(b"{\"receipts\":["), "no receipts");
                samples.push(began.elapsed());
                requests += 1;
            }
            Ok::<_, anyhow::Error>((connection, requests, samples))
        })
    });
    let mut connections = Vec::new();
    let mut requests = 0;
    let mut samples = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        let ended = timeout_at((until + PATIENCE).into(), task).await.context("no answer in time")?;
        let (connection, done, latencies) = ended.context("a connection failed")??;
        connections.push(connection);
        requests += done;
        samples.push(latencies);
    }
    ensure!(requests > 0, "not one request within {length:?}");
    Ok((connections, requests, samples))
}
