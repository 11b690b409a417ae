//! What must be in order before a stream starts: the right server and the publication.

use super::catalog::{self, Table, quoted, quoted_table};
use super::config::Config;
use super::connection::{Connection, Purpose};
use super::target::Host;
use crate::error::{Error, ErrorKind, Result};
use crate::state::State;
use std::collections::BTreeMap;

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

/// Checks the tables, and sees to it that they are published.
pub(crate) async fn publication(config: &Config, primary: &mut Primary, state: &State) -> Result<()> {
    let tables = catalog::tables(&mut primary.queries, &config.tables).await?;
    check_tables(config, &tables)?;
    let published = catalog::published(&mut primary.queries, &config.publication).await?;
    let name = quoted(&config.publication);
    let Some(published) = published else {
        let sql = create_publication(config);
        if state.has_slot || !config.own_publication {
            return Err(Error::refused(format!(
                "publication {} is missing; make it again by: {sql}",
                config.publication
            )));
        }
        return run(primary, &sql).await;
    };
    let missing: Vec<_> = config.tables.iter().filter(|table| !published.tables.contains(*table)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = missing.iter().map(|table| quoted_table(table)).collect();
    let sql = format!("ALTER PUBLICATION {name} ADD TABLE {}", list.join(", "));
    // A table that was published before was removed by an operator.
    match missing.iter().find(|table| state.tables.contains(**table)) {
        Some(table) => Err(Error::refused(format!(
            "table {table} was removed from publication {}: take it out of `tables`, or run: {sql}",
            config.publication
        ))),
        None if !config.own_publication => {
            Err(Error::refused(format!("publication {} lacks tables; run: {sql}", config.publication)))
        }
        None => run(primary, &sql).await,
    }
}

/// The statement that makes the publication.
pub(super) fn create_publication(config: &Config) -> String {
    let list: Vec<_> = config.tables.iter().map(|table| quoted_table(table)).collect();
    let name = quoted(&config.publication);
    format!(
        "CREATE PUBLICATION {name} FOR TABLE {} WITH (publish_via_partition_root = true)",
        list.join(", ")
    )
}

async fn run(primary: &mut Primary, sql: &str) -> Result<()> {
    primary.queries.query(sql).await.map(drop).map_err(|error| match error.kind() {
        ErrorKind::Unauthorized => Error::new(
            ErrorKind::Unauthorized,
            format!("the role may not change the publication; let the tables' owner run: {sql}"),
        )
        .with_source(error),
        _ => error,
    })
}

/// A published table that cannot tell updates breaks the application's own statements.
fn check_tables(config: &Config, tables: &BTreeMap<String, Table>) -> Result<()> {
    for name in &config.tables {
        let Some(table) = tables.get(name) else {
            return Err(Error::refused(format!(
                "tables: there is no table {name}, or the role may not see it"
            )));
        };
        let is_told = match table.identity {
            'f' | 'i' => true,
            'd' => !table.primary.is_empty(),
            _ => false,
        };
        if !is_told {
            return Err(Error::refused(format!(
                "table {name} has no replica identity, so publishing it would break its UPDATEs and DELETEs: \
                 add a primary key, or run ALTER TABLE {} REPLICA IDENTITY FULL",
                quoted_table(name)
            )));
        }
    }
    Ok(())
}
