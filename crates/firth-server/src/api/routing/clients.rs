//! `/v1/routing/clients`: who is connected to which gateway.

use super::named;
use crate::api::body::{Json, JsonBody, Path, Query};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::routing::tell_clients;
use crate::wire::{EdgeClients, GatewayClients, MAX_CLIENTS};
use axum::extract::State;
use axum::http::StatusCode;
use firth_router::GatewayId;
use serde::Deserialize;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfGateway {
    /// Only this gateway.
    #[param(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    gateway: Option<String>,
}

/// Clients that are connected to gateways: how many, and some of them by tenant and user
///
/// Gateways tell every few seconds, also those that read their topic without a router. One that
/// registers by gRPC tells nothing.
#[utoipa::path(get, path = "/v1/routing/clients", tag = "gateways", params(OfGateway), responses((status = 200, body = EdgeClients)))]
pub(crate) async fn clients(
    State(app): State<App>,
    Query(of): Query<OfGateway>,
) -> Answer<Json<EdgeClients>> {
    let gateway = of.gateway.map(|gateway| named("gateway", GatewayId::new(gateway))).transpose()?;
    let gateways = app.routing().reports().lately(gateway.as_ref().map(GatewayId::as_str));
    Ok(Json(EdgeClients { gateways }))
}

/// A gateway tells of its clients, at most 100 by name; every few seconds, else it is forgotten
#[utoipa::path(post, path = "/v1/routing/gateways/{gateway}/clients", tag = "gateways", params(("gateway" = String, Path)),
    request_body = GatewayClients, responses((status = 204, description = "Noted")))]
pub(crate) async fn report(
    State(app): State<App>,
    Path(gateway): Path<String>,
    JsonBody(clients): JsonBody<GatewayClients>,
) -> Answer<StatusCode> {
    let gateway = named("gateway", GatewayId::new(gateway))?;
    if !clients.is_bounded() {
        let detail = format!("clients: give at most {MAX_CLIENTS}, with short names");
        return Err(Problem::field("clients", detail).limit(MAX_CLIENTS as u64));
    }
    tell_clients(&app.broker().bus(), gateway.as_str(), clients).await?;
    Ok(StatusCode::NO_CONTENT)
}
