//! `firth group` and `firth pending`: who reads how far, and what is tried again.

use super::output::{ask, json, line, plain, table};
use super::policy::PolicyArgs;
use super::{calendar, units};
use crate::client::{Client, group_path, topic_path};
use crate::wire::{
    ClientShown, Group, Groups, InFlightList, InFlightShown, Member, Members, NewGroup, PendingList,
    ResetGroup, ResetPreview, Start, Waiting, invalid,
};
use axum::http::Method;
use clap::{Args, Subcommand, ValueEnum};
use firth::Result;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth group list orders
  firth group show orders billing
  firth group reset orders billing --to 1h";

pub(crate) const PENDING_EXAMPLES: &str = "\
Examples:
  firth pending orders billing
  firth pending orders billing --sort attempt --descending --min-attempt 3";

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// List the groups of a topic with their exact lag
    #[command(after_help = "Example:\n  firth group list orders")]
    List {
        /// The topic
        topic: String,
    },
    /// Show a group partition by partition
    #[command(after_help = "Example:\n  firth group show orders billing")]
    Show {
        /// The topic
        topic: String,
        /// The group
        group: String,
    },
    /// Make a group before anybody consumes; one that exists stays as it is
    #[command(after_help = "Example:\n  firth group create orders audit --from newest")]
    Create {
        /// The topic
        topic: String,
        /// The group
        group: String,
        /// Where it starts: oldest, newest, or an age such as 1h
        #[arg(long, value_name = "WHERE", default_value = "oldest")]
        from: String,
    },
    /// Move a group; its consumers go on from there
    #[command(
        after_help = "Examples:\n  firth group reset orders billing --to oldest\n  firth group reset orders billing --to 1h --drop-due\n  firth group reset orders billing --to 2026-11-17T06:30:00Z"
    )]
    Reset {
        /// The topic
        topic: String,
        /// The group
        group: String,
        /// oldest, newest, an age such as 1h, a time such as 2026-11-17T06:30:00Z, or @MILLISECONDS
        #[arg(long, value_name = "WHERE")]
        to: String,
        /// Forget the records that wait for another attempt
        #[arg(long)]
        drop_due: bool,
        /// Only say how many records it would repeat and skip
        #[arg(long)]
        preview: bool,
    },
    /// Show deliveries of all members that are not settled, the oldest first
    #[command(after_help = "Example:\n  firth group in-flight orders billing")]
    InFlight {
        /// The topic
        topic: String,
        /// The group
        group: String,
    },
    /// Show the members of a group, with what they own and their heartbeats
    #[command(after_help = "Example:\n  firth group members orders billing")]
    Members {
        /// The topic
        topic: String,
        /// The group
        group: String,
    },
    /// Take a partition away from its owner; the member that should have it takes it next
    #[command(after_help = "Example:\n  firth group release orders billing 3")]
    Release {
        /// The topic
        topic: String,
        /// The group
        group: String,
        /// The partition
        partition: u32,
    },
    /// Show how failed records are tried again, or change it; for consumers over HTTP and on the
    /// command line
    #[command(
        after_help = "Examples:\n  firth group policy orders billing\n  firth group policy orders billing --max-attempts 10 --backoff 500ms --max-backoff 5m\n  firth group policy orders billing --reset"
    )]
    Policy(PolicyArgs),
    /// Delete a group with its dead letters; refused while it has consumers
    #[command(after_help = "Example:\n  firth group delete orders audit")]
    Delete {
        /// The topic
        topic: String,
        /// The group
        group: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) async fn run(client: &Client, command: GroupCommand, as_json: bool) -> Result<()> {
    match command {
        GroupCommand::List { topic } => {
            let all: Groups = client.get(&format!("{}/groups", topic_path(&topic))).await?;
            if as_json {
                return json(&all);
            }
            let row = |group: Group| {
                let [lag, due, dead] = [group.lag, group.due, group.dead].map(units::count);
                let oldest = group.oldest_ms.map_or("-".to_owned(), units::age);
                [group.group, lag, oldest, due, dead, group.members.to_string()]
            };
            table(
                ["GROUP", "LAG", "OLDEST", "DUE", "DEAD", "MEMBERS"],
                all.groups.into_iter().map(row).collect(),
            )
        }
        GroupCommand::Show { topic, group } => {
            show(client.get(&group_path(&topic, &group)).await?, as_json)?;
            if as_json {
                return Ok(());
            }
            let all: Members = client.get(&format!("{}/members", group_path(&topic, &group))).await?;
            clients(&all)
        }
        GroupCommand::Create { topic, group, from } => {
            show(create(client, &topic, &group, &from).await?, as_json)
        }
        GroupCommand::InFlight { topic, group } => {
            in_flight(client.get(&format!("{}/in_flight", group_path(&topic, &group))).await?, as_json)
        }
        GroupCommand::Reset { topic, group, to, drop_due, preview: true } => {
            let path = format!("{}/reset/preview", group_path(&topic, &group));
            preview(client.send(Method::POST, &path, &reset(&to, drop_due)?).await?, as_json)
        }
        GroupCommand::Reset { topic, group, to, drop_due, preview: false } => {
            let request = reset(&to, drop_due)?;
            let path = format!("{}/reset", group_path(&topic, &group));
            show(client.send(Method::POST, &path, &request).await?, as_json)
        }
        GroupCommand::Members { topic, group } => {
            let all: Members = client.get(&format!("{}/members", group_path(&topic, &group))).await?;
            members(all, as_json)
        }
        GroupCommand::Release { topic, group, partition } => {
            let path = format!("{}/partitions/{partition}/release", group_path(&topic, &group));
            client.send_only(Method::POST, &path, &serde_json::json!({})).await?;
            if as_json { Ok(()) } else { line(&format!("released partition {partition} of {group}")) }
        }
        GroupCommand::Policy(args) => super::policy::run(client, args, as_json).await,
        GroupCommand::Delete { topic, group, yes } => {
            ask(yes, || format!("Delete group {group} of {topic} with its dead letters?"))?;
            client.delete(&group_path(&topic, &group)).await?;
            if as_json { Ok(()) } else { line(&format!("deleted {group} of {topic}")) }
        }
    }
}

fn in_flight(all: InFlightList, as_json: bool) -> Result<()> {
    if as_json {
        return json(&all);
    }
    let row = |one: InFlightShown| {
        let left = one.remaining_ms.map_or("-".to_owned(), units::age);
        let client = one.client.or(one.address).unwrap_or_else(|| "-".to_owned());
        let member = one.member.unwrap_or_else(|| "-".to_owned());
        let age = units::age(one.age_ms);
        let [member, client, kind] = [member, client, one.kind].map(|text| plain(&text));
        [one.partition.to_string(), one.id, one.attempt.to_string(), age, left, member, client, kind]
    };
    let head = ["PARTITION", "ID", "ATTEMPT", "AGE", "LEFT", "MEMBER", "CLIENT", "KIND"];
    table(head, all.deliveries.into_iter().map(row).collect())?;
    match all.silent.is_empty() {
        true => Ok(()),
        false => line(&format!("these members did not answer: {}", plain(&all.silent.join(", ")))),
    }
}

fn preview(found: ResetPreview, as_json: bool) -> Result<()> {
    if as_json {
        return json(&found);
    }
    let [repeats, skips, dropped] = [found.repeats, found.skips, found.dropped].map(units::count);
    line(&format!(
        "repeats {repeats} records, skips {skips}, forgets {dropped} that wait for another attempt"
    ))
}

fn members(all: Members, as_json: bool) -> Result<()> {
    if as_json {
        return json(&all);
    }
    let row = |member: &Member| {
        let owns: Vec<String> = member.owns.iter().map(ToString::to_string).collect();
        let name = plain(&member.name);
        let kind = plain(&member.kind);
        let pid = member.pid.map_or_else(String::new, |pid| format!(" {pid}"));
        let host = member.host.as_deref().map_or("-".to_owned(), |host| format!("{}{pid}", plain(host)));
        [name, kind, host, owns.join(" "), units::age(member.remaining_ms), units::count(member.beats)]
    };
    table(["MEMBER", "KIND", "HOST", "OWNS", "LEFT", "BEATS"], all.members.iter().map(row).collect())?;
    clients(&all)
}

/// Who consumes through the server, if anyone does.
fn clients(all: &Members) -> Result<()> {
    let row = |client: &ClientShown| {
        let or_dash = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), plain);
        let kind = client.kind.clone();
        let unsettled = units::count(client.unsettled as u64);
        [or_dash(&client.name), or_dash(&client.address), kind, unsettled, units::age(client.idle_ms)]
    };
    let rows: Vec<_> = all.members.iter().flat_map(|member| &member.clients).map(row).collect();
    match rows.is_empty() {
        true => Ok(()),
        false => table(["CLIENT", "ADDRESS", "KIND", "UNSETTLED", "IDLE"], rows),
    }
}

/// Makes a group that starts there.
pub(crate) async fn create(client: &Client, topic: &str, group: &str, from: &str) -> Result<Group> {
    client.send(Method::PUT, &group_path(topic, group), &start(from)?).await
}

/// A beginning as people write it.
pub(super) fn start(text: &str) -> Result<NewGroup> {
    match edge(text) {
        Some(start) => Ok(NewGroup { start, age_ms: None }),
        None => Ok(NewGroup {
            age_ms: Some(age(text, "oldest, newest, or an age such as 1h")?),
            ..NewGroup::default()
        }),
    }
}

/// A place to go on as people write it.
fn reset(text: &str, drop_due: bool) -> Result<ResetGroup> {
    let request = ResetGroup { drop_due, ..ResetGroup::default() };
    if let Some(to) = edge(text) {
        return Ok(ResetGroup { to, ..request });
    }
    let unix = text.strip_prefix('@').and_then(|time| time.parse().ok());
    if let Some(time) = unix.or_else(|| calendar::parse(text)) {
        return Ok(ResetGroup { time_ms: Some(time), ..request });
    }
    let age = age(
        text,
        "oldest, newest, an age such as 1h, a time such as 2026-11-17T06:30:00Z, \
         or one in milliseconds as @1700000000000",
    )?;
    Ok(ResetGroup { age_ms: Some(age), ..request })
}

fn edge(text: &str) -> Option<Start> {
    match text {
        "oldest" => Some(Start::Oldest),
        "newest" => Some(Start::Newest),
        _ => None,
    }
}

fn age(text: &str, how: &str) -> Result<u64> {
    let age = units::duration(text)
        .map_err(|_| invalid(format!("{text:?} is no place in a topic: write {how}")))?;
    Ok(units::millis(age))
}

fn show(group: Group, as_json: bool) -> Result<()> {
    if as_json {
        return json(&group);
    }
    line(&format!(
        "group {} of {}: lag {}, {} due, {} dead, {} members",
        group.group,
        group.topic,
        units::count(group.lag),
        group.due,
        group.dead,
        group.members
    ))?;
    let rows = group.partitions.into_iter().map(|part| {
        let [waiting, due, dead] = [part.waiting, part.due, part.dead].map(units::count);
        [part.partition.to_string(), waiting, due, dead, part.owner.unwrap_or_else(|| "-".to_owned())]
    });
    table(["PARTITION", "WAITING", "DUE", "DEAD", "OWNER"], rows.collect())
}

#[derive(Clone, Copy, ValueEnum)]
enum PendingOrder {
    Id,
    Attempt,
    Due,
    Age,
    Idle,
}

#[derive(Args)]
pub(crate) struct PendingArgs {
    /// The topic
    topic: String,
    /// The group
    group: String,
    /// What comes first
    #[arg(long, value_enum, default_value = "due")]
    sort: PendingOrder,
    /// The last first
    #[arg(long)]
    descending: bool,
    /// Only those whose next attempt is at least this one
    #[arg(long, value_name = "N")]
    min_attempt: Option<u32>,
    /// Only those that were sent at least this long ago
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    min_age: Option<Duration>,
    /// Only those that their consumer has had for at least this long
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    min_idle: Option<Duration>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    max: u64,
    /// Pass over this many first
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
}

pub(crate) async fn pending(client: &Client, args: PendingArgs, as_json: bool) -> Result<()> {
    let PendingArgs { topic, group, sort, descending, min_attempt, min_age, min_idle, max, skip } = args;
    let sort = match sort {
        PendingOrder::Id => "id",
        PendingOrder::Attempt => "attempt",
        PendingOrder::Due => "due",
        PendingOrder::Age => "age",
        PendingOrder::Idle => "idle",
    };
    let least = min_attempt.map_or(String::new(), |least| format!("&min_attempt={least}"));
    let age = min_age.map_or(String::new(), |age| format!("&min_age_ms={}", units::millis(age)));
    let idle = min_idle.map_or(String::new(), |idle| format!("&min_idle_ms={}", units::millis(idle)));
    let query = format!("sort={sort}&descending={descending}&skip={skip}&max={max}{least}{age}{idle}");
    let page: PendingList = client.get(&format!("{}/pending?{query}", group_path(&topic, &group))).await?;
    if as_json {
        return json(&page);
    }
    let shown = page.records.len();
    let total = page.total;
    let row = |record: Waiting| {
        let running =
            || record.idle_ms.map_or("running".to_owned(), |ms| format!("running for {}", units::age(ms)));
        let due = record.due_ms.map_or_else(running, |ms| format!("in {}", units::age(ms)));
        let [attempt, crashes] = [record.attempt, record.crashes].map(|number| number.to_string());
        [
            record.partition.to_string(),
            record.id,
            attempt,
            crashes,
            units::age(record.age_ms),
            due,
            plain(&record.reason),
        ]
    };
    let rows = page.records.into_iter().map(row).collect();
    table(["PARTITION", "ID", "ATTEMPT", "CRASHES", "AGE", "DUE", "REASON"], rows)?;
    if shown < total { line(&format!("{shown} of {total}: see --skip and --max")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        assert_eq!(reset("newest", false).unwrap().to, Start::Newest);
        assert_eq!(reset("1h", true).unwrap().age_ms, Some(3_600_000));
        assert_eq!(reset("@17", false).unwrap().time_ms, Some(17));
        assert!(reset("yesterday", false).unwrap_err().context().contains("@17"));
        assert_eq!(start("newest").unwrap().start, Start::Newest);
        assert!(start("@17").unwrap_err().context().contains("oldest"));
    }
}
