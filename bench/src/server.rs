//! The server under the benches: a redis-server or valkey-server of our own on a free port, nothing
//! written to disk, ended on drop; and the side connection that prepares data and reads the
//! server's CPU time.

use anyhow::{Context, Result};
use firth_testkit::{Flavor, RedisServer};
use std::time::Duration;

/// The kind of server by its name on the command line and in a cell.
pub(crate) fn named(name: &str) -> Result<Flavor> {
    let known = Flavor::ALL.into_iter().find(|flavor| flavor.to_string() == name);
    known.with_context(|| format!("no server {name}; there are: redis valkey"))
}

/// Starts a server without persistence; the fixture's panic says what is missing if it cannot.
pub(crate) fn start(flavor: Flavor) -> Result<RedisServer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(RedisServer::start(flavor)))
}

/// A blocking connection beside the measured one.
pub(crate) struct Admin(redis::Connection);

impl Admin {
    pub(crate) fn connect(port: u16) -> Result<Self> {
        Ok(Self(redis::Client::open(("127.0.0.1", port)).and_then(|client| client.get_connection())?))
    }

    /// Runs one command and drops its answer.
    pub(crate) fn run(&mut self, parts: &[&str]) -> Result<()> {
        let (name, args) = parts.split_first().context("a command has a name")?;
        redis::cmd(name).arg(args).exec(&mut self.0).with_context(|| format!("prepare data: {name}"))
    }

    /// Runs many commands in one round trip.
    pub(crate) fn run_all(&mut self, commands: redis::Pipeline) -> Result<()> {
        commands.exec(&mut self.0).context("prepare data")
    }

    /// How many clients are connected, this one included.
    pub(crate) fn connections(&mut self) -> Result<u64> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut self.0).context("CLIENT LIST")?;
        Ok(list.lines().count() as u64)
    }

    /// Bytes that the server's data takes.
    pub(crate) fn used_memory(&mut self) -> Result<f64> {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut self.0).context("INFO memory")?;
        let value = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        value.context("INFO memory has no used_memory")?.trim().parse().context("used_memory in INFO memory")
    }

    /// A section of INFO.
    pub(crate) fn info(&mut self, section: &str) -> Result<String> {
        redis::cmd("INFO").arg(section).query(&mut self.0).with_context(|| format!("INFO {section}"))
    }

    /// User + system time that the server has used so far.
    pub(crate) fn server_cpu(&mut self) -> Result<Duration> {
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.0).context("INFO cpu")?;
        let seconds = ["used_cpu_sys:", "used_cpu_user:"].iter().map(|name| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            let value = line.with_context(|| format!("INFO cpu has no {name}"))?;
            value.trim().parse::<f64>().with_context(|| format!("{name} in INFO cpu"))
        });
        Ok(Duration::from_secs_f64(seconds.sum::<Result<f64>>()?))
    }
}
