//! `firth topic`: create, browse, change, trim, adopt, list, show, delete.

use super::output::{ask, json, line, plain, table};
use super::units::LimitChange;
use super::{calendar, delayed, units};
use crate::client::{Client, escape, topic_path};
use crate::wire::{
    Adoption, DelayedWhere, ImportGroup, KeyMapping, Records, Start, Topic, TopicPart, TopicSpec, Topics,
    TrimRequest, TrimmedReport,
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
        #[command(flatten)]
        settings: SettingArgs,
        /// Let retention remove what some group has not settled
        #[arg(long)]
        lossy: bool,
        /// How keys find their partitions; fixed from then on
        #[arg(long, value_enum, default_value_t = MappingArg::Consistent)]
        mapping: MappingArg,
    },
    /// Look at records without consuming them
    #[command(
        after_help = "Examples:\n  firth topic browse orders --last 10\n  firth topic browse orders --partition 3 --after 1700000000000-42 --json\n  firth topic browse orders --filter 'doc.total > 100 && key.startsWith(\"guest-\")'"
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
        /// This many of the newest of each partition
        #[arg(long, value_name = "N", conflicts_with = "max", value_parser = clap::value_parser!(u32).range(1..=500))]
        last: Option<u32>,
        /// Only records with exactly this key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Only records with this text in key, payload or a header
        #[arg(long, value_name = "TEXT")]
        contains: Option<String>,
        /// Only records that a filter in CEL accepts: over doc (a JSON payload), key, op and
        /// collection
        #[arg(long, value_name = "CEL")]
        filter: Option<String>,
    },
    /// Show messages that wait for their time, the next one first
    #[command(after_help = "Example:\n  firth topic delayed orders --max 20")]
    Delayed {
        /// Its name
        topic: String,
        /// Which partition; all of them unless given
        #[arg(long, value_name = "P")]
        partition: Option<u32>,
        /// At most this many of each partition
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=500))]
        max: u64,
    },
    /// Cancel delayed messages: no group ever gets them
    #[command(after_help = "Example:\n  firth topic cancel orders 0/1700000000000-42")]
    Cancel {
        /// The topic
        topic: String,
        /// The messages, as `topic delayed` shows them
        #[arg(required = true, value_name = "ID", num_args = 1..=500)]
        ids: Vec<String>,
    },
    /// Deliver delayed messages now
    #[command(after_help = "Example:\n  firth topic deliver orders 0/1700000000000-42")]
    Deliver {
        /// The topic
        topic: String,
        /// The messages, as `topic delayed` shows them
        #[arg(required = true, value_name = "ID", num_args = 1..=500)]
        ids: Vec<String>,
    },
    /// Change what is named; partitions can only become more
    #[command(
        after_help = "Examples:\n  firth topic change orders --partitions 16 --retention-size 1GiB\n  firth topic change orders --retention none"
    )]
    Change {
        /// Its name
        topic: String,
        #[command(flatten)]
        settings: SettingArgs,
        /// Let retention remove what some group has not settled, or no longer
        #[arg(long, value_name = "BOOL")]
        lossy: Option<bool>,
    },
    /// Remove the oldest records now
    #[command(
        after_help = "Examples:\n  firth topic trim orders --keep 10000\n  firth topic trim orders --older-than 7d"
    )]
    Trim {
        /// Its name
        topic: String,
        /// Keep this many of the newest records of each partition
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

/// What a topic can be made with, and changed to.
#[derive(Args)]
pub(crate) struct SettingArgs {
    /// How many partitions; more allow more consumers at a time. A new topic has topics.partitions
    /// of the server unless given
    #[arg(long, value_name = "N")]
    partitions: Option<u32>,
    /// Remove records after this long, once every group has settled them; none: no limit
    #[arg(long, value_name = "DURATION", value_parser = units::or_none(units::duration))]
    retention: Option<LimitChange<Duration>>,
    /// Keep this many of the newest records of each partition, and what some group has not settled;
    /// none: no limit
    #[arg(long, value_name = "N", value_parser = units::or_none(units::number))]
    retention_records: Option<LimitChange<u64>>,
    /// Keep this much of the newest records of each partition, and what some group has not settled;
    /// none: no limit
    #[arg(long, value_name = "SIZE", value_parser = units::or_none(units::size))]
    retention_size: Option<LimitChange<u64>>,
    /// The largest payload
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_payload: Option<u64>,
    /// Remove dead letters after this long; none: keep them
    #[arg(long, value_name = "DURATION", value_parser = units::or_none(units::duration))]
    dead_letters: Option<LimitChange<Duration>>,
}

impl SettingArgs {
    fn spec(self, lossy: Option<bool>) -> TopicSpec {
        TopicSpec {
            partitions: self.partitions,
            retention_ms: self.retention.map(|limit| limit.0.map(units::millis)),
            retention_records: self.retention_records.map(|limit| limit.0),
            retention_bytes: self.retention_size.map(|limit| limit.0),
            max_payload: self.max_payload.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
            lossy,
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
    /// A consumer group of the stream that goes on here, as NAME or OLD=NEW; may be given several
    /// times
    #[arg(long = "import-group", value_name = "GROUP")]
    import_groups: Vec<String>,
}

impl AdoptArgs {
    fn request(self) -> Adoption {
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
        TopicCommand::Create { topic, settings, lossy, mapping } => {
            let spec = TopicSpec {
                // What is not said is no reason to find that a topic differs.
                mapping: (mapping == MappingArg::Modulo).then_some(KeyMapping::Modulo),
                ..settings.spec(lossy.then_some(true))
            };
            vec![client.send::<Topic>(Method::PUT, &topic_path(&topic), &spec).await?]
        }
        TopicCommand::Change { topic, settings, lossy } => {
            vec![client.send::<Topic>(Method::PATCH, &topic_path(&topic), &settings.spec(lossy)).await?]
        }
        TopicCommand::Adopt { topic, how } => {
            vec![
                client
                    .send::<Topic>(Method::POST, &format!("{}/adopt", topic_path(&topic)), &how.request())
                    .await?,
            ]
        }
        TopicCommand::Trim { topic, keep, older_than, lossy } => {
            let request = TrimRequest { keep, older_than_ms: older_than.map(units::millis), lossy };
            return trim(client, &topic, &request, as_json).await;
        }
        TopicCommand::Browse { topic, partition, after, max, last, key, contains, filter } => {
            let given = |name: &str, value: Option<String>| {
                value.map_or(String::new(), |value| format!("&{name}={}", escape(&value)))
            };
            let which = given("key", key) + &given("contains", contains) + &given("filter", filter);
            let mut pages = RecordPages { client, topic: &topic, which, as_json, has_head: false };
            return pages.browse(partition, after, max, last).await;
        }
        TopicCommand::Delayed { topic, partition, max } => {
            return delayed::list(client, &topic, partition, max, as_json).await;
        }
        TopicCommand::Cancel { topic, ids } => {
            return delayed::change(client, &topic, ids, DelayedWhere::Cancelled, as_json).await;
        }
        TopicCommand::Deliver { topic, ids } => {
            return delayed::change(client, &topic, ids, DelayedWhere::Delivered, as_json).await;
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

async fn trim(client: &Client, topic: &str, request: &TrimRequest, as_json: bool) -> Result<()> {
    let path = format!("{}/trim", topic_path(topic));
    let report: TrimmedReport = client.send(Method::POST, &path, request).await?;
    if as_json {
        return json(&report);
    }
    let TrimmedReport { removed, held_back } = report;
    line(&format!("removed {removed}; {held_back} partitions keep what some group has not settled"))
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
struct RecordPages<'a> {
    client: &'a Client,
    topic: &'a str,
    /// Which records, as the end of a query.
    which: String,
    as_json: bool,
    /// Whether the table has its head.
    has_head: bool,
}

impl RecordPages<'_> {
    /// One partition or all of them: the newest records, or up to `max` of each after a place.
    async fn browse(
        &mut self,
        partition: Option<u32>,
        after: Option<String>,
        max: u64,
        last: Option<u32>,
    ) -> Result<()> {
        let partitions = match partition {
            Some(partition) => partition..partition.saturating_add(1),
            None => 0..self.client.get::<Topic>(&topic_path(self.topic)).await?.partitions,
        };
        for partition in partitions {
            match last {
                Some(last) => drop(self.show(partition, &format!("newest=true&max={last}")).await?),
                None => self.walk(partition, after.clone(), max).await?,
            }
        }
        Ok(())
    }

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
        let path = format!("{}/records?partition={partition}&{which}{}", topic_path(self.topic), self.which);
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
        // A search may look at many records before the first that passes.
        if !rows.is_empty() || (page.next.is_none() && !self.has_head) {
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
