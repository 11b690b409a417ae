//! The replication slot of a source: found, made, made anew after a loss, and started.

use super::catalog::{self, Slot, quoted};
use super::config::{Config, Origin, SnapshotMode};
use super::position::{Lsn, Position};
use super::prepare::{self, Primary};
use super::server_error::ServerError;
use crate::copy_state::CopyState;
use crate::error::{Error, ErrorKind, Result};
use crate::state::{Allowed, Keep, Resync, State};
use std::time::Duration;

/// The oldest version that keeps slots on standbys.
const FAILOVER: u32 = 170_000;
/// How often, and after which pause, a slot is tried whose reader is about to end.
const RELEASES: u32 = 50;
const RELEASE_PAUSE: Duration = Duration::from_millis(100);

/// Finds the slot, or makes it the first time. A slot that is gone is never made again silently:
/// only if the state says that the history before is over, and then it replaces one that is there.
pub(crate) async fn find(
    config: &Config,
    epoch: u64,
    primary: &mut Primary,
    state: &State,
    marks: &[Option<Position>],
) -> Result<()> {
    let name = config.slot();
    check_version(config, primary.version)?;
    if let Some(slot) = catalog::slot(&mut primary.queries, &name).await? {
        check_owner(&name, &slot, &config.target.database)?;
        if !state.renew {
            check_log(&name, &slot)?;
            if let Some(why) = config.wal.verdict(slot.retained) {
                drop_slot(config, primary, &slot, epoch).await?;
                return Err(Error::new(ErrorKind::Lost, format!("{why}: slot {name} was dropped")));
            }
            release(config, primary, &slot, epoch).await?;
            return keep_on_standbys(config, primary).await;
        }
        drop_slot(config, primary, &slot, epoch).await?;
    } else if !state.renew && (state.has_slot || marks.iter().any(Option::is_some)) {
        return Err(lost(&name, "is gone"));
    }
    primary.stream.query(&create_command(config, primary.version)).await.map(drop)
}

/// Refuses what a version of the server cannot do with slots.
pub(super) fn check_version(config: &Config, version: u32) -> Result<()> {
    if !config.failover || version >= FAILOVER {
        return Ok(());
    }
    Err(Error::refused(format!(
        "failover is true, which needs PostgreSQL 17; the server is {}: leave it out, and let pg_failover_slots \
         or Patroni keep the slot on standbys",
        version / 10_000
    )))
}

/// The command that makes the slot, in the words of a version.
fn create_command(config: &Config, version: u32) -> String {
    let options = match version {
        FAILOVER.. if config.failover => "(SNAPSHOT 'nothing', FAILOVER true)",
        150_000.. => "(SNAPSHOT 'nothing')",
        _ => "NOEXPORT_SNAPSHOT",
    };
    format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", quoted(&config.slot()))
}

/// Makes a slot that was there before what the configuration says by now.
async fn keep_on_standbys(config: &Config, primary: &mut Primary) -> Result<()> {
    if !config.failover {
        return Ok(());
    }
    let name = config.slot();
    let sql = "SELECT failover FROM pg_replication_slots WHERE slot_name = $1";
    let rows = primary.queries.query_with(sql, &[&name]).await?;
    if rows.first().and_then(|row| row.first()?.as_deref()) == Some("t") {
        return Ok(());
    }
    let command = format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", quoted(&name));
    primary.stream.query(&command).await.map(drop)
}

/// Drops the slot of a source. A session of an older reader that holds it is ended first.
pub(super) async fn drop_slot(config: &Config, primary: &mut Primary, slot: &Slot, epoch: u64) -> Result<()> {
    release(config, primary, slot, epoch).await?;
    primary.queries.query_with("SELECT pg_drop_replication_slot($1)", &[&config.slot()]).await.map(drop)
}

fn lost(name: &str, why: &str) -> Error {
    let text = format!(
        "slot {name} {why}: changes after the last one in the topic may be gone; set on_lost: resync to copy \
         all tables anew, or compare the tables with the topic, drop the slot if there is one, and give the \
         source another name, under which it starts from now"
    );
    Error::new(ErrorKind::Lost, text)
}

/// Lets a slot go that is not needed any more. One of another program stays.
pub(super) async fn let_go(config: &Config, epoch: u64) -> Result<()> {
    let mut primary = prepare::primary(config, epoch).await?;
    for tries in 1.. {
        let found = catalog::slot(&mut primary.queries, &config.slot()).await?;
        let owned = found.filter(|slot| check_owner("", slot, &config.target.database).is_ok());
        let Some(slot) = owned else { break };
        match drop_slot(config, &mut primary, &slot, epoch).await {
            // Our own session that read it is about to end.
            Err(error) if error.kind() == ErrorKind::Unavailable && tries < RELEASES => {
                tokio::time::sleep(RELEASE_PAUSE).await;
            }
            dropped => return dropped,
        }
    }
    Ok(())
}

/// Checks that the slot whose stream was just started is the one that was read before, and
/// remembers it. No other slot can take its place while it streams.
pub(crate) async fn own<K: Keep>(
    config: &Config,
    primary: &mut Primary,
    keep: &K,
    state: &mut State,
    (limit, marks): (Option<Lsn>, &[Option<Position>]),
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
        return Err(lost(&name, &why));
    }
    if let Some(mark) = marks.iter().flatten().max().filter(|_| state.renew)
        && (mark.timeline, mark.commit.0) >= (primary.timeline, Resync::commit(confirmed.0))
    {
        return Err(Error::refused(format!(
            "the topic has {mark} of this timeline, but the server's log ends at {confirmed}: it was restored \
             to an earlier time, so give the source another name"
        )));
    }
    let resync = state.resync.clone().map(|resync| match state.renew {
        true => Resync { at: Some(confirmed.0), ..resync },
        false => resync,
    });
    let next = State {
        system: Some(primary.system),
        has_slot: true,
        tables: config.tables.iter().cloned().collect(),
        allowed: Some(Allowed { timeline: primary.timeline, lsn: limit.unwrap_or(confirmed).0 }),
        copy: to_copy(config, state),
        parts: config.parts.name(),
        renew: false,
        done: false,
        resync,
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

/// Checks that a slot is one of ours.
pub(super) fn check_owner(name: &str, slot: &Slot, database: &str) -> Result<()> {
    if slot.plugin == "pgoutput" && slot.database == database {
        return Ok(());
    }
    Err(Error::refused(format!(
        "slot {name} belongs to plugin {:?} in database {:?}: drop it, or give the source another name",
        slot.plugin, slot.database
    )))
}

/// Checks that the server has the log that the slot needs.
pub(super) fn check_log(name: &str, slot: &Slot) -> Result<()> {
    if slot.wal_status == "lost" {
        return Err(Error::new(
            ErrorKind::Lost,
            format!("slot {name} is lost: the server removed the log that it needs (max_slot_wal_keep_size)"),
        ));
    }
    Ok(())
}

/// Ends a session of an older reader of ours; never one of another program.
async fn release(config: &Config, primary: &mut Primary, slot: &Slot, epoch: u64) -> Result<()> {
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

/// The command that starts the stream, in the words of a version.
fn start_command(config: &Config, version: u32) -> String {
    let publication = quoted(&config.publication).replace('\'', "''");
    // Older servers cannot send what `pg_logical_emit_message` wrote.
    let messages = if version >= 140_000 { ", messages 'true'" } else { "" };
    // Those of older servers are left out when they are read.
    let origin = if version >= 160_000 && config.origin == Origin::None { ", origin 'none'" } else { "" };
    format!(
        "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names '{publication}'{messages}{origin})",
        quoted(&config.slot()),
    )
}

/// Starts the stream where the slot stands.
pub(crate) async fn start(config: &Config, primary: &mut Primary) -> Result<()> {
    let command = start_command(config, primary.version);
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
    use serde_json::json;

    pub(super) fn config(change: serde_json::Value) -> Config {
        let mut options = json!({
            "url": "postgres://firth@127.0.0.1/shop", "topic": "changes", "tables": ["orders"],
            "tenant": { "constant": "acme" },
        });
        options.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Config::new("shop", &serde_json::from_value(options).unwrap(), None).unwrap()
    }

    #[test]
    fn a_stream_is_started_in_the_words_of_the_server() {
        let start = "START_REPLICATION SLOT \"firth_shop\" LOGICAL 0/0 (proto_version '1', publication_names '\"firth_shop\"'";
        let (all, local) = (config(json!({})), config(json!({ "origin": "none" })));
        assert_eq!(start_command(&all, 130_010), format!("{start})"));
        assert_eq!(start_command(&all, 170_000), format!("{start}, messages 'true')"));
        assert_eq!(start_command(&local, 150_018), format!("{start}, messages 'true')"));
        assert_eq!(start_command(&local, 160_000), format!("{start}, messages 'true', origin 'none')"));
    }

    #[test]
    fn a_slot_is_made_in_the_words_of_the_server() {
        let make = "CREATE_REPLICATION_SLOT \"firth_shop\" LOGICAL pgoutput";
        let (usual, kept) = (config(json!({})), config(json!({ "failover": true })));
        assert_eq!(create_command(&usual, 140_000), format!("{make} NOEXPORT_SNAPSHOT"));
        assert_eq!(create_command(&usual, 170_002), format!("{make} (SNAPSHOT 'nothing')"));
        assert_eq!(create_command(&kept, 170_002), format!("{make} (SNAPSHOT 'nothing', FAILOVER true)"));
        assert!(check_version(&usual, 130_000).is_ok() && check_version(&kept, 170_000).is_ok());
        let error = check_version(&kept, 160_004).unwrap_err().to_string();
        assert!(error.contains("needs PostgreSQL 17; the server is 16"), "{error}");
    }
}
