//! How sources are told to people.

use crate::cli::output::{line, table};
use crate::cli::units;
use crate::wire::{Examined, SnapshotShown, SourceShown};
use firth::Result;
use firth_connect::Progress;

pub(super) fn list(sources: &[SourceShown]) -> Result<()> {
    if sources.is_empty() {
        return line("no sources: no server's configuration has a section `connect:`");
    }
    let head = ["SOURCE", "KIND", "TOPIC", "STATE", "READER", "CHANGES", "STORED", "LAG"];
    table(head, sources.iter().map(row).collect())?;
    let reasons = sources.iter().filter_map(|source| Some((source, source.reason.as_ref()?)));
    for (source, reason) in reasons {
        line(&format!("{}: {reason}", source.name))?;
    }
    Ok(())
}

fn row(source: &SourceShown) -> [String; 8] {
    [
        source.name.clone(),
        source.kind.clone(),
        source.topic.clone(),
        source.state.clone(),
        source.reader.clone().unwrap_or_else(|| "-".to_owned()),
        units::count(source.changes),
        units::count(source.appended),
        source.lag_ms.map_or_else(|| "-".to_owned(), |lag| format!("{lag} ms")),
    ]
}

/// The source on one line.
pub(super) fn brief(source: &SourceShown) -> String {
    let reason = source.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{} is {}{reason}", source.name, source.state)
}

/// Whether a second look tells something that a line should say.
pub(super) fn says_more(before: &SourceShown, now: &SourceShown) -> bool {
    let done = |source: &SourceShown| source.snapshots.iter().filter(|copy| copy.done).count();
    before.state != now.state || before.reader != now.reader || done(before) != done(now)
}

/// The source in all figures.
pub(super) fn whole(source: &SourceShown) -> Result<()> {
    line(&brief(source))?;
    let now = Progress::now_ms();
    let ago = |ms: u64| format!("{} ago", units::age(now.saturating_sub(ms)));
    let bytes = |bytes: u64| format!("{} bytes", units::count(bytes));
    let by = source.by_operation.iter().map(|(name, count)| format!("{name} {}", units::count(*count)));
    let by: Vec<String> = by.collect();
    let errors = source.errors.iter().map(|(kind, count)| format!("{kind} {count}"));
    let errors: Vec<String> = errors.collect();
    let counted = |count: u64, more: &[String]| match more.is_empty() {
        true => units::count(count),
        false => format!("{} ({})", units::count(count), more.join(", ")),
    };
    let rows = [
        ("kind", Some(source.kind.clone())),
        ("topic", Some(source.topic.clone())),
        ("reader", source.reader.clone()),
        ("told", source.told_ms.map(ago)),
        ("since", source.since_ms.map(ago)),
        ("changes", Some(counted(source.changes, &by))),
        ("stored", Some(units::count(source.appended))),
        ("lack values", Some(units::count(source.with_missing)).filter(|_| source.with_missing > 0)),
        ("began anew", Some(counted(source.reconnects, &errors))),
        ("last commit", source.last_committed_ms.map(ago)),
        ("lag", source.lag_ms.map(|lag| format!("{lag} ms"))),
        ("buffered", Some(bytes(source.buffer_bytes))),
        ("was full", Some(units::count(source.full)).filter(|_| source.full > 0)),
        ("confirmed", source.confirmed.clone()),
        ("told database", source.confirmed_ms.map(ago)),
        ("behind", source.behind_bytes.map(bytes)),
        ("kept log", source.slot_bytes.map(bytes)),
        ("may keep", source.slot_limit_bytes.map(bytes)),
        ("warning", source.warning.clone()),
        ("waiting", source.behind_changes.map(units::count)),
        ("lossy", source.lossy.then(|| format!("yes, gaps: {}", units::count(source.gaps)))),
        ("dead letters", Some(units::count(source.dead)).filter(|_| source.dead > 0)),
        ("resyncs", Some(units::count(source.resyncs)).filter(|_| source.resyncs > 0)),
        ("last resync", source.resynced_ms.map(ago)),
        ("its reason", source.resync_reason.clone()),
    ];
    for (name, value) in rows {
        if let Some(value) = value {
            line(&format!("  {name:<14}{value}"))?;
        }
    }
    source.snapshots.iter().try_for_each(copy)?;
    for wanted in &source.wanted_snapshots {
        let table = wanted.table.as_deref().unwrap_or("all tables");
        let rows = wanted.condition.as_ref().map(|sql| format!(" where {sql}")).unwrap_or_default();
        line(&format!("  asked for     {table}{rows} (number {})", wanted.id))?;
    }
    Ok(())
}

/// What was found: text as comments, so that the whole can be given to `psql`.
pub(super) fn examined(source: &str, examined: &Examined) -> Result<()> {
    if examined.findings.is_empty() {
        return line(&format!("-- {source}: all is well"));
    }
    for finding in &examined.findings {
        line(&format!("-- {source}: {}: {}", finding.level, finding.text))?;
        // What is only to be known is no advice.
        let prefix = if finding.level == "note" { "--   " } else { "" };
        finding.sql.iter().try_for_each(|sql| line(&format!("{prefix}{sql};")))?;
    }
    Ok(())
}

fn copy(copy: &SnapshotShown) -> Result<()> {
    let of = copy.estimate.filter(|_| !copy.done).map(|of| format!(" of about {}", units::count(of)));
    let state = if copy.done { "copied" } else { "copies" };
    line(&format!("  {state:<14}{}: {} rows{}", copy.table, units::count(copy.rows), of.unwrap_or_default()))
}
