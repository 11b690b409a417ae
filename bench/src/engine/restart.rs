//! How long a directory full of records takes to open, and how much disk it needs.

use super::firth::fill;
use super::place::Place;
use super::workload::PAYLOAD;
use crate::cell::Cell;
use crate::measure::{Clock, Row, precise};
use anyhow::{Result, ensure};
use firth_engine::{Engine, Partition, TopicName};
use std::collections::BTreeMap;
use std::time::Instant;

const PARTITIONS: usize = 4;
const RECORDS: usize = 10_000_000;
/// With `--quick`.
const FEW: usize = 1_000_000;

/// Fills, closes, opens. An op is one record that is there again.
pub(crate) async fn measure(cell: &Cell, place: &Place) -> Result<Row> {
    let records = if cell.quick { FEW } else { RECORDS };
    let engine = Engine::at(&place.url()).await?;
    let mut partitions = vec![];
    for index in 0..PARTITIONS {
        let at = Partition::new(TopicName::new("bench")?, u32::try_from(index)?);
        engine.create_partition(&at).await?;
        fill(&engine, &at, records / PARTITIONS).await?;
        partitions.push(at);
    }
    engine.close().await?;
    drop(engine);
    let disk = place.bytes().await?;

    let clock = Clock::start()?;
    let began = Instant::now();
    let engine = Engine::at(&place.url()).await?;
    let took = began.elapsed();
    let spent = clock.stop()?;
    let mut found = 0;
    for at in &partitions {
        found += engine.bounds(at).await?.len();
    }
    ensure!(found == (records / PARTITIONS * PARTITIONS) as u64, "{found} of {records} records are there");
    engine.close().await?;
    let ops = precise(found);
    let micros = took.as_secs_f64() * 1e6;
    Ok(Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: ops / took.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / ops,
        p50_us: micros,
        p99_us: micros,
        extra: BTreeMap::from([
            ("bytes_per_item".to_owned(), precise(disk) / ops),
            ("disk_ratio".to_owned(), precise(disk) / ops / precise(PAYLOAD as u64)),
            ("open_ms".to_owned(), micros / 1000.0),
        ]),
    })
}
