//! `firth topic`: create, browse, change, trim, adopt, list, show, delete.

use super::output::{ask, json, line, plain, table};
use super::units::Limit;
use super::{calendar, units};
use crate::client::{Client, escape, topic_path};
use crate::wire::{
    Adoption, ImportGroup, KeyMapping, Records, Start, Topic, TopicPart, TopicSpec, Topics, TrimWish,
    TrimmedReport,
};
use axum::http::Method;
use clap::{Args, Subcommand, ValueEnum};
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
        /// How many partitions; more allow more consumers at a time [default: topics.partitions of the server]
        #[arg(long)]
        partitions: Option<u32>,
        /// Remove records after this long, once every group has settled them
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        retention: Option<Duration>,
        /// Remove all but so many of the newest records of each partition, once every group has settled them
        #[arg(long, value_name = "N")]
        retention_records: Option<u64>,
        /// Remove all but so much of the newest records of each partition, once every group has settled them
        #[arg(long, value_name = "SIZE", value_parser = units::size)]
        retention_size: Option<u64>,
        /// The largest payload
        #[arg(long, value_name = "SIZE", value_parser = units::size)]
        max_payload: Option<u64>,
        /// Let retention remove what some group has not settled
        #[arg(long)]
        lossy: bool,
        /// Remove dead letters after this long
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        dead_letters: Option<Duration>,
        /// How keys find their partitions; fixed from then on
        #[arg(long, value_enum, default_value_t = MappingArg::Consistent)]
        mapping: MappingArg,
    },
    /// Look at records without consuming them
    #[command(
        after_help = "Examples:\n  firth topic browse orders --last 10\n  firth topic browse orders --partition 3 --after 1700000000000-42 --json"
    )]
    Browse {
        /// Its name
        topic: String,
        /// Which partition; all of them unless given
        #[arg(long, value_name = "P")]
        partition: Option<u32>,
        /// Go on after this record
        #[arg(long, value_name = "ID", requires = "partition", conflicts_with = "last")]
        after: Option<String>,
        /// At most this many of each partition
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
        max: u64,
        /// The newest so many of each partition
        #[arg(long, value_name = "N", conflicts_with = "max", value_parser = clap::value_parser!(u32).range(1..=500))]
        last: Option<u32>,
    },
    /// Change what is named; partitions can only become more
    #[command(
        after_help = "Examples:\n  firth topic change orders --partitions 16 --retention-size 1GiB\n  firth topic change orders --retention none"
    )]
    Change {
        /// Its name
        topic: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove the oldest records now
    #[command(
        after_help = "Examples:\n  firth topic trim orders --keep 10000\n  firth topic trim orders --older-than 7d"
    )]
    Trim {
        /// Its name
        topic: String,
        /// Keep so many of the newest records of each partition
        #[arg(long, value_name = "N", required_unless_present = "older_than", conflicts_with = "older_than")]
        keep: Option<u64>,
        /// Remove what is older than this
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        older_than: Option<Duration>,
        /// Remove also what some group has not settled
        #[arg(long)]
        lossy: bool,
    },
    /// Let a topic follow a Redis stream that another program writes with XADD
    #[command(
        after_help = "Example:\n  firth topic adopt orders --key-field customer --import-group billing --engine redis://127.0.0.1"
    )]
    Adopt {
        /// The topic to make
        topic: String,
        #[command(flatten)]
        how: AdoptArgs,
    },
    /// List all topics
    #[command(after_help = "Example:\n  firth topic list --json")]
    List,
    /// Show a topic partition by partition
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
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

impl TopicCommand {
    /// Whether it may begin a store that is not there yet.
    pub(super) fn makes_a_store(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::Adopt { .. })
    }
}

#[derive(Args)]
pub(crate) struct ChangeArgs {
    /// How many partitions
    #[arg(long)]
    partitions: Option<u32>,
    /// Remove records after this long; none: no more
    #[arg(long, value_name = "DURATION", value_parser = units::or_none(units::duration))]
    retention: Option<Limit<Duration>>,
    /// Remove all but so many of the newest records of each partition; none: no more
    #[arg(long, value_name = "N", value_parser = units::or_none(units::number))]
    retention_records: Option<Limit<u64>>,
    /// Remove all but so much of the newest records of each partition; none: no more
    #[arg(long, value_name = "SIZE", value_parser = units::or_none(units::size))]
    retention_size: Option<Limit<u64>>,
    /// The largest payload
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_payload: Option<u64>,
    /// Whether retention may remove what some group has not settled
    #[arg(long, value_name = "BOOL")]
    lossy: Option<bool>,
    /// Remove dead letters after this long; none: keep them
    #[arg(long, value_name = "DURATION", value_parser = units::or_none(units::duration))]
    dead_letters: Option<Limit<Duration>>,
}

impl ChangeArgs {
    fn spec(self) -> TopicSpec {
        TopicSpec {
            partitions: self.partitions,
            retention_ms: self.retention.map(|limit| limit.0.map(units::millis)),
            retention_records: self.retention_records.map(|limit| limit.0),
            retention_bytes: self.retention_size.map(|limit| limit.0),
            max_payload: self.max_payload.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
            lossy: self.lossy,
            dead_letters_ms: self.dead_letters.map(|limit| limit.0.map(units::millis)),
            mapping: None,
        }
    }
}

#[derive(Args)]
pub(crate) struct AdoptArgs {
    /// The key of the stream; the topic's name unless given
    #[arg(long, value_name = "KEY")]
    stream: Option<String>,
    /// The field whose value is the key of the record
    #[arg(long, value_name = "NAME")]
    key_field: Option<String>,
    /// The field whose value is the payload; a JSON object of all fields unless given
    #[arg(long, value_name = "NAME")]
    payload_field: Option<String>,
    /// Follow from now on instead of from the oldest entry
    #[arg(long)]
    newest: bool,
    /// Move the entries instead of copying them
    #[arg(long)]
    remove_entries: bool,
    /// A consumer group of the stream that goes on here, as NAME or OLD=NEW; may be given several times
    #[arg(long = "import-group", value_name = "GROUP")]
    import_groups: Vec<String>,
}

impl AdoptArgs {
    fn wish(self) -> Adoption {
        let import = |text: String| match text.split_once('=') {
            Some((from, to)) => ImportGroup { from: from.to_owned(), to: Some(to.to_owned()) },
            None => ImportGroup { from: text, to: None },
        };
        Adoption {
            stream: self.stream,
            key_field: self.key_field,
            payload_field: self.payload_field,
            start: if self.newest { Start::Newest } else { Start::Oldest },
            remove_entries: self.remove_entries,
            import_groups: self.import_groups.into_iter().map(import).collect(),
            ..Adoption::default()
        }
    }
}

pub(crate) async fn run(client: &Client, command: TopicCommand, as_json: bool) -> Result<()> {
    let topics = match command {
        TopicCommand::Create {
            topic,
            partitions,
            retention,
            retention_records,
            retention_size,
            max_payload,
            lossy,
            dead_letters,
            mapping,
        } => {
            let spec = TopicSpec {
                partitions,
                retention_ms: retention.map(|age| Some(units::millis(age))),
                retention_records: retention_records.map(Some),
                retention_bytes: retention_size.map(Some),
                max_payload: max_payload.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
                lossy: lossy.then_some(true),
                dead_letters_ms: dead_letters.map(|age| Some(units::millis(age))),
                // What is not said is no reason to find that a topic differs.
                mapping: (mapping == MappingArg::Modulo).then_some(KeyMapping::Modulo),
            };
            vec![client.send::<Topic>(Method::PUT, &topic_path(&topic), &spec).await?]
        }
        TopicCommand::Change { topic, change } => {
            vec![client.send::<Topic>(Method::PATCH, &topic_path(&topic), &change.spec()).await?]
        }
        TopicCommand::Adopt { topic, how } => {
            vec![
                client
                    .send::<Topic>(Method::POST, &format!("{}/adopt", topic_path(&topic)), &how.wish())
                    .await?,
            ]
        }
        TopicCommand::Trim { topic, keep, older_than, lossy } => {
            let wish = TrimWish { keep, older_than_ms: older_than.map(units::millis), lossy };
            let report: TrimmedReport =
                client.send(Method::POST, &format!("{}/trim", topic_path(&topic)), &wish).await?;
            let TrimmedReport { removed, held_back } = report;
            return match as_json {
                true => json(&report),
                false => line(&format!(
                    "removed {removed}; {held_back} partitions keep what some group has not settled"
                )),
            };
        }
        TopicCommand::Browse { topic, partition, after, max, last } => {
            let partitions = match partition {
                Some(partition) => partition..partition.saturating_add(1),
                None => 0..client.get::<Topic>(&topic_path(&topic)).await?.partitions,
            };
            let mut pages = Pages { client, topic: &topic, as_json, has_head: false };
            for partition in partitions {
                match last {
                    Some(last) => drop(pages.show(partition, &format!("newest=true&max={last}")).await?),
                    None => pages.walk(partition, after.clone(), max).await?,
                }
            }
            return Ok(());
        }
        TopicCommand::Show { topic } => {
            let topic: Topic = client.get(&topic_path(&topic)).await?;
            return if as_json { json(&topic) } else { show(&topic) };
        }
        TopicCommand::List => {
            let all: Topics = client.get("/v1/topics").await?;
            if as_json {
                return json(&all);
            }
            all.topics
        }
        TopicCommand::Delete { topic, yes } => {
            ask(yes, || format!("Delete topic {topic} with its records, groups and dead letters?"))?;
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

fn show(topic: &Topic) -> Result<()> {
    let row = |part: &TopicPart| {
        let id = |id: &Option<String>| id.clone().unwrap_or_else(|| "-".to_owned());
        let [records, delayed] = [part.records, part.delayed].map(units::count);
        [part.partition.to_string(), records, id(&part.trimmed), id(&part.last), delayed]
    };
    table(["PARTITION", "RECORDS", "TRIMMED UP TO", "LAST", "DELAYED"], topic.parts.iter().map(row).collect())
}

/// The most records of one page.
const PAGE: u64 = 500;

/// Records page by page, printed as they come.
struct Pages<'a> {
    client: &'a Client,
    topic: &'a str,
    as_json: bool,
    /// Whether the table has its head.
    has_head: bool,
}

impl Pages<'_> {
    /// Up to `left` records of a partition after a place.
    async fn walk(&mut self, partition: u32, mut after: Option<String>, mut left: u64) -> Result<()> {
        while left > 0 {
            let place = after.map_or(String::new(), |after| format!("&after={}", escape(&after)));
            let (shown, next) = self.show(partition, &format!("max={}{place}", left.min(PAGE))).await?;
            left = left.saturating_sub(shown);
            let Some(next) = next else { break };
            after = Some(next);
        }
        Ok(())
    }

    /// Prints one page; answers how many records it has, and where the next one begins.
    async fn show(&mut self, partition: u32, which: &str) -> Result<(u64, Option<String>)> {
        let path = format!("{}/records?partition={partition}&{which}", topic_path(self.topic));
        let page: Records = self.client.get(&path).await?;
        let shown = page.records.len() as u64;
        if self.as_json {
            page.records.iter().try_for_each(json)?;
            return Ok((shown, page.next));
        }
        let rows = page.records.into_iter().map(|record| {
            let key = record.key.as_deref().map_or("-".to_owned(), plain);
            let sent = calendar::show(record.sent_ms);
            [record.partition.to_string(), record.id.clone(), sent, key, plain(record.text())]
        });
        let rows: Vec<_> = rows.collect();
        if !rows.is_empty() || !self.has_head {
            self.has_head = true;
            table(["PARTITION", "ID", "SENT", "KEY", "PAYLOAD"], rows)?;
        }
        Ok((shown, page.next))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MappingArg {
    /// More partitions move as few keys as possible
    Consistent,
    /// The hash modulo the number of partitions
    Modulo,
}
