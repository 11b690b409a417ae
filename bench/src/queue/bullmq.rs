//! BullMQ in a Node.js process of its own, which measures itself; see `bullmq.mjs`.

use super::meter::Measured;
use super::place::Place;
use super::workload::Act;
use crate::measure::Spent;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/queue/bullmq.mjs");

/// The folder with BullMQ, if it and Node.js are there.
pub(crate) fn home() -> Option<PathBuf> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bullmq");
    let has_node = Command::new("node").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (home.join("node_modules/ioredis").is_dir() && has_node.is_ok_and(|status| status.success()))
        .then_some(home)
}

#[derive(Deserialize)]
struct Figures {
    messages: u64,
    wall_us: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Runs one act; its server time is that of the whole run, per message of the whole run.
pub(crate) fn measure(place: &Place, act: Act, goal: u64) -> Result<Measured> {
    let home = home().context("BullMQ or Node.js is missing; `cargo xtask bench` fetches BullMQ")?;
    let name = match act {
        Act::Produce => "produce",
        Act::Consume => "consume",
        Act::EndToEnd => "e2e",
        Act::Latency => "latency",
        _ => bail!("BullMQ is not measured here"),
    };
    let before = place.cpu()?;
    let output = Command::new("node")
        .arg(SCRIPT)
        .arg(home)
        .args([&place.port().to_string(), name, &goal.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("run node")?;
    ensure!(output.status.success(), "node failed ({})", output.status);
    let figures: Figures = serde_json::from_slice(&output.stdout).context("read what node measured")?;
    let server = place.cpu()?.saturating_sub(before);
    let micros = |us: f64| Duration::from_secs_f64(us / 1e6);
    Ok(Measured {
        messages: figures.messages,
        spent: Spent { wall: micros(figures.wall_us), cpu: micros(figures.cpu_us) },
        server: server.mul_f64(crate::measure::precise(figures.messages) / crate::measure::precise(goal)),
        p50_us: figures.p50_us,
        p99_us: figures.p99_us,
    })
}
