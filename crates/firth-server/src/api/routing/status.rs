//! `/v1/routing` and `/health`: how the router fares, with its books.

use crate::api::body::{Json, Query};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{BooksShown, NodeShown, RoutedPartition, RoutingStatus, millis};
use axum::extract::State;
use firth::{Error, ErrorKind, GroupName, TopicName};
use firth_router::node::Health;
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// How long the engine may take to tell.
const PROOF: Duration = Duration::from_secs(5);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatusQuery {
    /// The routed topic; what this server routes unless set.
    #[param(pattern = r"^\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$", max_length = 128)]
    topic: Option<String>,
    /// The router's group; this server's unless set.
    #[param(pattern = r"^\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$", max_length = 128)]
    group: Option<String>,
}

/// How the router fares: every partition with its owner, lag, health and this node's books
#[utoipa::path(get, path = "/v1/routing", tag = "routing", params(StatusQuery), responses((status = 200, body = RoutingStatus)))]
pub(crate) async fn status(
    State(app): State<App>,
    Query(which): Query<StatusQuery>,
) -> Answer<Json<RoutingStatus>> {
    let routing = app.routing();
    let (topic, group, node) = routing.names();
    let topic = TopicName::new(which.topic.as_deref().unwrap_or(topic))?;
    let group = GroupName::new(which.group.as_deref().unwrap_or(group))?;
    let registry = routing.registry().await?;
    let router = routing.router();
    let books = router.map(|router| router.accounting()).unwrap_or_default();
    let seen = routing.partitions(topic.as_str(), group.as_str()).await?;
    let is_ended = router.is_some_and(|router| !router.is_running());
    let worst = seen.iter().map(|part| part.health).max().unwrap_or_default();
    let nodes: Vec<NodeShown> = routing
        .nodes(topic.as_str(), group.as_str())
        .await?
        .into_iter()
        .map(|(node, ago, books)| NodeShown { node, told_ms: millis(ago), books })
        .collect();
    let partitions = seen.into_iter().map(|part| RoutedPartition {
        partition: part.index,
        owner: part.owner,
        health: part.health.as_str().to_owned(),
        lag: part.lag,
        oldest_ms: part.oldest.map(millis),
        dead: part.dead,
        books: books.get(&part.index).map(|books| BooksShown::from(*books)),
    });
    Ok(Json(RoutingStatus {
        running: router.is_some() && !is_ended,
        health: if is_ended { Health::Failed } else { worst }.as_str().to_owned(),
        topic: topic.to_string(),
        group: group.to_string(),
        node: node.map(str::to_owned),
        subscriptions: registry.len(),
        gateways: registry.gateways().len(),
        partitions: partitions.collect(),
        books: nodes.iter().map(|node| node.books).sum(),
        nodes,
    }))
}

/// How the router of this server fares: healthy, lagging, stale or failed; the last two are 503
#[utoipa::path(get, path = "/health", tag = "system",
    responses((status = 200, body = String, content_type = "text/plain"), (status = 503, body = Problem, description = "Stale or failed")))]
pub(crate) async fn health(State(app): State<App>) -> Answer<String> {
    let asked = tokio::time::timeout(PROOF, app.routing().health()).await;
    let health = asked.map_err(|_| Error::new(ErrorKind::Unavailable, "the engine does not answer"))??;
    match health {
        Health::Healthy | Health::Lagging => Ok(format!("{}\n", health.as_str())),
        _ => {
            let why = format!("the router is {}: `firth route status` shows where", health.as_str());
            Err(Error::new(ErrorKind::Unavailable, why).into())
        }
    }
}
