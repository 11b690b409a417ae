//! `firth check`: everything is read, what is damaged is named, and can be set aside.

use super::output::{ask, json, line, note, plain};
use super::restore::{Input, show};
use super::target::ApiTarget;
use super::{progress, units};
use crate::client::Client;
use crate::wire::{CheckedPartition, invalid};
use clap::Args;
use firth::backup::{
    CheckReport, DamagedPartition, PartitionName, SetAside, check_dir, check_file, set_aside,
};
use firth::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth check
  firth check firth.backup
  firth check ./firth-data
  firth check ./firth-data --set-aside orders/3";

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// A backup, or the data directory of a server that is stopped; without it the server is asked
    #[arg(value_name = "DIR|FILE")]
    what: Option<PathBuf>,
    /// Move the records of this damaged partition away up to the newest unreadable one, so that the
    /// rest serves; name each damaged one
    #[arg(long, value_name = "TOPIC/PARTITION")]
    set_aside: Vec<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(args: CheckArgs, target: &ApiTarget) -> Result<()> {
    let named = args.set_aside.iter().map(|name| partition(name)).collect::<Result<Vec<_>>>()?;
    let Some(what) = args.what else {
        if !named.is_empty() {
            return Err(invalid("--set-aside needs the data directory of a server that is stopped"));
        }
        return target.with_existing(async |client| online(client, target.json).await).await;
    };
    if what.is_dir() {
        return tokio::task::block_in_place(|| match named.is_empty() {
            true => of_dir(&what, target.json),
            false => aside(&what, &named, args.yes, target.json),
        });
    }
    if !named.is_empty() {
        return Err(invalid(format!("{} is no data directory: nothing can be set aside", what.display())));
    }
    tokio::task::block_in_place(|| of_file(&what, target.json))
}

fn partition(name: &str) -> Result<PartitionName> {
    let named = name.rsplit_once('/').and_then(|(topic, index)| Some((topic, index.parse::<u32>().ok()?)));
    let (topic, index) =
        named.ok_or_else(|| invalid(format!("{name:?} is no partition: write TOPIC/PARTITION")))?;
    Ok(PartitionName::new(firth::TopicName::new(topic)?, index))
}

/// What is wrong, for the exit code.
fn damaged(count: usize, advice: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{count} partitions are damaged: {advice}"))
}

async fn online(client: &Client, as_json: bool) -> Result<()> {
    let mut lines = client.lines("/v1/check").await?;
    let (mut count, mut records, mut wrong, mut left) = (0_u64, 0, 0, 0);
    let bar = progress::steps("checked", 0);
    while let Some(checked) = lines.next::<CheckedPartition>().await? {
        (count, records, left) = (count + 1, records + checked.records, checked.left);
        bar.set_length(count + left);
        bar.set_position(count);
        wrong += usize::from(!checked.findings.is_empty());
        if as_json {
            json(&checked)?;
        } else if !checked.findings.is_empty() {
            let CheckedPartition { topic, partition, findings, .. } = checked;
            bar.suspend(|| line(&format!("{topic}/{partition}  {}", plain(&findings.join("; ")))))?;
        }
    }
    bar.finish_and_clear();
    if left > 0 {
        return Err(Error::new(ErrorKind::Unavailable, "the server ended the check before all was read"));
    }
    if wrong > 0 {
        return Err(damaged(
            wrong,
            "stop the server, and let `firth check DIR` count what is readable in its data directory",
        ));
    }
    if as_json {
        return Ok(());
    }
    line(&format!("all {} records of {} partitions can be read", units::count(records), units::count(count)))
}

fn of_dir(dir: &Path, as_json: bool) -> Result<()> {
    let bar = progress::records();
    let report = check_dir(dir, &mut |read, total| {
        if bar.length() != Some(total) {
            progress::of_records(&bar, total);
        }
        bar.set_position(read);
    });
    bar.finish_and_clear();
    told(&report?, as_json, &|report| {
        let dir = dir.display();
        let all: Vec<String> = lost(report).map(|damage| format!("--set-aside {}", damage.at)).collect();
        match all.is_empty() {
            true => "restore a backup with `firth restore`".to_owned(),
            false => format!(
                "restore a backup with `firth restore`, or let the rest serve: firth check {dir} {}",
                all.join(" ")
            ),
        }
    })
}

fn of_file(file: &Path, as_json: bool) -> Result<()> {
    let (input, bar) = Input::open(file)?;
    let report = check_file(input, &mut |at| show(&bar, at));
    bar.finish_and_clear();
    told(&report?, as_json, &|_| "use another backup".to_owned())
}

fn lost(report: &CheckReport) -> impl Iterator<Item = &DamagedPartition> {
    report.damaged.iter().filter(|damage| damage.unreadable > 0)
}

fn told(report: &CheckReport, as_json: bool, advice: &dyn Fn(&CheckReport) -> String) -> Result<()> {
    if as_json {
        json(&shown(report))?;
    } else {
        report.damaged.iter().try_for_each(|damage| line(&describe(damage)))?;
        report.other.iter().try_for_each(|what| line(&format!("state  {}", plain(what))))?;
    }
    if report.is_sound() {
        if as_json {
            return Ok(());
        }
        return line(&format!(
            "all {} records of {} partitions can be read, and {} entries of state",
            units::count(report.records),
            units::count(report.partitions),
            units::count(report.entries)
        ));
    }
    if report.damaged.is_empty() {
        return Err(Error::new(ErrorKind::Corrupt, format!("the state is damaged: {}", advice(report))));
    }
    Err(damaged(report.damaged.len(), &advice(report)))
}

fn describe(damage: &DamagedPartition) -> String {
    let DamagedPartition { at, readable, unreadable, last_unreadable, behind, findings, .. } = damage;
    let mut text = format!("{at}  {} records can be read", units::count(*readable));
    if *unreadable > 0 {
        text.push_str(&format!(
            ", {} cannot, the newest of these is {last_unreadable}; {} lie behind it",
            units::count(*unreadable),
            units::count(*behind)
        ));
    }
    findings.iter().for_each(|finding| text.push_str(&format!("; {}", plain(finding))));
    text
}

fn of_damage(damage: &DamagedPartition) -> Value {
    let DamagedPartition { at, readable, unreadable, last_unreadable, behind, findings, .. } = damage;
    json!({
        "topic": at.topic.as_str(), "partition": at.index, "readable": readable, "unreadable": unreadable,
        "last_unreadable": last_unreadable, "behind": behind, "findings": findings,
    })
}

fn shown(report: &CheckReport) -> Value {
    json!({
        "partitions": report.partitions, "groups": report.groups, "records": report.records,
        "bytes": report.bytes, "entries": report.entries, "other": report.other,
        "damaged": report.damaged.iter().map(of_damage).collect::<Vec<_>>(),
    })
}

fn aside(dir: &Path, named: &[PartitionName], is_sure: bool, as_json: bool) -> Result<()> {
    let names: Vec<String> = named.iter().map(ToString::to_string).collect();
    ask(is_sure, || {
        format!(
            "Move the records of {} up to the newest unreadable one into a file? Groups go on behind it.",
            names.join(", ")
        )
    })?;
    let bar = progress::records();
    let done = set_aside(dir, named, &mut |read, total| {
        if bar.length() != Some(total) {
            progress::of_records(&bar, total);
        }
        bar.set_position(read);
    });
    bar.finish_and_clear();
    let SetAside { partitions, moved, file, old_store, .. } = done?;
    if as_json {
        return json(&json!({
            "partitions": partitions.iter().map(of_damage).collect::<Vec<_>>(), "moved": moved,
            "file": file, "old_store": old_store,
        }));
    }
    for damage in &partitions {
        line(&describe(damage))?;
    }
    line(&format!(
        "{} readable records went into {}: `firth restore` makes a directory of it",
        units::count(moved),
        plain(&file.display().to_string())
    ))?;
    note(&format!(
        "the store as it was is in {}: remove it when you do not need it any more",
        plain(&old_store.display().to_string())
    ));
    Ok(())
}
