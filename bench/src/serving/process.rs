//! The server under load: a process on a free port, ended on drop; its CPU time and memory from
//! /proc.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Ticks of /proc/PID/stat per second: fixed on Linux.
const TICKS: u64 = 100;

pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
    /// From the start of the process to the first answer.
    pub(crate) started_in: Duration,
    /// Held for the life of the server, which keeps its topics there.
    _dir: TempDir,
}

impl Process {
    /// Starts the subject and waits until it answers.
    pub(crate) fn start(subject: &str) -> Result<Self> {
        let dir = TempDir::new().context("a directory for the server")?;
        let mut command = match subject {
            "firth" => {
                let program = std::env::var_os("FIRTH_BIN")
                    .context("FIRTH_BIN names the program: start this by `cargo xtask bench server`")?;
                let mut command = Command::new(program);
                command.args(["serve", "--listen", "127.0.0.1:0", "--engine"]);
                command.arg(format!("file:{}", dir.path().join("data").display()));
                command.current_dir(dir.path());
                command
            }
            "raw" => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("bare-server");
                command
            }
            other => bail!("no subject {other}"),
        };
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let address = line.trim().rsplit('/').next().unwrap_or_default();
        let address = address.parse().with_context(|| format!("no address in {line:?}"))?;
        let mut process = Self { child, address, started_in: Duration::ZERO, _dir: dir };
        std::net::TcpStream::connect(process.address).context("connect")?;
        process.started_in = began.elapsed();
        Ok(process)
    }

    /// User + system time so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name in brackets may hold anything, hence from the last bracket on.
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
        Ok(Duration::from_millis((ticks(11) + ticks(12)) * 1000 / TICKS))
    }

    /// Resident memory now, and the most that there was, in MB.
    pub(crate) fn memory(&self) -> Result<(f64, f64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok())
        };
        let mb = |kib: Option<f64>| kib.map(|kib| kib * 1024.0 / 1e6).context("memory in /proc");
        Ok((mb(of("VmRSS:"))?, mb(of("VmHWM:"))?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
