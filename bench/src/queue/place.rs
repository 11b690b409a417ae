//! Where messages lie: a server or folder of its own for each measurement, so that none sees what
//! another left; and what it costs there.

use super::nats::Nats;
use super::workload::{Engine, Workload};
use crate::server::{self, Admin};
use anyhow::{Context, Result};
use firth_testkit::{Persist, RedisServer};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) enum Place {
    Redis(Box<RedisServer>),
    Nats(Nats),
    Folder { dir: tempfile::TempDir, synced: bool },
    Memory,
}

impl Place {
    /// Starts what `subject` needs.
    pub(crate) async fn start(subject: &str, workload: Workload, flavor: &str) -> Result<Self> {
        match subject {
            "jetstream-memory" => return Ok(Self::Nats(Nats::start(false)?)),
            "jetstream-file" => return Ok(Self::Nats(Nats::start(true)?)),
            _ => {}
        }
        Ok(match workload.engine {
            Engine::Redis | Engine::RedisAof => {
                let persist = if workload.engine == Engine::RedisAof { Persist::Aof } else { Persist::None };
                let server = RedisServer::builder().flavor(server::named(flavor)?).persist(persist);
                // Else a rewrite of the file begins in the middle of some measurements.
                Self::Redis(Box::new(server.arg("auto-aof-rewrite-percentage", "0").start().await))
            }
            Engine::Embedded | Engine::Synced => {
                let dir =
                    tempfile::Builder::new().prefix("firth-bench-").tempdir().context("make a folder")?;
                Self::Folder { dir, synced: workload.engine == Engine::Synced }
            }
            Engine::Memory => Self::Memory,
        })
    }

    /// The engine's URL for firth.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => format!("{}?durability=fast", server.url()),
            Self::Nats(nats) => nats.url(),
            Self::Folder { dir, synced } => {
                let durability = if *synced { "synced" } else { "fast" };
                format!("file:{}?durability={durability}", dir.path().display())
            }
            Self::Memory => "memory:".to_owned(),
        }
    }

    /// The server's port; 0 if there is none.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::Nats(nats) => nats.port(),
            Self::Folder { .. } | Self::Memory => 0,
        }
    }

    /// Bytes of memory or disk in use.
    pub(crate) fn bytes(&self) -> Result<f64> {
        match self {
            Self::Redis(server) => Admin::connect(server.port())?.used_memory(),
            Self::Nats(nats) => nats.bytes(),
            Self::Folder { dir, .. } => folder_bytes(dir.path()),
            Self::Memory => resident(std::process::id()),
        }
    }

    /// CPU that the server has used so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        match self {
            Self::Redis(server) => Admin::connect(server.port())?.server_cpu(),
            Self::Nats(nats) => nats.cpu(),
            Self::Folder { .. } | Self::Memory => Ok(Duration::ZERO),
        }
    }
}

/// The bytes that the files of a folder take on disk.
pub(crate) fn folder_bytes(dir: &Path) -> Result<f64> {
    use std::os::unix::fs::MetadataExt;
    let mut folders = vec![PathBuf::from(dir)];
    let mut blocks = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("look into {}", folder.display()))? {
            let entry = entry?;
            // A file may be gone again.
            let Ok(about) = entry.metadata() else { continue };
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                blocks += about.blocks();
            }
        }
    }
    Ok(crate::measure::precise(blocks * 512))
}

/// Memory of a process that is in use.
pub(crate) fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("read a process's memory")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    Ok(kib.context("VmRSS")?.trim().parse::<f64>()? * 1024.0)
}

/// User + system time of another process; counted by the kernel in hundredths of a second.
pub(crate) fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("read a process's CPU time")?;
    let (_, rest) = stat.rsplit_once(") ").context("a process's state")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |at: usize| {
        fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("a process's CPU time")
    };
    Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
}
