//! The server's part of the router: the registry, opened when it is first needed, and a node where
//! `routing:` is configured.

mod books;
mod clients;
mod metrics;
mod node;
mod registrants;
mod wires;

pub(crate) use clients::{EVERY as REPORT_EVERY, GatewayReports, tell as tell_clients};

use crate::app::App;
use crate::wire::{BooksShown, invalid};
use firth::{Broker, Error, ErrorKind, Result};
use firth_router::config::{NodeConfig, RoutingConfig};
use firth_router::node::{Health, LaneStatus, Router, Signs};
use firth_router::registry::Registry;
use node::Node;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// What is routed when nothing is configured: only looked at.
const TOPIC: &str = "changes";
const GROUP: &str = "router";

pub(crate) struct Routing {
    broker: Broker,
    config: Option<NodeConfig>,
    registry: OnceCell<Registry>,
    node: OnceCell<Node>,
    reports: GatewayReports,
}

/// A partition of the routed topic, as the whole group sees it.
pub(crate) struct PartitionSeen {
    pub(crate) index: u32,
    pub(crate) owner: Option<String>,
    pub(crate) lag: u64,
    pub(crate) oldest: Option<std::time::Duration>,
    pub(crate) dead: u64,
    pub(crate) health: Health,
}

impl Routing {
    pub(crate) fn new(broker: Broker, config: Option<NodeConfig>) -> Self {
        let registry = OnceCell::new();
        let node = OnceCell::new();
        Self { broker, config, registry, node, reports: GatewayReports::default() }
    }

    /// Starts the node, if one is configured.
    pub(crate) async fn start(&self, app: &App) -> Result<()> {
        let Some(config) = &self.config else { return Ok(()) };
        let registry = self.registry().await?.clone();
        let node = self.node.get_or_try_init(|| Node::start(&self.broker, registry, config, app)).await?;
        tracing::info!(topic = config.options.topic, node = config.options.node, grpc = ?node.address(), "routing");
        Ok(())
    }

    /// Who is connected to which gateway.
    pub(crate) fn reports(&self) -> &GatewayReports {
        &self.reports
    }

    /// The registry, which every server has.
    pub(crate) async fn registry(&self) -> Result<&Registry> {
        let quotas = self.config().subscriptions;
        let open = async || Registry::open(&self.broker, quotas).await.map_err(told);
        self.registry.get_or_try_init(open).await
    }

    /// Everything under `routing:`, or the defaults.
    pub(crate) fn config(&self) -> RoutingConfig {
        self.config.as_ref().map_or_else(RoutingConfig::default, |config| config.options.routing.clone())
    }

    pub(crate) fn router(&self) -> Option<&Arc<Router>> {
        self.node.get().map(Node::router)
    }

    pub(crate) fn lanes(&self) -> Vec<LaneStatus> {
        self.router().map(|router| router.lanes()).unwrap_or_default()
    }

    /// The topic, the group and the name of the node, if one runs here.
    pub(crate) fn names(&self) -> (&str, &str, Option<&str>) {
        match &self.config {
            None => (TOPIC, GROUP, None),
            Some(NodeConfig { options, .. }) => (&options.topic, &options.group, Some(&options.node)),
        }
    }

    /// Every partition of a routed topic; none if there is no such topic.
    pub(crate) async fn partitions(&self, topic: &str, group: &str) -> Result<Vec<PartitionSeen>> {
        partitions(&self.broker, topic, group).await
    }

    /// What every node told of its books, by their names, each with how long ago.
    pub(crate) async fn nodes(
        &self,
        topic: &str,
        group: &str,
    ) -> Result<Vec<(String, Duration, BooksShown)>> {
        books::all(&self.broker, topic, group).await
    }

    /// The worst of all partitions; a node that ended is worse than any.
    pub(crate) async fn health(&self) -> Result<Health> {
        let Some(router) = self.router() else { return Ok(Health::Healthy) };
        if !router.is_running() {
            return Ok(Health::Failed);
        }
        let (topic, group, _) = self.names();
        let partitions = self.partitions(topic, group).await?;
        Ok(partitions.iter().map(|part| part.health).max().unwrap_or_default())
    }

    /// Stops routing: no more calls, no more reading, batches on their way finish, every verdict is
    /// stored.
    pub(crate) async fn close(&self) {
        if let Some(node) = self.node.get() {
            node.close().await;
        }
        if let Some(registry) = self.registry.get() {
            registry.close().await;
        }
    }
}

async fn partitions(broker: &Broker, topic: &str, group: &str) -> Result<Vec<PartitionSeen>> {
    let info = match broker.admin().group(topic, group).await {
        Ok(info) => info,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let seen = |part: firth::GroupPartition| {
        let signs = Signs { is_owned: part.owner.is_some(), oldest: part.oldest, crashes: part.crashes };
        PartitionSeen {
            index: part.index,
            owner: part.owner.map(|owner| owner.member),
            lag: part.waiting + part.due,
            oldest: part.oldest,
            dead: part.dead,
            health: Health::of(signs),
        }
    };
    Ok(info.partitions.into_iter().map(seen).collect())
}

/// A failure of the router, as the server tells it.
pub(crate) fn told(error: firth_router::Error) -> Error {
    use firth_router::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::Invalid => {
            let told = invalid(error.context().to_owned());
            let told = if let Some(field) = error.field() { told.with_field(field) } else { told };
            return if let Some(limit) = error.limit() { told.with_limit(limit) } else { told };
        }
        Kind::NotFound => ErrorKind::NotFound,
        Kind::Quota => ErrorKind::Overloaded,
        Kind::Forbidden => ErrorKind::Unauthorized,
        Kind::Fenced => ErrorKind::Fenced,
        Kind::Corrupt => ErrorKind::Corrupt,
        Kind::Engine => {
            let below = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Error>());
            below.map_or(ErrorKind::Internal, Error::kind)
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, error.context().to_owned()).with_source(error)
}
