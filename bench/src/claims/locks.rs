//! The peer at rest: a lock per unit, each extended by a call of its own, as in the design that
//! claims replace. Pipelined, which is kinder than one task per unit.

use super::rest::{Load, TTL, row};
use crate::alloc::Count;
use crate::cell::Cell;
use crate::measure::{Clock, Row, precise};
use crate::server::Admin;
use anyhow::Result;
use firth_redis::resp::Ignore;
use firth_redis::{Client, cmd, pipe};
use std::collections::BTreeMap;

/// Calls that travel together.
const PAGE: usize = 500;

pub(super) fn measure(cell: &Cell, load: Load) -> Result<Row> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(&format!("redis://127.0.0.1:{}", cell.port)).await?;
        let mut admin = Admin::connect(cell.port)?;
        let count = Count::start();
        let names: Vec<String> = (0..load.claims).map(|n| format!("mutex:unit-{n:06}")).collect();
        let heap = count.live_bytes();
        drop(count);
        let ttl = u64::try_from(TTL.as_millis())?;
        for names in names.chunks(PAGE) {
            let mut page = pipe();
            names.iter().for_each(|name| page.push(&cmd("SET").key(name).arg("w0").arg("PX").arg(ttl)));
            client.pipeline::<Vec<Ignore>>(page).await?;
        }
        let (calls, commands) = super::server_counts(&mut admin)?;
        let server = admin.server_cpu()?;
        let clock = Clock::start()?;
        let ticks = (cell.rounds.timed.as_secs_f64() / (TTL.as_secs_f64() / 3.0)).round();
        let mut tick = tokio::time::interval(TTL / 3);
        for _ in 0..ticks as u64 {
            tick.tick().await;
            for names in names.chunks(PAGE) {
                let mut page = pipe();
                names.iter().for_each(|name| page.push(&cmd("PEXPIRE").key(name).arg(ttl)));
                client.pipeline::<Vec<Ignore>>(page).await?;
            }
        }
        tick.tick().await;
        let spent = clock.stop()?;
        let server = admin.server_cpu()?.saturating_sub(server);
        let (calls_after, commands_after) = super::server_counts(&mut admin)?;
        client.close().await;
        let seconds = spent.wall.as_secs_f64();
        let claims = precise(load.claims);
        let extra = BTreeMap::from([
            ("calls_per_s".to_owned(), (calls_after - calls) / seconds),
            ("calls_per_tick".to_owned(), (calls_after - calls) / (ticks * precise(load.workers))),
            ("server_cmds_per_s".to_owned(), (commands_after - commands) / seconds),
            ("server_cpu_us_per_op".to_owned(), server.as_secs_f64() * 1e6 / (claims * seconds)),
            ("bytes_per_item".to_owned(), heap / claims),
        ]);
        Ok(row(cell, claims, spent.cpu.as_secs_f64() * 1e6 / (claims * seconds), extra))
    })
}
