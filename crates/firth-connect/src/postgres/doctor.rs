//! [`examine`]: looks whether a database is fit as a source, and names the statements that are
//! missing. It changes nothing.

use super::catalog::{self, quoted, quoted_table};
use super::config::{Config, SnapshotMode};
use super::connection::{Connection, Purpose};
use super::shape::Shape;
use super::target::Host;
use super::{publication, slot};
use crate::doctor::Finding;
use crate::doctor::Level::{Error, Note, Warning};
use crate::error::{ErrorKind, Result};
use crate::source::OnLost;

/// What the doctor calls itself among the server's sessions.
const APPLICATION: &str = "firth doctor";

/// Looks at each host; nothing found means that all is well.
pub async fn examine(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut primaries = 0;
    for host in &config.target.hosts {
        match look(config, host).await {
            Ok(Some(of_host)) => {
                primaries += 1;
                found.extend(of_host);
            }
            Ok(None) => {
                found.push(Finding::new(Note, format!("{host} is a replica, and is passed over"), []));
            }
            Err(error) => found.push(Finding::new(Error, format!("{host}: {error}"), [])),
        }
    }
    if primaries == 0 && !found.iter().any(|finding| finding.level == Error) {
        found.push(Finding::new(Error, "no host is a primary: only primaries are read", []));
    }
    found.sort_by_key(|finding| finding.level);
    found
}

/// One host; none if it is a replica.
async fn look(config: &Config, host: &Host) -> Result<Option<Vec<Finding>>> {
    let mut server = Connection::open(&config.target, host, Purpose::Query, APPLICATION).await?;
    let (mut found, is_replica) = settings(config, &mut server).await?;
    if is_replica {
        return Ok(None);
    }
    found.extend(role(config, host, &mut server).await?);
    let tables = catalog::tables(&mut server, &config.tables).await?;
    for name in &config.tables {
        match tables.get(name) {
            Some(_) => found.extend(table(config, &mut server, name).await?),
            None => found.push(Finding::new(Error, format!("there is no table {name}"), [])),
        }
    }
    if config.tables.iter().all(|name| tables.contains_key(name)) {
        found.extend(look_at_publication(config, &mut server).await?);
    }
    found.extend(look_at_slot(config, &mut server).await?);
    Ok(Some(found))
}

/// The server's settings, and whether it is a replica.
async fn settings(config: &Config, server: &mut Connection) -> Result<(Vec<Finding>, bool)> {
    let sql = "SELECT current_setting('wal_level'), current_setting('max_slot_wal_keep_size'),
                 current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
                 current_setting('max_replication_slots')::int + 4, current_setting('server_version_num')::int,
                 pg_is_in_recovery(), EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)";
    let row = one(server, sql, &[&config.slot()]).await?;
    let text = |place: usize| row.get(place).cloned().unwrap_or_default();
    let mut found = Vec::new();
    if text(4).parse().unwrap_or(0) < 130_000 {
        found.push(Finding::new(
            Error,
            "the server is older than PostgreSQL 13, the oldest that is read",
            [],
        ));
    }
    let set = |name: &str, value: &str| format!("ALTER SYSTEM SET {name} = '{value}'");
    if text(0) != "logical" {
        let problem = format!("wal_level is {}; restart PostgreSQL after the change", text(0));
        found.push(Finding::new(Error, problem, [set("wal_level", "logical")]));
    }
    if text(1) == "-1" {
        let problem =
            "max_slot_wal_keep_size is unlimited: a source that stands still fills the database's disk";
        let sql = [set("max_slot_wal_keep_size", "10GB"), "SELECT pg_reload_conf()".to_owned()];
        found.push(Finding::new(Warning, problem, sql));
    }
    if text(2).parse().unwrap_or(0) < 1 && text(6) != "t" {
        let problem = "all replication slots are in use; restart PostgreSQL after the change";
        found.push(Finding::new(Error, problem, [set("max_replication_slots", &text(3))]));
    }
    Ok((found, text(5) == "t"))
}

/// Whether the role may replicate.
async fn role(config: &Config, host: &Host, server: &mut Connection) -> Result<Vec<Finding>> {
    let sql = "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user";
    if one(server, sql, &[]).await?.first().map(String::as_str) != Some("t") {
        let sql = format!("ALTER ROLE {} REPLICATION", quoted(&config.target.user));
        return Ok(vec![Finding::new(Error, "the role may not read the change stream", [sql])]);
    }
    match Connection::open(&config.target, host, Purpose::Replication, APPLICATION).await {
        Ok(_) => Ok(Vec::new()),
        Err(error) => {
            Ok(vec![Finding::new(Error, format!("a session for the change stream fails: {error}"), [])])
        }
    }
}

/// The replica identity of a table, and whether its rows may be read.
async fn table(config: &Config, server: &mut Connection, name: &str) -> Result<Vec<Finding>> {
    let Some(described) = catalog::described(server, name).await? else { return Ok(Vec::new()) };
    let (schema, primary) = (described.schema.clone(), described.primary.clone());
    let relation = described.into_relation()?;
    let mut found = Vec::new();
    let is_told = relation.columns.iter().any(|column| column.is_key);
    let in_full = relation.identity == super::decode::Identity::Full;
    let full = format!("ALTER TABLE {} REPLICA IDENTITY FULL", quoted_table(name));
    if let Some(only) = config.parts.of(name).and_then(|part| part.columns.as_ref())
        && let Err(error) = publication::lacks_identity(name, only, &relation)
    {
        found.push(Finding::new(Error, error.to_string(), []));
    }
    if !is_told {
        let problem = format!(
            "table {name} has no replica identity: publishing it would break its UPDATEs and DELETEs"
        );
        found.push(Finding::new(Error, problem, [full]));
    } else if let Err(error) = Shape::new(&config.mapping, &relation, Some(&primary)) {
        let helps = error.kind() == ErrorKind::Refused && error.to_string().contains("replica identity");
        found.push(Finding::new(Error, error.to_string(), Some(full).filter(|_| helps)));
    } else if !in_full && has_large(server, relation.id).await? {
        let problem = format!("updates of {name} that leave a value beyond 2 kB alone lack it (`missing`)");
        found.push(Finding::new(Note, problem, [full]));
    }
    if config.snapshot == SnapshotMode::Never {
        return Ok(found);
    }
    let sql = "SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT')
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::oid";
    let may = one(server, sql, &[&relation.id.to_string()]).await?;
    let role = quoted(&config.target.user);
    let mut grants = Vec::new();
    if may.first().map(String::as_str) != Some("t") {
        grants.push(format!("GRANT USAGE ON SCHEMA {} TO {role}", quoted(&schema)));
    }
    if may.get(1).map(String::as_str) != Some("t") {
        grants.push(format!("GRANT SELECT ON {} TO {role}", quoted_table(name)));
    }
    if !grants.is_empty() {
        found.push(Finding::new(Error, format!("the role may not copy the rows of {name}"), grants));
    }
    Ok(found)
}

/// Whether a table has columns whose values may lie outside of its rows.
async fn has_large(server: &mut Connection, relation: u32) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = $1::oid AND attnum > 0
                 AND NOT attisdropped AND attstorage IN ('e', 'x') AND attlen = -1)";
    Ok(one(server, sql, &[&relation.to_string()]).await?.first().map(String::as_str) == Some("t"))
}

/// The publication, or the right to make it.
async fn look_at_publication(config: &Config, server: &mut Connection) -> Result<Vec<Finding>> {
    let name = quoted(&config.publication);
    let version = one(server, "SELECT current_setting('server_version_num')", &[]).await?;
    let version = version.first().and_then(|version| version.parse().ok()).unwrap_or_default();
    let fit = config.parts.check_version(version).and_then(|()| slot::check_version(config, version));
    if let Err(error) = fit {
        return Ok(vec![Finding::new(Error, error.to_string(), [])]);
    }
    let Some(published) = catalog::published(server, &config.publication).await? else {
        let problem = match (config.own_publication, may_publish(config, server).await?) {
            (true, true) => return Ok(Vec::new()),
            (true, false) => "the role may not make the publication; let the tables' owner do it",
            (false, _) => "the publication is missing",
        };
        return Ok(vec![Finding::new(Error, problem, [publication::create(config)])]);
    };
    let mut found = Vec::new();
    let missing: Vec<_> = config.tables.iter().filter(|table| !published.tables.contains(*table)).collect();
    if !missing.is_empty() {
        let sql = publication::add_tables(config, &missing);
        found.push(Finding::new(Error, "the publication lacks tables", [sql]));
    } else if !config.parts.is_empty()
        && let Some(table) = publication::differing(config, server).await?
    {
        let problem =
            format!("the publication sends other columns or rows of {table} than the configuration says");
        found.push(Finding::new(Warning, problem, [publication::set_tables(config)]));
    }
    if !published.changes {
        let sql = format!("ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')");
        found.push(Finding::new(Error, "the publication leaves out inserts, updates or deletes", [sql]));
    } else if !published.truncates {
        let sql = format!("ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')");
        found.push(Finding::new(Warning, "the publication leaves out TRUNCATE, so no event tells it", [sql]));
    }
    if published.all_tables {
        let problem = "the publication is FOR ALL TABLES: tables without a key cannot be updated any more";
        found.push(Finding::new(Warning, problem, []));
    }
    Ok(found)
}

/// Whether the role may make a publication of all tables.
async fn may_publish(config: &Config, server: &mut Connection) -> Result<bool> {
    let sql = "SELECT has_database_privilege(current_database(), 'CREATE') AND bool_and(pg_has_role(c.relowner, 'USAGE'))
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname || '.' || c.relname = ANY (string_to_array($1, E'\\x1f'))";
    let tables = config.tables.join("\u{1f}");
    Ok(one(server, sql, &[&tables]).await?.first().map(String::as_str) == Some("t"))
}

/// The slot, if it was made already.
async fn look_at_slot(config: &Config, server: &mut Connection) -> Result<Vec<Finding>> {
    let name = config.slot();
    let Some(found) = catalog::slot(server, &name).await? else { return Ok(Vec::new()) };
    if let Err(error) = slot::check_owner(&name, &found, &config.target.database) {
        return Ok(vec![Finding::new(Error, error.to_string(), [])]);
    }
    if let Err(error) = slot::check_log(&name, &found) {
        return Ok(vec![match config.policy.on_lost {
            OnLost::Stop => Finding::new(Error, error.to_string(), []),
            OnLost::Resync => {
                Finding::new(Warning, format!("{error}; the source copies all tables anew"), [])
            }
        }]);
    }
    if found.wal_status == "unreserved" {
        let problem = format!("slot {name} loses its log soon: {} bytes are kept for it", found.retained);
        return Ok(vec![Finding::new(Warning, problem, [])]);
    }
    Ok(Vec::new())
}

/// The first row of an answer; empty texts stand for nulls.
async fn one(server: &mut Connection, sql: &str, values: &[&str]) -> Result<Vec<String>> {
    let rows = server.query_with(sql, values).await?;
    Ok(rows.into_iter().next().unwrap_or_default().into_iter().map(Option::unwrap_or_default).collect())
}
