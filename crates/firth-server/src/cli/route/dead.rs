//! `firth route dead`: the dead letters of the router's group.

use crate::cli::dead::{self, DeadCommand as Letters, Filter, Which};
use crate::client::Client;
use crate::wire::RoutingStatus;
use clap::Subcommand;
use firth::Result;

pub(super) const EXAMPLES: &str = "\
Examples:
  firth route dead
  firth route dead retry --all
  firth route dead delete router/0/1700000000000-42";

#[derive(Subcommand)]
pub(crate) enum DeadCommand {
    /// List what no attempt could deliver, with each gateway's reason
    #[command(after_help = "Example:\n  firth route dead list --reason edge-1")]
    List {
        /// Only those whose reason contains this
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// At most this many
        #[arg(long, value_name = "N")]
        max: Option<usize>,
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
    command: Option<DeadCommand>,
    router: &RoutingStatus,
    as_json: bool,
) -> Result<()> {
    let topic = router.topic.clone();
    let which = |ids: Vec<String>, all: bool| {
        let group = all.then(|| router.group.clone());
        Which { topic: router.topic.clone(), ids, all, group, ..Which::default() }
    };
    let command = match command.unwrap_or(DeadCommand::List { reason: None, max: None }) {
        DeadCommand::List { reason, max } => {
            let filter = Filter { group: Some(router.group.clone()), reason, ..Filter::default() };
            Letters::List { topic, filter, max, follow: false }
        }
        DeadCommand::Retry { ids, all } => Letters::Replay { which: which(ids, all), everyone: false },
        DeadCommand::Delete { ids, all } => Letters::Delete { which: which(ids, all) },
    };
    dead::run(client, command, as_json).await
}
