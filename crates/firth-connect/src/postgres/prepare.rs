//! The right server: the first host that is a primary.

use super::catalog;
use super::config::Config;
use super::connection::{Connection, Purpose};
use super::target::Host;
use crate::error::{Error, ErrorKind, Result};

/// A primary, looked at: a session for queries, one for the stream.
pub(crate) struct Primary {
    pub(crate) queries: Connection,
    pub(crate) stream: Connection,
    pub(crate) host: Host,
    pub(crate) version: u32,
    pub(crate) system: u64,
    pub(crate) timeline: u32,
}

/// Logs in to the first host that is a primary.
pub(crate) async fn primary(config: &Config, epoch: u64) -> Result<Primary> {
    let mut failure = None;
    for host in &config.target.hosts {
        match attempt(config, host, epoch).await {
            Ok(primary) => return Ok(primary),
            // Why a primary cannot be used says more than that another host is none.
            Err(error) => {
                failure = Some(failure.filter(|_| error.kind() == ErrorKind::Unavailable).unwrap_or(error));
            }
        }
    }
    Err(failure.expect("a URL names a host"))
}

async fn attempt(config: &Config, host: &Host, epoch: u64) -> Result<Primary> {
    let application = config.application(epoch);
    let mut queries = Connection::open(&config.target, host, Purpose::Query, &application).await?;
    let server = catalog::server(&mut queries).await?;
    if server.is_replica {
        return Err(Error::unavailable(format!("{host} is a replica: only primaries are read")));
    }
    let mut stream = Connection::open(&config.target, host, Purpose::Replication, &application).await?;
    let rows = stream.query("IDENTIFY_SYSTEM").await?;
    let identity = rows.first().and_then(|row| {
        let [Some(system), Some(timeline), ..] = &row[..] else { return None };
        Some((system.parse().ok()?, timeline.parse().ok()?))
    });
    let (system, timeline) =
        identity.ok_or_else(|| Error::corrupt("the server does not identify its system"))?;
    Ok(Primary { queries, stream, host: host.clone(), version: server.version, system, timeline })
}
