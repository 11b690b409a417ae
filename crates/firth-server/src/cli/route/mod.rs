//! `firth route`: run a node of the router, see how it fares, and who gets what.

mod dead;
mod gateways;
mod subscriptions;

use super::output::{json, line, plain, table};
use super::target::ApiTarget;
use super::units;
use crate::client::{Client, escape};
use crate::serve::{self, ServeArgs};
use crate::wire::{
    BooksShown, EdgeClients, ExplainRequest, Explained, ExplainedOne, GatewayClient, NodeShown,
    RoutedPartition, RoutingStatus, invalid,
};
use axum::http::Method;
use clap::{Args, Subcommand};
use firth::Result;
use serde_json::value::RawValue;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth route run --config firth.yaml --engine redis://10.0.0.1 --topic changes
  firth route gateways add edge-1 http://10.0.0.2:7272
  firth route subscriptions add acme s1 --collection orders --filter 'doc.total > 100' --gateway edge-1
  firth route explain '{\"op\":\"insert\",\"tenant\":\"acme\",\"collection\":\"orders\",\"key\":\"1\",\"after\":{\"total\":200}}'
  firth route status";

#[derive(Subcommand)]
pub(crate) enum RouteCommand {
    /// Run a node: a server that also routes
    #[command(
        after_help = "Examples:\n  firth route run --config firth.yaml\n  firth route run --engine redis://10.0.0.1 --topic changes --node node-1 --listen 127.0.0.1:7171"
    )]
    Run(Box<RunArgs>),
    /// Show every partition with its owner, lag, health and books
    #[command(after_help = "Example:\n  firth route status --json")]
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// List, add and remove gateways
    #[command(after_help = gateways::EXAMPLES)]
    Gateways {
        #[command(subcommand)]
        command: Option<gateways::GatewaysCommand>,
    },
    /// Show how many clients are connected to gateways, and some of them
    #[command(after_help = "Examples:\n  firth route clients\n  firth route clients edge-1 --json")]
    Clients {
        /// Only this gateway
        gateway: Option<String>,
    },
    /// List, add and remove subscriptions
    #[command(after_help = subscriptions::EXAMPLES)]
    Subscriptions {
        #[command(subcommand)]
        command: Option<subscriptions::SubscriptionsCommand>,
    },
    /// List, retry and delete what no attempt could deliver
    #[command(after_help = dead::EXAMPLES)]
    Dead {
        #[command(subcommand)]
        command: Option<dead::RouteDeadCommand>,
        #[command(flatten)]
        which: Which,
    },
    /// Say who would get an event, and why; nothing is sent
    #[command(
        after_help = "Example:\n  firth route explain '{\"op\":\"insert\",\"tenant\":\"acme\",\"collection\":\"orders\",\"key\":\"1\",\"after\":{\"total\":200}}' --subscription s1"
    )]
    Explain {
        /// The event, as JSON
        event: String,
        /// Also say why this subscription of the event's tenant does or does not get it
        #[arg(long, value_name = "ID")]
        subscription: Option<String>,
    },
}

/// Arguments of a server that routes, also if its configuration file has no section for routing.
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// The topic of change events; made if it is not there [default: changes]
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// The group that all nodes of one router share [default: router]
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// The name of this node [default: router]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Where gateways register by gRPC
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<String>,
}

/// Which router is meant, if not the one of the server.
#[derive(Args)]
pub(crate) struct Which {
    /// The routed topic
    #[arg(long, value_name = "TOPIC", global = true)]
    topic: Option<String>,
    /// The router's group
    #[arg(long, value_name = "GROUP", global = true)]
    group: Option<String>,
}

impl Which {
    async fn status(&self, client: &Client) -> Result<RoutingStatus> {
        let part = |name: &str, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!("&{name}={}", escape(value)))
        };
        client
            .get(
                &format!("/v1/routing?{}{}", part("topic", &self.topic), part("group", &self.group))
                    .replacen("?&", "?", 1),
            )
            .await
    }
}

pub(crate) async fn run(command: RouteCommand, target: ApiTarget) -> Result<()> {
    if let RouteCommand::Run(args) = command {
        return node(*args, &target).await;
    }
    target.with(async |client| ask(client, command, target.json).await).await
}

async fn node(args: RunArgs, target: &ApiTarget) -> Result<()> {
    let mut given = args.serve.given()?;
    let named = [
        ("engine", target.engine().map(str::to_owned)),
        ("routing.topic", args.topic),
        // Some option, so that there is a section.
        ("routing.group", Some(args.group.unwrap_or_else(|| "router".to_owned()))),
        ("routing.node", args.node),
        ("routing.listen", args.grpc),
    ];
    let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    given.flags.splice(0..0, named);
    serve::run_given(given).await
}

async fn ask(client: &Client, command: RouteCommand, as_json: bool) -> Result<()> {
    match command {
        RouteCommand::Run(_) => Ok(()),
        RouteCommand::Status { which } => status(&which.status(client).await?, as_json),
        RouteCommand::Gateways { command } => gateways::run(client, command, as_json).await,
        RouteCommand::Clients { gateway } => clients(client, gateway, as_json).await,
        RouteCommand::Subscriptions { command } => subscriptions::run(client, command, as_json).await,
        RouteCommand::Dead { command, which } => {
            let status = which.status(client).await?;
            dead::run(client, command, &status, as_json).await
        }
        RouteCommand::Explain { event, subscription } => {
            let event = RawValue::from_string(event)
                .map_err(|error| invalid("event: this is not JSON").with_source(error))?;
            let request = ExplainRequest { event, subscription };
            let explained: Explained = client.send(Method::POST, "/v1/routing/explain", &request).await?;
            explain(&explained, as_json)
        }
    }
}

async fn clients(client: &Client, gateway: Option<String>, as_json: bool) -> Result<()> {
    let which = gateway.map_or(String::new(), |gateway| format!("?gateway={}", escape(&gateway)));
    let all: EdgeClients = client.get(&format!("/v1/routing/clients{which}")).await?;
    if as_json {
        return json(&all);
    }
    for told in &all.gateways {
        let [connections, subscriptions] = [told.connections, told.subscriptions].map(units::count);
        let gateway = plain(&told.gateway);
        line(&format!("{gateway}: {connections} connections, {subscriptions} subscriptions"))?;
    }
    let row = |gateway: &str, one: &GatewayClient| {
        let user = one.user.as_deref().map_or("-".to_owned(), plain);
        let [subscriptions, queued] = [one.subscriptions, one.queued].map(units::count);
        [plain(gateway), plain(&one.tenant), user, subscriptions, queued, units::age(one.connected_ms)]
    };
    let told = all.gateways.iter().flat_map(|one| one.clients.iter().map(|client| row(&one.gateway, client)));
    table(["GATEWAY", "TENANT", "USER", "SUBSCRIPTIONS", "QUEUED", "CONNECTED FOR"], told.collect())
}

fn status(status: &RoutingStatus, as_json: bool) -> Result<()> {
    if as_json {
        return json(status);
    }
    let node = match (&status.node, status.running) {
        (Some(node), true) => format!("node {node} routes here"),
        (Some(node), false) => format!("node {node} has ended"),
        (None, _) => "no node runs in this server".to_owned(),
    };
    line(&format!("{}: topic {}, group {}, {node}", status.health, status.topic, status.group))?;
    line(&format!("{} subscriptions, {} gateways", status.subscriptions, status.gateways))?;
    let row = |part: &RoutedPartition| {
        let books = part.books.unwrap_or_default();
        let numbers = [books.taken, books.delivered, books.parked, books.dead, books.gapped, books.in_flight];
        let [taken, delivered, parked, dead, gapped, in_flight] = numbers.map(units::count);
        let balance = if part.books.is_none() || books.balanced { "yes" } else { "NO" };
        [
            part.partition.to_string(),
            part.owner.clone().unwrap_or_else(|| "-".to_owned()),
            part.health.clone(),
            units::count(part.lag),
            taken,
            delivered,
            parked,
            dead,
            gapped,
            in_flight,
            balance.to_owned(),
        ]
    };
    table(
        [
            "PARTITION",
            "OWNER",
            "HEALTH",
            "LAG",
            "IN",
            "DELIVERED",
            "PARKED",
            "DEAD",
            "GAPPED",
            "IN FLIGHT",
            "BALANCED",
        ],
        status.partitions.iter().map(row).collect(),
    )?;
    nodes(status)
}

/// What all nodes told, and what that is together.
fn nodes(status: &RoutingStatus) -> Result<()> {
    if status.nodes.is_empty() {
        return Ok(());
    }
    let row = |name: &str, told: String, books: BooksShown| {
        let numbers = [books.taken, books.delivered, books.parked, books.dead, books.gapped, books.in_flight];
        let [taken, delivered, parked, dead, gapped, in_flight] = numbers.map(units::count);
        let balance = if books.balanced { "yes" } else { "NO" };
        [name.to_owned(), told, taken, delivered, parked, dead, gapped, in_flight, balance.to_owned()]
    };
    let told = |node: &NodeShown| format!("{} ago", units::age(node.told_ms));
    let mut rows: Vec<_> = status.nodes.iter().map(|node| row(&node.node, told(node), node.books)).collect();
    rows.push(row("all", String::new(), status.books));
    line("")?;
    table(["NODE", "TOLD", "IN", "DELIVERED", "PARKED", "DEAD", "GAPPED", "IN FLIGHT", "BALANCED"], rows)
}

fn explain(explained: &Explained, as_json: bool) -> Result<()> {
    if as_json {
        return json(explained);
    }
    let show = |one: &ExplainedOne| {
        let verdict = match (one.wants, one.leaves) {
            (true, true) => "gets it, as the document leaves what it sees",
            (true, false) => "gets it",
            (false, _) => "does not get it",
        };
        let to = if one.gateways.is_empty() { "nowhere".to_owned() } else { one.gateways.join(", ") };
        line(&format!("{}/{} {verdict}; it goes to {to}", one.tenant, one.id))?;
        one.because.iter().try_for_each(|why| line(&format!("  {}", super::output::plain(why))))
    };
    line(&format!("{} subscriptions match", explained.matches))?;
    explained.subscriptions.iter().try_for_each(show)?;
    explained.asked.iter().filter(|asked| !asked.wants).try_for_each(show)
}
