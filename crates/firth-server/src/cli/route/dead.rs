//! `firth route dead`: the dead letters of the router's group, and of the groups by which it feeds
//! parked gateways.

use crate::cli::dead::{self, LetterFilter, WhichLetters};
use crate::cli::output::{json, line};
use crate::client::{Client, topic_path};
use crate::wire::{Count, Groups, RoutingStatus};
use clap::Subcommand;
use firth::Result;
use firth_router::node::is_routers;

pub(super) const EXAMPLES: &str = "\
Examples:
  firth route dead
  firth route dead retry --all
  firth route dead delete router/0/1700000000000-42";

#[derive(Subcommand)]
pub(crate) enum RouteDeadCommand {
    /// List what no attempt could deliver, with each gateway's reason
    #[command(after_help = "Example:\n  firth route dead list --reason edge-1")]
    List {
        /// Only those whose reason contains this
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// At most this many
        #[arg(long, value_name = "N")]
        max: Option<u64>,
    },
    /// Deliver them again; gateways that have them drop them
    #[command(
        after_help = "Examples:\n  firth route dead retry --all\n  firth route dead retry router/0/1700000000000-42"
    )]
    Retry {
        /// The letters, as the list shows them
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// Delete them for good
    #[command(after_help = "Example:\n  firth route dead delete --all")]
    Delete {
        /// The letters, as the list shows them
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// All of them
        #[arg(long)]
        all: bool,
    },
}

pub(super) async fn run(
    client: &Client,
    command: Option<RouteDeadCommand>,
    router: &RoutingStatus,
    as_json: bool,
) -> Result<()> {
    let (what, ids, all) = match command.unwrap_or(RouteDeadCommand::List { reason: None, max: None }) {
        RouteDeadCommand::List { reason, max } => {
            let filter = |group| LetterFilter {
                group: Some(group),
                reason: reason.clone(),
                ..LetterFilter::default()
            };
            let filters: Vec<_> = groups(client, router).await?.into_iter().map(filter).collect();
            return dead::list(client, &router.topic, &filters, max.unwrap_or(u64::MAX), as_json).await;
        }
        RouteDeadCommand::Retry { ids, all } => ("replay", ids, all),
        RouteDeadCommand::Delete { ids, all } => ("delete", ids, all),
    };
    let which = |group| WhichLetters {
        topic: router.topic.clone(),
        ids: ids.clone(),
        all,
        group,
        ..WhichLetters::default()
    };
    let mut done = Count { count: 0 };
    if all {
        for group in groups(client, router).await? {
            done.count += dead::pick(client, what, which(Some(group)), false).await?.count;
        }
    } else {
        done = dead::pick(client, what, which(None), false).await?;
    }
    if as_json { json(&done) } else { line(&done.count.to_string()) }
}

/// The groups that are the router's, its own first.
async fn groups(client: &Client, router: &RoutingStatus) -> Result<Vec<String>> {
    let all: Groups = client.get(&format!("{}/groups", topic_path(&router.topic))).await?;
    let feeds = all.groups.into_iter().map(|group| group.group);
    let feeds = feeds.filter(|group| *group != router.group && is_routers(&router.group, group));
    Ok([router.group.clone()].into_iter().chain(feeds).collect())
}
