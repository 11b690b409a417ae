//! `firth topic`, `firth group`, `firth dead`: look and repair.

use super::output::{json, line, plain, table};
use crate::client::{Client, escape, group_path, topic_path};
use crate::wire::{Count, Group, Groups, Letters, Pick, Topic, TopicSpec, Topics};
use axum::http::Method;
use clap::{Args, Subcommand};
use firth::Result;

#[derive(Subcommand)]
pub(crate) enum TopicCommand {
    /// Create a topic
    Create {
        topic: String,
        /// How many partitions; more allow more consumers at a time
        #[arg(long, default_value_t = 4)]
        partitions: u32,
    },
    /// List all topics
    List,
    /// Show one topic
    Show { topic: String },
    /// Delete a topic with its records, groups and dead letters
    Delete { topic: String },
}

pub(crate) async fn topic(client: &Client, command: TopicCommand, as_json: bool) -> Result<()> {
    let topics = match command {
        TopicCommand::Create { topic, partitions } => {
            let spec = TopicSpec { partitions: Some(partitions), ..TopicSpec::default() };
            vec![client.send::<Topic>(Method::PUT, &topic_path(&topic), &spec).await?]
        }
        TopicCommand::Show { topic } => vec![client.get(&topic_path(&topic)).await?],
        TopicCommand::List => {
            let all: Topics = client.get("/v1/topics").await?;
            if as_json {
                return json(&all);
            }
            all.topics
        }
        TopicCommand::Delete { topic } => {
            client.delete(&topic_path(&topic)).await?;
            return if as_json { Ok(()) } else { line(&format!("deleted {topic}")) };
        }
    };
    if as_json {
        return topics.iter().try_for_each(json);
    }
    let row = |topic: Topic| {
        [topic.name, topic.partitions.to_string(), topic.records.to_string(), topic.delayed.to_string()]
    };
    table(["TOPIC", "PARTITIONS", "RECORDS", "DELAYED"], topics.into_iter().map(row).collect())
}

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// List the groups of a topic with their lag
    List { topic: String },
    /// Show a group partition by partition
    Show { topic: String, group: String },
}

pub(crate) async fn group(client: &Client, command: GroupCommand, as_json: bool) -> Result<()> {
    match command {
        GroupCommand::List { topic } => {
            let all: Groups = client.get(&format!("{}/groups", topic_path(&topic))).await?;
            if as_json {
                return json(&all);
            }
            let row = |group: Group| {
                let numbers = [group.lag, group.due, group.dead].map(|number| number.to_string());
                let [lag, due, dead] = numbers;
                [group.group, lag, due, dead, group.members.to_string()]
            };
            table(["GROUP", "LAG", "DUE", "DEAD", "MEMBERS"], all.groups.into_iter().map(row).collect())
        }
        GroupCommand::Show { topic, group } => {
            let group: Group = client.get(&group_path(&topic, &group)).await?;
            if as_json {
                return json(&group);
            }
            line(&format!(
                "group {} of {}: lag {}, {} members",
                group.group, group.topic, group.lag, group.members
            ))?;
            let rows = group.partitions.into_iter().map(|part| {
                let [waiting, due, dead] =
                    [part.waiting, part.due, part.dead].map(|number| number.to_string());
                [part.partition.to_string(), waiting, due, dead, part.owner.unwrap_or_else(|| "-".to_owned())]
            });
            table(["PARTITION", "WAITING", "DUE", "DEAD", "OWNER"], rows.collect())
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters
    List { topic: String },
    /// Count dead letters
    Count { topic: String },
    /// Hand dead letters to their group again
    Replay {
        #[command(flatten)]
        which: Which,
        /// Append them for every group, not just the one that gave them up
        #[arg(long)]
        everyone: bool,
    },
    /// Delete dead letters for good
    Delete {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Args)]
pub(crate) struct Which {
    topic: String,
    /// The letters, as `dead list` shows them
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// All of them
    #[arg(long)]
    all: bool,
    /// With --all: only those of this group
    #[arg(long, requires = "all")]
    group: Option<String>,
}

pub(crate) async fn dead(client: &Client, command: DeadCommand, as_json: bool) -> Result<()> {
    let done = match command {
        DeadCommand::List { topic } => return list_dead(client, &topic, as_json).await,
        DeadCommand::Count { topic } => {
            client.get::<Count>(&format!("{}/dead/count", topic_path(&topic))).await?
        }
        DeadCommand::Replay { which, everyone } => pick(client, "replay", which, everyone).await?,
        DeadCommand::Delete { which } => pick(client, "delete", which, false).await?,
    };
    if as_json { json(&done) } else { line(&done.count.to_string()) }
}

async fn pick(client: &Client, what: &str, which: Which, everyone: bool) -> Result<Count> {
    let Which { topic, ids, all, group } = which;
    let pick = Pick { ids, all, group, reason: None, everyone };
    client.send(Method::POST, &format!("{}/dead/{what}", topic_path(&topic)), &pick).await
}

/// Page after page; people get one table per page.
async fn list_dead(client: &Client, topic: &str, as_json: bool) -> Result<()> {
    let mut after = String::new();
    loop {
        let page: Letters = client.get(&format!("{}/dead?max=500{after}", topic_path(topic))).await?;
        if as_json {
            page.letters.iter().try_for_each(json)?;
        } else {
            let rows = page.letters.into_iter().map(|letter| {
                let age = format!("{} s", letter.age_ms / 1000);
                [letter.id, letter.attempts.to_string(), age, plain(&letter.reason)]
            });
            table(["ID", "ATTEMPTS", "AGE", "REASON"], rows.collect())?;
        }
        match page.next {
            Some(next) => after = format!("&after={}", escape(&next)),
            None => return Ok(()),
        }
    }
}
