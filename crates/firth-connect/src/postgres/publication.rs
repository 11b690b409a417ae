//! The publication of a source: made, completed, and checked. A publication must not break the
//! statements of the application.

use super::catalog::{self, Publication, Table, quoted, quoted_table};
use super::config::Config;
use super::connection::Connection;
use super::prepare::Primary;
use super::server_error::ServerError;
use crate::error::{Error, ErrorKind, Result};
use crate::state::State;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the tables, and sees to it that they are published.
pub(crate) async fn see_to(config: &Config, primary: &mut Primary, state: &State) -> Result<()> {
    config.parts.check_version(primary.version)?;
    let queries = &mut primary.queries;
    check_tables(config, &catalog::tables(queries, &config.tables).await?)?;
    check_columns(config, queries).await?;
    let published = catalog::published(queries, &config.publication).await?;
    let Some(published) = published else {
        let sql = create(config);
        if state.has_slot || !config.own_publication {
            return Err(Error::refused(format!(
                "publication {} is missing; make it again by: {sql}",
                config.publication
            )));
        }
        return run(config, queries, &sql).await;
    };
    complete(config, queries, state, &published).await?;
    if config.parts.is_empty() && state.parts.is_none() {
        return Ok(());
    }
    let is_as_before = state.parts == config.parts.name();
    if state.parts.is_none() || is_as_before {
        let Some(table) = differing(config, queries).await? else { return Ok(()) };
        if is_as_before {
            return Err(Error::refused(format!(
                "another program changed which columns or rows of {table} publication {} sends; run: {}",
                config.publication,
                set_tables(config)
            )));
        }
    }
    run(config, queries, &set_tables(config)).await
}

/// Adds tables that are not published yet.
async fn complete(
    config: &Config,
    queries: &mut Connection,
    state: &State,
    published: &Publication,
) -> Result<()> {
    let missing: Vec<_> = config.tables.iter().filter(|table| !published.tables.contains(*table)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let sql = add_tables(config, &missing);
    // A table that was published before was removed by an operator.
    match missing.iter().find(|table| state.tables.contains(**table)) {
        Some(table) => Err(Error::refused(format!(
            "table {table} was removed from publication {}: take it out of `tables`, or run: {sql}",
            config.publication
        ))),
        None if !config.own_publication => {
            Err(Error::refused(format!("publication {} lacks tables; run: {sql}", config.publication)))
        }
        None => run(config, queries, &sql).await,
    }
}

/// A table of which the publication sends other columns than it should, or has a condition where
/// it should not, or none where it should. Conditions themselves are not compared.
pub(super) async fn differing(config: &Config, queries: &mut Connection) -> Result<Option<String>> {
    let published = catalog::published_parts(queries, &config.publication).await?;
    let differs = |table: &&String| {
        let part = config.parts.of(table);
        let wanted = part.and_then(|part| part.columns.as_ref());
        let wanted: Option<BTreeSet<_>> = wanted.map(|columns| columns.iter().collect());
        let has_filter = part.is_some_and(|part| part.filter.is_some());
        published.get(*table).is_none_or(|(columns, is_filtered)| {
            let columns: Option<BTreeSet<_>> = columns.as_ref().map(|columns| columns.iter().collect());
            columns != wanted || *is_filtered != has_filter
        })
    };
    Ok(config.tables.iter().find(differs).cloned())
}

/// The statement that makes the publication.
pub(super) fn create(config: &Config) -> String {
    let name = quoted(&config.publication);
    let list = list(config, config.tables.iter());
    format!("CREATE PUBLICATION {name} FOR TABLE {list} WITH (publish_via_partition_root = true)")
}

/// The statement that adds tables to it.
pub(super) fn add_tables(config: &Config, tables: &[&String]) -> String {
    let list = list(config, tables.iter().copied());
    format!("ALTER PUBLICATION {} ADD TABLE {list}", quoted(&config.publication))
}

/// The statement that makes it send exactly what the configuration says.
pub(super) fn set_tables(config: &Config) -> String {
    let list = list(config, config.tables.iter());
    format!("ALTER PUBLICATION {} SET TABLE {list}", quoted(&config.publication))
}

fn list<'a>(config: &Config, tables: impl Iterator<Item = &'a String>) -> String {
    tables.map(|table| config.parts.sql(table)).collect::<Vec<_>>().join(", ")
}

/// Runs a statement about the publication, unless it would break updates and deletes of the
/// application: the server itself says so, before it is committed.
async fn run(config: &Config, queries: &mut Connection, sql: &str) -> Result<()> {
    let refused = |error: Error| match error.kind() {
        ErrorKind::Unauthorized => Error::new(
            ErrorKind::Unauthorized,
            format!("the role may not change the publication; let the tables' owner run: {sql}"),
        )
        .with_source(error),
        _ => error,
    };
    queries.query("BEGIN").await?;
    let changed = async {
        queries.query_with(sql, &[]).await.map_err(refused)?;
        for table in config.tables.iter().filter(|table| config.parts.of(table).is_some()) {
            for leaf in catalog::leaves(queries, table).await? {
                let probe = format!("EXPLAIN DELETE FROM ONLY {} WHERE false", quoted_table(&leaf));
                queries.query_with(&probe, &[]).await.map_err(|error| breaks(table, error))?;
            }
        }
        Ok(())
    };
    let changed = changed.await;
    let end = if changed.is_ok() { "COMMIT" } else { "ROLLBACK" };
    queries.query(end).await?;
    changed
}

/// What the server says if updates and deletes of a table would fail.
fn breaks(table: &str, error: Error) -> Error {
    match ServerError::code_of(&error) {
        Some("42P10") => Error::refused(format!(
            "publishing these rows and columns of {table} would break its UPDATEs and DELETEs: where.{table} may \
             name columns of the replica identity only; change it, or run ALTER TABLE {} REPLICA IDENTITY FULL",
            quoted_table(table)
        ))
        .with_source(error),
        _ => error,
    }
}

/// A list of columns must have those of the replica identity.
async fn check_columns(config: &Config, queries: &mut Connection) -> Result<()> {
    for name in &config.tables {
        let Some(only) = config.parts.of(name).and_then(|part| part.columns.as_ref()) else { continue };
        let Some(table) = catalog::described(queries, name).await? else { continue };
        lacks_identity(name, only, &table.into_relation()?)?;
    }
    Ok(())
}

/// Refuses a list of columns that would break updates and deletes.
pub(super) fn lacks_identity(name: &str, only: &[String], table: &super::decode::Relation) -> Result<()> {
    if let Some(stranger) =
        only.iter().find(|wanted| !table.columns.iter().any(|column| column.name == **wanted))
    {
        return Err(Error::refused(format!("columns.{name}.only: table {name} has no column {stranger}")));
    }
    let lacking = table.columns.iter().find(|column| column.is_key && !only.contains(&column.name));
    match lacking {
        None => Ok(()),
        Some(column) => Err(Error::refused(format!(
            "columns.{name}.only lacks {}, which is in the replica identity: publishing the others alone would \
             break UPDATEs and DELETEs of {name}",
            column.name
        ))),
    }
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
