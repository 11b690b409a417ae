//! `firth route gateways`.

use crate::cli::output::{json, line, table};
use crate::cli::units;
use crate::client::{Client, escape};
use crate::wire::{Alive, GatewayGone, GatewayShown, Gateways, LaneShown, NewGateway, invalid};
use axum::http::Method;
use clap::Subcommand;
use firth::Result;
use std::time::Duration;

pub(super) const EXAMPLES: &str = "\
Examples:
  firth route gateways
  firth route gateways add edge-1 http://10.0.0.2:7272 --protocol grpc
  firth route gateways remove edge-1";

#[derive(Subcommand)]
pub(crate) enum GatewaysCommand {
    /// List gateways and how the node stands to each
    #[command(after_help = "Example:\n  firth route gateways list --json")]
    List,
    /// Register a gateway, for ever unless --ttl says otherwise
    #[command(after_help = "Example:\n  firth route gateways add edge-1 http://10.0.0.2:7272")]
    Add {
        /// Its name
        id: String,
        /// Where it listens: http://HOST:PORT, nats://HOST:PORT
        endpoint: String,
        /// Its wire: http, grpc or nats; the configured one unless set
        #[arg(long, value_name = "WIRE")]
        protocol: Option<String>,
        /// How long it counts as alive without a heartbeat
        #[arg(long, value_name = "DURATION", value_parser = units::duration)]
        ttl: Option<Duration>,
    },
    /// Remove a gateway and all subscriptions that name it
    #[command(after_help = "Example:\n  firth route gateways remove edge-1")]
    Remove {
        /// Its name
        id: String,
    },
}

pub(super) async fn run(client: &Client, command: Option<GatewaysCommand>, as_json: bool) -> Result<()> {
    match command.unwrap_or(GatewaysCommand::List) {
        GatewaysCommand::List => {
            let all: Gateways = client.get("/v1/routing/gateways").await?;
            if as_json { json(&all) } else { show(&all.gateways) }
        }
        GatewaysCommand::Add { id, endpoint, protocol, ttl } => {
            let protocol = protocol.map(|word| serde_json::from_value(word.as_str().into()));
            let protocol =
                protocol.transpose().map_err(|_| invalid("--protocol: give http, grpc or nats"))?;
            let ttl_seconds = Some(ttl.map_or(0, |ttl| ttl.as_secs().max(1)));
            let request = NewGateway { endpoint: Some(endpoint), protocol, ttl_seconds };
            let alive: Alive = client.send(Method::PUT, &path(&id), &request).await?;
            if as_json { json(&alive) } else { line(&format!("registered {id}")) }
        }
        GatewaysCommand::Remove { id } => {
            let gone: GatewayGone = client.send(Method::DELETE, &path(&id), &()).await?;
            let text = || line(&format!("removed {id} and {} subscriptions", gone.subscriptions));
            if as_json { json(&gone) } else { text() }
        }
    }
}

fn path(id: &str) -> String {
    format!("/v1/routing/gateways/{}", escape(id))
}

fn show(gateways: &[GatewayShown]) -> Result<()> {
    let row = |gateway: &GatewayShown| {
        let lane = gateway.lane.as_ref();
        let count = |count: Option<u64>| count.map_or("-".to_owned(), units::count);
        [
            gateway.id.clone(),
            if gateway.endpoint.is_empty() { "-".to_owned() } else { gateway.endpoint.clone() },
            gateway.protocol.clone().unwrap_or_else(|| "-".to_owned()),
            gateway.state.clone(),
            gateway.subscriptions.to_string(),
            count(lane.map(|lane| lane.held as u64)),
            lane.map_or("-".to_owned(), behind),
            count(lane.map(|lane| lane.books.delivered)),
            gateway.remaining_ms.map_or("-".to_owned(), units::age),
        ]
    };
    table(
        [
            "GATEWAY",
            "ENDPOINT",
            "WIRE",
            "STATE",
            "SUBSCRIPTIONS",
            "HELD",
            "CATCHES UP",
            "DELIVERED",
            "ALIVE FOR",
        ],
        gateways.iter().map(row).collect(),
    )
}

/// How far a gateway is that is fed from the topic.
fn behind(lane: &LaneShown) -> String {
    let Some(longest) = lane.catch_up.iter().map(|one| one.parked_ms).max() else { return "-".to_owned() };
    let taken = lane.catch_up.iter().map(|one| one.taken).sum();
    let left_out = lane.catch_up.iter().map(|one| one.left_out).sum();
    format!("{} of {} for {}", units::count(taken), units::count(left_out), units::age(longest))
}
