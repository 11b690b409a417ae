//! Many rows: streamed, copied, and in one transaction; and none at all.

use super::database::{World, until};
use crate::cell::Cell;
use crate::measure::{Clock, Row};
use anyhow::{Context, Result, ensure};
use firth_connect::Condition;
use nix::sys::resource::{UsageWho, getrusage};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn count(cell: &Cell) -> usize {
    if cell.quick { 200_000 } else { 1_000_000 }
}

fn row(cell: &Cell, count: usize, wall: Duration, cpu: Duration, extra: &[(&str, f64)]) -> Row {
    let per_row = |time: Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
    Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: count as f64 / wall.as_secs_f64(),
        cpu_us_per_op: per_row(cpu),
        p50_us: 0.0,
        p99_us: 0.0,
        extra: extra.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<BTreeMap<_, _>>(),
    }
}

/// Committed rows through the slot into the topic.
pub(super) async fn streamed(cell: &Cell, engine: &str) -> Result<Row> {
    let world = World::new(engine).await?;
    world.make_slot().await?;
    world.fill(count(cell)).await;
    let clock = Clock::start()?;
    let sources = world.start(false).await?;
    until(&sources, |status| status.appended as usize >= count(cell)).await?;
    let spent = clock.stop()?;
    sources.close().await;
    Ok(row(cell, count(cell), spent.wall, spent.cpu, &[]))
}

/// Rows that were there, into the topic.
pub(super) async fn snapshot(cell: &Cell) -> Result<Row> {
    let world = World::new("memory").await?;
    world.fill(count(cell)).await;
    let clock = Clock::start()?;
    let sources = world.start(true).await?;
    until(&sources, |status| status.appended as usize >= count(cell)).await?;
    let spent = clock.stop()?;
    sources.close().await;
    Ok(row(cell, count(cell), spent.wall, spent.cpu, &[]))
}

/// One transaction, and the memory that this process needs at most.
pub(super) async fn large(cell: &Cell) -> Result<Row> {
    let count = 1_000_000;
    let world = World::new("file").await?;
    let sources = world.start(false).await?;
    until(&sources, |status| status.condition == Condition::Streaming).await?;
    let before = peak_mb()?;
    let sql = format!(
        "INSERT INTO orders SELECT n, 0, 'paid', n * 1.25, repeat('x', 100) FROM generate_series(1, {count}) n"
    );
    world.server.sql(sql).await;
    let clock = Clock::start()?;
    until(&sources, |status| status.appended >= count).await?;
    let spent = clock.stop()?;
    sources.close().await;
    let extra = [("peak_mb", peak_mb()?), ("idle_mb", before)];
    Ok(row(cell, usize::try_from(count)?, spent.wall, spent.cpu, &extra))
}

/// The most memory that this process ever had.
fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

/// A source of a database where nothing happens.
pub(super) async fn idle(cell: &Cell) -> Result<Row> {
    let world = World::new("memory").await?;
    let sources = world.start(false).await?;
    until(&sources, |status| status.condition == Condition::Streaming).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let clock = Clock::start()?;
    tokio::time::sleep(Duration::from_secs(if cell.quick { 11 } else { 30 })).await;
    let spent = clock.stop()?;
    sources.close().await;
    let percent = spent.cpu.as_secs_f64() * 100.0 / spent.wall.as_secs_f64();
    Ok(row(cell, 0, spent.wall, spent.cpu, &[("idle_cpu_percent", percent)]))
}

/// The limit of a stream: PostgreSQL's own receiver throws the same messages away.
pub(super) async fn received(cell: &Cell) -> Result<Row> {
    let world = World::new("memory").await?;
    let sql = "CREATE PUBLICATION limited FOR TABLE orders; SELECT pg_create_logical_replication_slot('limited', 'pgoutput')";
    world.server.sql(sql).await;
    world.fill(count(cell)).await;
    let end = world.server.sql("SELECT pg_current_wal_lsn()").await;
    let mut command = world.server.tool("pg_recvlogical");
    command.args(["--slot=limited", "--start", "--file=/dev/null", "--no-loop", "--fsync-interval=0"]);
    command.args(["--option=proto_version=1", "--option=publication_names=limited"]);
    command.arg(format!("--endpos={end}"));
    by_program(cell, command).await
}

/// The limit of a snapshot: the table as text.
pub(super) async fn copied_out(cell: &Cell) -> Result<Row> {
    let world = World::new("memory").await?;
    world.fill(count(cell)).await;
    let mut command = world.server.tool("psql");
    command.args(["--no-psqlrc", "--quiet", "--command=COPY (SELECT * FROM orders ORDER BY id) TO STDOUT"]);
    by_program(cell, command).await
}

async fn by_program(cell: &Cell, mut command: Command) -> Result<Row> {
    let cpu = || -> Result<Duration> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        let of = |time: nix::sys::time::TimeVal| {
            Duration::from_micros(u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or(0))
        };
        Ok(of(usage.user_time()) + of(usage.system_time()))
    };
    let before = cpu()?;
    let begun = Instant::now();
    let run = move || command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = tokio::task::spawn_blocking(run).await??;
    let wall = begun.elapsed();
    ensure!(status.success(), "the program failed: {status}");
    let spent = cpu()?.saturating_sub(before);
    Ok(row(cell, count(cell), wall, spent, &[]))
}
