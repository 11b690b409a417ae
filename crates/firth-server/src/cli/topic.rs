//! `firth topic`: create, list, show, delete.

use super::output::{json, line, table};
use super::units;
use crate::client::{Client, topic_path};
use crate::wire::{Topic, TopicSpec, Topics};
use axum::http::Method;
use clap::Subcommand;
use firth::Result;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth topic create orders --partitions 8 --retention 7d
  firth topic list
  firth topic delete orders";

#[derive(Subcommand)]
pub(crate) enum TopicCommand {
    /// Create a topic, or confirm that it is there as wanted
    #[command(
        after_help = "Example:\n  firth topic create orders --partitions 8 --retention 7d --max-payload 64KiB"
    )]
    Create {
        /// Its name
        topic: String,
        /// How many partitions; more allow more consumers at a time
        #[arg(long, default_value_t = 4)]
        partitions: u32,
        /// Remove records after this long, once every group has settled them
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        retention: Option<Duration>,
        /// The largest payload
        #[arg(long, value_name = "SIZE", value_parser = units::size)]
        max_payload: Option<u64>,
        /// Let retention remove what some group has not settled
        #[arg(long)]
        lossy: bool,
        /// Remove dead letters after this long
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        dead_letters: Option<Duration>,
    },
    /// List all topics
    #[command(after_help = "Example:\n  firth topic list --json")]
    List,
    /// Show one topic
    #[command(after_help = "Example:\n  firth topic show orders")]
    Show {
        /// Its name
        topic: String,
    },
    /// Delete a topic with its records, groups and dead letters
    #[command(after_help = "Example:\n  firth topic delete orders")]
    Delete {
        /// Its name
        topic: String,
    },
}

pub(crate) async fn run(client: &Client, command: TopicCommand, as_json: bool) -> Result<()> {
    let topics = match command {
        TopicCommand::Create { topic, partitions, retention, max_payload, lossy, dead_letters } => {
            let spec = TopicSpec {
                partitions: Some(partitions),
                retention_ms: retention.map(units::millis),
                max_payload: max_payload.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
                lossy: lossy.then_some(true),
                dead_letters_ms: dead_letters.map(units::millis),
                ..TopicSpec::default()
            };
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
        let numbers = [topic.records, topic.appended, topic.delayed].map(units::count);
        let [records, total, delayed] = numbers;
        [topic.name, topic.partitions.to_string(), records, total, delayed]
    };
    table(["TOPIC", "PARTITIONS", "RECORDS", "TOTAL", "DELAYED"], topics.into_iter().map(row).collect())
}
