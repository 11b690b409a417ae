//! What must be in order before a stream starts: the right server, its history, the publication
//! and the slot.

use super::catalog::{self, Slot, Table, quoted, quoted_table};
use super::config::{Config, SnapshotMode};
use super::connection::{Connection, Purpose};
use super::position::{Lsn, Position};
use super::server_error::ServerError;
use super::target::Host;
use crate::copy_state::CopyState;
use crate::error::{Error, ErrorKind, Result};
use crate::state::{Allowed, Keep, State};
use bytes::Bytes;
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

/// Checks that this server's history holds what the topic has. Answers the marks as this server's
/// stream names them.
pub(crate) async fn history(
    primary: &mut Primary,
    state: &State,
    marks: &[Option<Bytes>],
) -> Result<Vec<Option<Position>>> {
    let marks = marks.iter().map(|mark| mark.as_ref().map(|mark| Position::from_bytes(mark)).transpose());
    let marks = marks.collect::<Result<Vec<_>>>()?;
    let known = marks.iter().flatten().map(|mark| mark.system).chain(state.system);
    if known.into_iter().any(|system| system != primary.system) {
        return Err(Error::refused(
            "this is another database cluster than the one that was read before: give the source another name, \
             or let the URL name the former one",
        ));
    }
    let read = marks.iter().flatten().map(|mark| mark.timeline);
    let newest = read.chain(state.allowed.map(|allowed| allowed.timeline)).max();
    if let Some(newest) = newest.filter(|newest| *newest > primary.timeline) {
        return Err(Error::refused(format!(
            "the server is on timeline {}, but timeline {newest} was read before: it is a former primary",
            primary.timeline
        )));
    }
    let Some(last) = marks.iter().flatten().max().copied() else { return Ok(marks) };
    if last.timeline < primary.timeline {
        let left = left_at(primary, last.timeline).await?;
        if last.commit >= left {
            return Err(Error::new(
                ErrorKind::Lost,
                format!(
                    "a failover lost changes that the topic has: timeline {} ended at {left}, the topic has {}",
                    last.timeline, last.commit
                ),
            ));
        }
    }
    // What this server's history shares with a former timeline is read again under the new one.
    let now = |mark: Position| Position { timeline: primary.timeline, ..mark };
    Ok(marks.into_iter().map(|mark| mark.map(now)).collect())
}

/// Where this server's history left the timeline.
async fn left_at(primary: &mut Primary, timeline: u32) -> Result<Lsn> {
    let rows = primary.stream.query(&format!("TIMELINE_HISTORY {}", primary.timeline)).await?;
    let text = rows.first().and_then(|row| row.get(1).cloned().flatten()).unwrap_or_default();
    // The content comes as bytes in hexadecimal form from some versions.
    let text = match text.strip_prefix("\\x") {
        Some(digits) => {
            let digit = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
            let bytes = (0..digits.len()).step_by(2).map_while(digit).collect();
            String::from_utf8(bytes).unwrap_or_default()
        }
        None => text,
    };
    switch_point(&text, timeline).ok_or_else(|| {
        let text =
            format!("the server's history does not contain timeline {timeline}, which was read before");
        Error::new(ErrorKind::Lost, text)
    })
}

/// Where a history file says that the timeline ended.
fn switch_point(history: &str, timeline: u32) -> Option<Lsn> {
    history.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.next()?.parse::<u32>() == Ok(timeline);
        is_it.then(|| words.next()?.parse().ok()).flatten()
    })
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

/// The place behind which the slot cannot stand unless it was made anew; none if that is not known.
/// Must be asked before the stream starts.
pub(crate) async fn limit(
    primary: &mut Primary,
    state: &State,
    marks: &[Option<Position>],
) -> Result<Option<Lsn>> {
    let last = marks.iter().flatten().max();
    let known = match state.allowed {
        Some(allowed) => Some((allowed.timeline, Lsn(allowed.lsn))),
        // The build before this stored no limit.
        None if state.has_slot => None,
        // The state is gone, but a new slot stands behind everything that was committed.
        None => last.map(|mark| (mark.timeline, mark.commit)),
    };
    match known {
        Some((timeline, lsn)) if timeline < primary.timeline => {
            Ok(Some(lsn.min(left_at(primary, timeline).await?)))
        }
        known => Ok(known.map(|(_, lsn)| lsn)),
    }
}

/// Finds the slot, or makes it the first time. A slot that is gone is never made again silently.
pub(crate) async fn slot(config: &Config, epoch: u64, primary: &mut Primary, was_read: bool) -> Result<()> {
    let name = config.slot();
    if let Some(slot) = catalog::slot(&mut primary.queries, &name).await? {
        check_slot(&name, &slot, &config.target.database)?;
        return release_slot(config, primary, &slot, epoch).await;
    }
    if was_read {
        return Err(lost_slot(&name, "is gone"));
    }
    let options = if primary.version >= 150_000 { "(SNAPSHOT 'nothing')" } else { "NOEXPORT_SNAPSHOT" };
    let sql = format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", quoted(&name));
    primary.stream.query(&sql).await.map(drop)
}

fn lost_slot(name: &str, why: &str) -> Error {
    let text = format!(
        "slot {name} {why}: changes after the last one in the topic may be gone; compare the tables with \
         the topic, drop the slot if there is one, and give the source another name, under which it starts \
         from now"
    );
    Error::new(ErrorKind::Lost, text)
}

/// Checks that the slot whose stream was just started is the one that was read before, and
/// remembers it. No other slot can take its place while it streams.
pub(crate) async fn own_slot<K: Keep>(
    config: &Config,
    primary: &mut Primary,
    keep: &K,
    state: &mut State,
    limit: Option<Lsn>,
) -> Result<()> {
    let name = config.slot();
    let slot = catalog::slot(&mut primary.queries, &name).await?;
    let confirmed = slot.and_then(|slot| slot.confirmed);
    let confirmed = confirmed.ok_or_else(|| Error::unavailable(format!("slot {name} is not ready yet")))?;
    if let Some(limit) = limit.filter(|limit| confirmed > *limit) {
        let why = match state.has_slot {
            true => format!(
                "was made anew or moved by another program (it stands at {confirmed}, this source allowed {limit})"
            ),
            false => {
                format!("stands at {confirmed}, the topic at {limit}, and what the source saved is gone")
            }
        };
        return Err(lost_slot(&name, &why));
    }
    let next = State {
        system: Some(primary.system),
        has_slot: true,
        tables: config.tables.iter().cloned().collect(),
        allowed: Some(Allowed { timeline: primary.timeline, lsn: limit.unwrap_or(confirmed).0 }),
        copy: to_copy(config, state),
    };
    if next != *state {
        keep.save(&next).await?;
        *state = next;
    }
    Ok(())
}

/// What is left to copy: new tables are added, those that are no longer named are left out.
fn to_copy(config: &Config, state: &State) -> CopyState {
    let mut copy = state.copy.clone();
    copy.retain(|table| config.tables.iter().any(|wanted| wanted == table));
    if config.snapshot != SnapshotMode::Never {
        copy.add(config.tables.iter().filter(|table| !state.tables.contains(*table)));
    }
    copy
}

pub(super) fn check_slot(name: &str, slot: &Slot, database: &str) -> Result<()> {
    if slot.plugin != "pgoutput" || slot.database != database {
        return Err(Error::refused(format!(
            "slot {name} belongs to plugin {:?} in database {:?}: drop it, or give the source another name",
            slot.plugin, slot.database
        )));
    }
    if slot.wal_status == "lost" {
        return Err(Error::new(
            ErrorKind::Lost,
            format!("slot {name} is lost: the server removed the log that it needs (max_slot_wal_keep_size)"),
        ));
    }
    Ok(())
}

/// Ends a session of an older reader of ours; never one of another program.
pub(super) async fn release_slot(
    config: &Config,
    primary: &mut Primary,
    slot: &Slot,
    epoch: u64,
) -> Result<()> {
    let Some((process, application)) = &slot.reader else { return Ok(()) };
    let former =
        application.strip_prefix(&config.application_prefix()).and_then(|rest| rest.parse::<u64>().ok());
    match former {
        Some(former) if former <= epoch => {
            primary.queries.query_with("SELECT pg_terminate_backend($1::int)", &[process]).await?;
            Err(Error::unavailable("a former reader held the slot; its session was ended"))
        }
        Some(_) => Err(Error::new(ErrorKind::Fenced, "a newer reader holds the slot")),
        None => Err(Error::unavailable(format!(
            "the slot is read by {application:?}, process {process}, which is not ours"
        ))),
    }
}

/// Starts the stream where the slot stands.
pub(crate) async fn start(config: &Config, primary: &mut Primary) -> Result<()> {
    let publication = quoted(&config.publication).replace('\'', "''");
    // Older servers cannot send what `pg_logical_emit_message` wrote.
    let messages = if primary.version >= 140_000 { ", messages 'true'" } else { "" };
    let command = format!(
        "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names '{publication}'{messages})",
        quoted(&config.slot()),
    );
    primary.stream.start_stream(&command).await.map_err(|error| match ServerError::code_of(&error) {
        // The slot vanished, or it was invalidated, after it was looked at.
        Some("42704" | "55000" | "58P01") => {
            Error::new(ErrorKind::Lost, format!("the slot cannot be read any more: {error}"))
                .with_source(error)
        }
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_says_where_each_timeline_ended() {
        let history = "1\t0/3000060\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01\n";
        assert_eq!(switch_point(history, 1), Some(Lsn(0x0300_0060)));
        assert_eq!(switch_point(history, 2), Some(Lsn(0x1_0000_00A0)));
        assert_eq!(switch_point(history, 3), None);
    }
}
