//! One measurement in a process of its own: the parent starts this binary again with a [`Cell`],
//! the child measures and prints one [`Row`]. So CPU, heap and runtime of a subject hold nothing of
//! another.
//!
//! A child that fails or outlives its deadline costs its own row only: the parent ends it and goes
//! on.

use crate::measure::Row;
use crate::{alloc, connect, router};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How much longer than its rounds a child may take to connect, prepare and end.
const GRACE: Duration = Duration::from_secs(30);

/// What a child is asked to measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) bench: String,
    pub(crate) workload: String,
    pub(crate) subject: String,
    /// What kind of server it is.
    pub(crate) server: String,
    /// Its port on loopback.
    pub(crate) port: u16,
    pub(crate) rounds: Rounds,
    /// Whether a rough figure will do.
    pub(crate) quick: bool,
}

/// How long each round of a child lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rounds {
    /// Unmeasured: connections, caches and the server's memory settle.
    pub(crate) warm: Duration,
    /// Rate, CPU and latency.
    pub(crate) timed: Duration,
    /// Allocations, apart from the timed round because counting costs time.
    pub(crate) counted: Duration,
}

impl Rounds {
    fn total(&self) -> Duration {
        self.warm + self.timed + self.counted
    }
}

impl Cell {
    /// Measures in a fresh process.
    pub(crate) fn run_in_child(&self) -> Result<Row> {
        let own = std::env::current_exe().context("path of this program")?;
        let mut command = Command::new(own);
        // What runs in the program is measured on its allocator.
        if [router::NAME, connect::NAME].contains(&&*self.bench) {
            command.env(alloc::NAME, "1");
        }
        let mut child = command
            .args(["cell", &serde_json::to_string(self)?])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a measuring process")?;
        let mut stdout = child.stdout.take().context("stdout of the measuring process")?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = stdout.read_to_string(&mut text).map(|_| text);
            // The receiver is gone when the deadline has passed; then the text is dropped.
            drop(sender.send(read));
        });
        let deadline = self.rounds.total() + GRACE;
        let output = receiver.recv_timeout(deadline);
        if output.is_err() {
            child.kill().context("end a measuring process that hangs")?;
        }
        let status = child.wait().context("wait for a measuring process")?;
        let Ok(output) = output else { bail!("no result within {deadline:?}, ended") };
        if !status.success() {
            bail!("measuring process failed ({status}), its message is above");
        }
        serde_json::from_str(output?.trim()).context("read the measured row")
    }

    /// The child's side: reads the cell it was started with.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("`bench cell` is started by the bench itself, with a JSON cell")
    }
}
