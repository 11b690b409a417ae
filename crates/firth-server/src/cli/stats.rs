//! `firth stats`: what a server sampled, as figures of now and as JSON with every sample.

use super::output::{json, line, table};
use super::units;
use crate::client::Client;
use crate::wire::{GroupStats, StatsShown, TopicStats};
use clap::{Args, ValueEnum};
use firth::Result;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth stats
  firth stats --by lag --max 50
  firth stats --topic orders --window 24h --json";

#[derive(Args)]
pub(crate) struct StatsArgs {
    /// How much of the past; --json prints its samples
    #[arg(long, value_enum, default_value = "15m")]
    window: WindowArg,
    /// Only this topic and its groups, with samples of each
    #[arg(long)]
    topic: Option<String>,
    /// What groups are sorted by, the largest first
    #[arg(long, value_enum, default_value = "busy")]
    by: SortArg,
    /// At most this many topics and groups
    #[arg(long, value_name = "N", default_value_t = 20)]
    max: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum WindowArg {
    /// A second each
    #[value(name = "15m")]
    QuarterHour,
    /// A minute each
    #[value(name = "24h")]
    Day,
}

#[derive(Clone, Copy, ValueEnum)]
enum SortArg {
    /// Settled records per second
    Busy,
    /// Records that are not settled
    Lag,
    /// Dead letters
    Dead,
}

pub(crate) async fn run(client: &Client, args: StatsArgs, as_json: bool) -> Result<()> {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let window = name(args.window.to_possible_value());
    let sort = name(args.by.to_possible_value());
    let topic = args.topic.map(|topic| format!("&topic={}", crate::client::escape(&topic)));
    let topic = topic.unwrap_or_default();
    let path = format!("/v1/stats?window={window}&sort={sort}&max={}{topic}", args.max);
    let stats: StatsShown = client.get(&path).await?;
    if as_json {
        return json(&stats);
    }
    let newest = |column: &[Option<f64>]| column.iter().rev().find_map(|value| *value);
    if let Some(total) = &stats.total {
        let rate = |column: &[Option<f64>]| newest(column).unwrap_or_default();
        line(&format!(
            "in {:.1}/s, out {:.1}/s, lag {}, dead {}",
            rate(&total.produced),
            rate(&total.settled),
            units::count(stats.lag),
            units::count(stats.dead)
        ))?;
        line("")?;
    }
    let topic_row = |topic: TopicStats| {
        let [records, delayed] = [topic.records, topic.delayed].map(units::count);
        [
            topic.topic,
            topic.partitions.to_string(),
            records,
            delayed,
            format!("{:.1}", topic.produced_per_second),
        ]
    };
    table(
        ["TOPIC", "PARTITIONS", "RECORDS", "DELAYED", "IN/S"],
        stats.topics.into_iter().map(topic_row).collect(),
    )?;
    line("")?;
    let group_row = |group: GroupStats| {
        let [lag, due, dead] = [group.lag, group.due, group.dead].map(units::count);
        let oldest = group.oldest_ms.map_or("-".to_owned(), units::age);
        let members = group.members.to_string();
        let rate = format!("{:.1}", group.settled_per_second);
        [group.topic, group.group, lag, oldest, due, dead, rate, members]
    };
    table(
        ["TOPIC", "GROUP", "LAG", "OLDEST", "DUE", "DEAD", "OUT/S", "MEMBERS"],
        stats.groups.into_iter().map(group_row).collect(),
    )
}
