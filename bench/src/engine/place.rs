//! Where a measurement happens: a server or a data directory of its own, and what it costs there in
//! memory, disk and CPU.

use super::workload::Site;
use crate::server;
use anyhow::{Context, Result};
use firth_testkit::{Persist, RedisServer};
use nix::unistd::{SysconfVar, sysconf};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A place, gone when it is dropped.
pub(crate) enum Place {
    Memory,
    Directory { dir: Directory, synced: bool },
    Server(Box<RedisServer>),
}

impl Place {
    pub(crate) async fn make(site: Site, flavor: &str) -> Result<Self> {
        Ok(match site {
            Site::Memory => Self::Memory,
            Site::File | Site::FileFast => {
                Self::Directory { dir: Directory::make()?, synced: site == Site::File }
            }
            Site::Redis | Site::RedisEverysec => {
                let persist = if site == Site::Redis { Persist::None } else { Persist::Aof };
                let server = RedisServer::builder().flavor(server::named(flavor)?).persist(persist);
                Self::Server(Box::new(server.start().await))
            }
        })
    }

    /// The engine's URL.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Memory => "memory:".to_owned(),
            Self::Directory { dir, synced } => {
                let durability = if *synced { "synced" } else { "fast" };
                format!("file:{}?durability={durability}", dir.0.display())
            }
            Self::Server(server) => {
                format!("{}?durability=fast", server.tcp_url().trim_end_matches('/'))
            }
        }
    }

    /// Bytes in use: of this process, of the disk, or of the server's memory.
    pub(crate) async fn bytes(&self) -> Result<u64> {
        match self {
            Self::Memory => {
                let text = std::fs::read_to_string("/proc/self/statm").context("read /proc/self/statm")?;
                let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
                let page = sysconf(SysconfVar::PAGE_SIZE)?.context("size of a page")?;
                Ok(pages.context("resident pages in statm")? * u64::try_from(page)?)
            }
            Self::Directory { dir, .. } => Ok(used(&dir.0)),
            Self::Server(server) => {
                let info = server.info("memory").await;
                let used = info.get("used_memory").context("INFO memory has no used_memory")?;
                used.trim().parse().context("used_memory is a number")
            }
        }
    }

    /// User + system time of the server so far; nothing where there is none.
    pub(crate) fn server_cpu(&self) -> Result<Duration> {
        let Self::Server(server) = self else { return Ok(Duration::ZERO) };
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).context("the server's stat")?;
        // The program's name, in brackets, may hold spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("ticks in stat");
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("ticks per second")?;
        Ok(Duration::from_secs(ticks(11)? + ticks(12)?) / u32::try_from(per_second)?)
    }
}

/// A directory that is removed with everything in it.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    fn make() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("firth-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).context("make a data directory")?;
        Ok(Self(dir))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // nothing better can be done in a destructor
    }
}

/// Bytes on disk under `dir`; a file that vanishes during the walk counts as nothing.
fn used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => used(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}
