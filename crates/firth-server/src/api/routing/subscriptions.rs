//! `/v1/routing/subscriptions`: register, heartbeat, unregister, browse; and who would get an
//! event.

use super::named;
use crate::api::body::{Json, JsonBody, Path, Query, within};
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::routing::told;
use crate::wire::{
    Alive, ExplainRequest, Explained, ExplainedOne, NewSubscription, SubscriptionShown, Subscriptions,
};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use firth::{Error, ErrorKind};
use firth_router::config::RoutingConfig;
use firth_router::event::Event;
use firth_router::registry::{Registry, Select, Subscription};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use serde::Deserialize;
use utoipa::IntoParams;

/// The most subscriptions of one page, and of one explanation.
const MAX_PAGE: u64 = 1000;
/// The most conditions of one subscription, and the most steps of a field there: what surely fits a
/// filter's limits.
const MAX_CONDITIONS: u64 = 16;
const MAX_STEPS: usize = 8;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only this tenant's.
    #[param(pattern = "^[A-Za-z0-9_:@-]{1,128}$")]
    tenant: Option<String>,
    /// Only those that name this gateway.
    #[param(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    gateway: Option<String>,
    /// Go on after this one.
    #[param(pattern = "^[A-Za-z0-9_:@-]{1,128}/[A-Za-z0-9_:@-]{1,128}$")]
    after: Option<String>,
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
}

/// Subscriptions, page by page
#[utoipa::path(get, path = "/v1/routing/subscriptions", tag = "subscriptions", params(Wanted),
    responses((status = 200, body = Subscriptions)))]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Subscriptions>> {
    let max = within("max", wanted.max.unwrap_or(100), 1, MAX_PAGE)?;
    let after = wanted.after.map(|after| match after.split_once('/') {
        Some((tenant, id)) => {
            Ok((named("after", Tenant::new(tenant))?, named("after", SubscriptionId::new(id))?))
        }
        None => Err(Problem::field("after", "after: write TENANT/ID, as `next` has it")),
    });
    let select = Select {
        tenant: wanted.tenant.map(|tenant| named("tenant", Tenant::new(tenant))).transpose()?,
        gateway: wanted.gateway.map(|gateway| named("gateway", GatewayId::new(gateway))).transpose()?,
        after: after.transpose()?,
    };
    named("tenant", caller.access().check_select(&select))?;
    let registry = app.routing().registry().await?;
    let (page, has_more) = registry.select(&select, usize::try_from(max).unwrap_or(100));
    let last = page.last().map(|seen| format!("{}/{}", seen.subscription.tenant, seen.subscription.id));
    let next = last.filter(|_| has_more);
    Ok(Json(Subscriptions { subscriptions: page.iter().map(SubscriptionShown::from).collect(), next }))
}

/// One subscription
#[utoipa::path(get, path = "/v1/routing/subscriptions/{tenant}/{subscription}", tag = "subscriptions",
    params(("tenant" = String, Path), ("subscription" = String, Path)), responses((status = 200, body = SubscriptionShown)))]
pub(crate) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(names): Path<(String, String)>,
) -> Answer<Json<SubscriptionShown>> {
    let (tenant, id) = read_names(names)?;
    named("tenant", caller.access().check_tenant(&tenant))?;
    let seen = app.routing().registry().await?.seen(&tenant, &id).ok_or_else(|| unknown(&id))?;
    Ok(Json(SubscriptionShown::from(&seen)))
}

/// Registers a subscription, or replaces the tenant's one with this id
#[utoipa::path(put, path = "/v1/routing/subscriptions/{tenant}/{subscription}", tag = "subscriptions",
    params(("tenant" = String, Path), ("subscription" = String, Path)), request_body = NewSubscription,
    responses((status = 200, body = SubscriptionShown)))]
pub(crate) async fn register(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(names): Path<(String, String)>,
    JsonBody(request): JsonBody<NewSubscription>,
) -> Answer<Json<SubscriptionShown>> {
    let subscription = read_request(names, request, &app.routing().config())?;
    let shown = SubscriptionShown::new(&subscription, subscription.ttl_seconds * 1000);
    named("filter", subscription.interest())?;
    let registry = app.routing().registry().await?;
    let access = caller.access();
    named("filter", registry.limited(&access).register(subscription).await)?;
    Ok(Json(shown))
}

/// A sign of life of a subscription; its time starts anew
#[utoipa::path(post, path = "/v1/routing/subscriptions/{tenant}/{subscription}/heartbeat", tag = "subscriptions",
    params(("tenant" = String, Path), ("subscription" = String, Path)), responses((status = 200, body = Alive)))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(names): Path<(String, String)>,
) -> Answer<Json<Alive>> {
    let (tenant, id) = read_names(names)?;
    let registry = app.routing().registry().await?;
    let access = caller.access();
    named("tenant", registry.limited(&access).heartbeat(&tenant, &id).await)?;
    let known = registry.subscription(&tenant, &id).ok_or_else(|| unknown(&id))?;
    Ok(Json(Alive { ttl_seconds: known.ttl_seconds }))
}

/// Removes a subscription
#[utoipa::path(delete, path = "/v1/routing/subscriptions/{tenant}/{subscription}", tag = "subscriptions",
    params(("tenant" = String, Path), ("subscription" = String, Path)), responses((status = 204, description = "Removed")))]
pub(crate) async fn unregister(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(names): Path<(String, String)>,
) -> Answer<StatusCode> {
    let (tenant, id) = read_names(names)?;
    let registry = app.routing().registry().await?;
    let access = caller.access();
    match named("tenant", registry.limited(&access).unregister(&tenant, &id).await)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown(&id).into()),
    }
}

/// Who would get an event, and why; nothing is sent
#[utoipa::path(post, path = "/v1/routing/explain", tag = "routing", request_body = ExplainRequest,
    responses((status = 200, body = Explained), (status = 404, body = Problem, description = "There is no such subscription")))]
pub(crate) async fn explain(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(request): JsonBody<ExplainRequest>,
) -> Answer<Json<Explained>> {
    let text = request.event.get();
    if !text.trim_start().starts_with('{') {
        return Err(Problem::field("event", "event: write an object with op, tenant, collection, key"));
    }
    let event = named("event", Event::from_json(text.as_bytes()))?;
    named("event", caller.access().check_tenant(&event.tenant))?;
    let registry = app.routing().registry().await?;
    let fanout = app.routing().config().max_fanout;
    let matched = registry.matches(&event).map_err(told)?;
    let matches = matched.len();
    let mut subscriptions = Vec::new();
    for wanted in matched.iter().take(MAX_PAGE as usize) {
        subscriptions.push(explained(registry, &wanted.subscription, &event, fanout)?);
    }
    subscriptions.sort_by(|one, two| one.id.cmp(&two.id));
    let asked = match request.subscription {
        None => None,
        Some(id) => {
            let id = named("subscription", SubscriptionId::new(id))?;
            let known = registry.subscription(&event.tenant, &id).ok_or_else(|| unknown(&id))?;
            Some(explained(registry, &known, &event, fanout)?)
        }
    };
    Ok(Json(Explained { matches, subscriptions, asked }))
}

fn explained(
    registry: &Registry,
    subscription: &Subscription,
    event: &Event,
    max_fanout: usize,
) -> Answer<ExplainedOne> {
    let verdict = subscription.explain(event).map_err(told)?;
    let table = registry.table(&subscription.tenant);
    let mut because = verdict.because;
    let gateways = match subscription.target.gateways(&subscription.id, &table, max_fanout) {
        Ok(gateways) => gateways.into_iter().map(ToString::to_string).collect(),
        Err(error) => {
            because.push(error.context().to_owned());
            Vec::new()
        }
    };
    Ok(ExplainedOne {
        tenant: subscription.tenant.to_string(),
        id: subscription.id.to_string(),
        wants: verdict.wants,
        leaves: verdict.leaves,
        gateways,
        because,
    })
}

fn read_names((tenant, id): (String, String)) -> Answer<(Tenant, SubscriptionId)> {
    Ok((named("tenant", Tenant::new(tenant))?, named("subscription", SubscriptionId::new(id))?))
}

fn read_request(
    names: (String, String),
    request: NewSubscription,
    config: &RoutingConfig,
) -> Answer<Subscription> {
    let (tenant, id) = read_names(names)?;
    let mode = request.mode.as_deref();
    let gateway = request.gateway.as_deref();
    let target = named("mode", Target::read_or(mode, gateway, config.mode))?;
    let seconds = request.ttl_seconds.unwrap_or(config.subscriptions.ttl.as_secs());
    let mut subscription = Subscription::new(id, tenant, request.collection, target);
    within("conditions", request.conditions.len() as u64, 0, MAX_CONDITIONS)?;
    if request.conditions.iter().any(|condition| condition.field.split('.').count() > MAX_STEPS) {
        let detail = format!("a field of a condition has at most {MAX_STEPS} steps");
        return Err(Problem::field("conditions", detail).limit(MAX_STEPS as u64));
    }
    subscription.ttl_seconds = within("ttl_seconds", seconds, 60, 3600)?;
    subscription.document = request.document.map(Into::into);
    subscription.filter = request.filter;
    subscription.conditions = request.conditions;
    subscription.priority = request.priority.unwrap_or_default();
    subscription.overflow = request.overflow.unwrap_or_default();
    Ok(subscription)
}

fn unknown(id: &SubscriptionId) -> Error {
    let context = format!("there is no subscription {id}: it expired or was removed; register it again");
    Error::new(ErrorKind::NotFound, context)
}
