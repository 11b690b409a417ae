//! `/v1/routing/gateways`: register, heartbeat, unregister; how each stands with this node.

use super::named;
use crate::api::body::{Json, JsonBody, Path, Query, within};
use crate::app::App;
use crate::auth::Caller as Holder;
use crate::problem::{Answer, Problem};
use crate::wire::{Alive, GatewayGone, GatewayShown, Gateways, NewGateway};
use axum::Extension;
use axum::extract::State;
use firth::{Error, ErrorKind};
use firth_router::GatewayId;
use firth_router::registry::Gateway;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::IntoParams;

/// Which process of a gateway calls.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GatewayCaller {
    /// Which process it is; the newest that registers holds the id. Refused with 409 if it is
    /// another one's.
    #[param(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    instance: Option<String>,
}

impl GatewayCaller {
    /// The instance, if it is written as the document says.
    fn instance(self) -> Answer<Option<String>> {
        let is_plain = |name: &String| {
            (1..=64).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        match self.instance {
            Some(name) if !is_plain(&name) => {
                let detail = "instance: give 1 to 64 letters, digits, `_` or `-`";
                Err(Problem::field("instance", detail).limit(64))
            }
            instance => Ok(instance),
        }
    }
}

/// All gateways, registered or with events here, and how this node stands to each
#[utoipa::path(get, path = "/v1/routing/gateways", tag = "gateways", responses((status = 200, body = Gateways)))]
pub(crate) async fn list(State(app): State<App>) -> Answer<Json<Gateways>> {
    Ok(Json(Gateways { gateways: all(&app).await?.into_values().collect() }))
}

/// One gateway
#[utoipa::path(get, path = "/v1/routing/gateways/{gateway}", tag = "gateways", params(("gateway" = String, Path)),
    responses((status = 200, body = GatewayShown)))]
pub(crate) async fn show(State(app): State<App>, Path(gateway): Path<String>) -> Answer<Json<GatewayShown>> {
    let id = named("gateway", GatewayId::new(gateway))?;
    all(&app).await?.remove(id.as_str()).map(Json).ok_or_else(|| unknown(&id).into())
}

/// Registers a gateway, or gives a sign of life of it, which also keeps the subscriptions that name
/// it alive
#[utoipa::path(put, path = "/v1/routing/gateways/{gateway}", tag = "gateways", params(("gateway" = String, Path), GatewayCaller),
    request_body = NewGateway, responses((status = 200, body = Alive)))]
pub(crate) async fn register(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    Path(gateway): Path<String>,
    Query(caller): Query<GatewayCaller>,
    JsonBody(request): JsonBody<NewGateway>,
) -> Answer<Json<Alive>> {
    if request.endpoint.as_deref() == Some("") {
        return Err(Problem::field(
            "endpoint",
            "endpoint: leave it out if the gateway opens the connection itself",
        ));
    }
    let mut gateway =
        Gateway::new(named("gateway", GatewayId::new(gateway))?, request.endpoint.unwrap_or_default());
    gateway.protocol = request.protocol;
    gateway.instance = caller.instance()?;
    if let Some(seconds) = request.ttl_seconds {
        gateway.ttl_seconds = within("ttl_seconds", seconds, 0, 3600)?;
    }
    let ttl_seconds = gateway.ttl_seconds;
    named(
        "endpoint",
        app.routing().registry().await?.limited(&holder.access()).register_gateway(gateway).await,
    )?;
    Ok(Json(Alive { ttl_seconds }))
}

/// A sign of life of a gateway, which also keeps the subscriptions that name it alive
#[utoipa::path(post, path = "/v1/routing/gateways/{gateway}/heartbeat", tag = "gateways",
    params(("gateway" = String, Path), GatewayCaller), responses((status = 200, body = Alive),
        (status = 409, body = Problem, description = "Another process holds the id")))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    Path(gateway): Path<String>,
    Query(caller): Query<GatewayCaller>,
) -> Answer<Json<Alive>> {
    let id = named("gateway", GatewayId::new(gateway))?;
    let instance = caller.instance()?;
    let registry = app.routing().registry().await?;
    let access = holder.access();
    let alive = registry.limited(&access).heartbeat_instance(&id, instance.as_deref()).await;
    let gateway = named("gateway", alive)?;
    Ok(Json(Alive { ttl_seconds: gateway.ttl_seconds }))
}

/// Removes a gateway and all subscriptions that name it
#[utoipa::path(delete, path = "/v1/routing/gateways/{gateway}", tag = "gateways", params(("gateway" = String, Path), GatewayCaller),
    responses((status = 200, body = GatewayGone),
        (status = 409, body = Problem, description = "Another process holds the id")))]
pub(crate) async fn unregister(
    State(app): State<App>,
    Extension(holder): Extension<Holder>,
    Path(gateway): Path<String>,
    Query(caller): Query<GatewayCaller>,
) -> Answer<Json<GatewayGone>> {
    let id = named("gateway", GatewayId::new(gateway))?;
    let instance = caller.instance()?;
    let registry = app.routing().registry().await?;
    let access = holder.access();
    let gone = registry.limited(&access).unregister_instance(&id, instance.as_deref()).await;
    let subscriptions = named("gateway", gone)?.ok_or_else(|| unknown(&id))?;
    tracing::info!(gateway = %id, subscriptions, "gateway unregistered");
    Ok(Json(GatewayGone { subscriptions }))
}

async fn all(app: &App) -> Answer<BTreeMap<String, GatewayShown>> {
    let routing = app.routing();
    let seen = routing.registry().await?.seen_gateways();
    let lanes = routing.lanes();
    let mut all = BTreeMap::new();
    for lane in &lanes {
        let id = lane.gateway.as_str();
        all.insert(id.to_owned(), GatewayShown::new(id, None, Some(lane)));
    }
    for seen in &seen {
        let id = seen.gateway.id.as_str();
        let lane = lanes.iter().find(|lane| lane.gateway == seen.gateway.id);
        all.insert(id.to_owned(), GatewayShown::new(id, Some(seen), lane));
    }
    Ok(all)
}

fn unknown(id: &GatewayId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no gateway {id}: it expired, or was never registered"))
}
