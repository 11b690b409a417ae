//! `/v1/claims`: services, what they offer, who has it; taking offers back and claims away.
//!
//! The first offer or worker makes a service. A read makes none: if the service is not there, the
//! answer is 404.

use super::body::{Json, JsonBody, Path, Query, Raw, expect_media, parse, within};
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::wire::{
    NewOffer, NewService, Object, OfferList, OfferShown, Offered, ServiceStatus, Services, WorkerList,
    WorkerShown,
};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use firth::ErrorKind;
use firth::claims::{Claims, MAX_SHARDS, OfferName};
use firth::limits::MAX_OFFER;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::IntoParams;

/// The most offers of one request.
const MAX_OFFERS: u64 = 10_000;
/// The most offers of one page.
const MAX_PAGE: u64 = 1000;

/// All services that the caller's token covers
#[utoipa::path(get, path = "/v1/claims", tag = "claims", responses((status = 200, body = Services)))]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<Services>> {
    let services = app.broker().list_services().await?;
    Ok(Json(Services { services: services.into_iter().filter(|service| caller.covers(service)).collect() }))
}

/// A service in figures; looks at every offer, so ask now and then
#[utoipa::path(get, path = "/v1/claims/{service}", tag = "claims", params(("service" = String, Path)),
    responses((status = 200, body = ServiceStatus)))]
pub(crate) async fn status(
    State(app): State<App>,
    Path(service): Path<String>,
) -> Answer<Json<ServiceStatus>> {
    let status = there(&app, &service).await?.status().await?;
    Ok(Json(ServiceStatus::new(service, &status)))
}

/// Makes a service with this many shards, or confirms that it is there as wanted
#[utoipa::path(put, path = "/v1/claims/{service}", tag = "claims", params(("service" = String, Path)), request_body = NewService,
    responses((status = 200, body = ServiceStatus, description = "It is there as wanted"), (status = 201, body = ServiceStatus),
        (status = 409, body = Problem, description = "It is there with another number of shards")))]
pub(crate) async fn create(
    State(app): State<App>,
    Path(service): Path<String>,
    JsonBody(request): JsonBody<NewService>,
) -> Answer<(StatusCode, Json<ServiceStatus>)> {
    let shards =
        request.shards.map(|shards| within("shards", shards.into(), 1, MAX_SHARDS.into())).transpose()?;
    let is_new = !is_there(&app, &service).await?;
    let claims = app.broker().claims(&service);
    let claims = match shards {
        Some(shards) => claims.shards(u32::try_from(shards).unwrap_or(MAX_SHARDS)),
        None => claims,
    };
    // The first use makes it.
    let status = match claims.status().await {
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let detail = error.context().to_owned();
            return Err(Problem::http(StatusCode::CONFLICT, ErrorKind::AlreadyExists, detail).at("shards"));
        }
        status => status?,
    };
    let code = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((code, Json(ServiceStatus::new(service, &status))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfferPage {
    /// Go on after this name.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$")]
    after: Option<String>,
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
}

/// Offers by name, with their owners and ages
#[utoipa::path(get, path = "/v1/claims/{service}/offers", tag = "claims", params(("service" = String, Path), OfferPage),
    responses((status = 200, body = OfferList)))]
pub(crate) async fn offers(
    State(app): State<App>,
    Path(service): Path<String>,
    Query(page): Query<OfferPage>,
) -> Answer<Json<OfferList>> {
    let max = usize::try_from(within("max", page.max.unwrap_or(100), 1, MAX_PAGE)?).unwrap_or(100);
    let after =
        page.after.map(OfferName::new).transpose().map_err(|error| Problem::from(error).at("after"))?;
    let claims = there(&app, &service).await?;
    let found = claims.offers(after.as_ref().map(OfferName::as_str), max).await?;
    let next = found.last().filter(|_| found.len() == max).map(|last| last.name.clone());
    Ok(Json(OfferList { offers: found.into_iter().map(OfferShown::from).collect(), next }))
}

/// Offers one unit of work, or an array of them; an offer that exists stays, owned or not
///
/// At most 10 000. The service is made if it is new.
#[utoipa::path(post, path = "/v1/claims/{service}/offers", tag = "claims", params(("service" = String, Path)),
    request_body = NewOffer, responses((status = 200, body = Offered)))]
pub(crate) async fn offer(
    State(app): State<App>,
    Path(service): Path<String>,
    raw: Raw,
) -> Answer<Json<Offered>> {
    expect_media(&raw.media, &["application/json"])?;
    let is_list = raw.bytes.trim_ascii_start().starts_with(b"[");
    let all: Vec<Object<NewOffer>> = if is_list { parse(&raw.bytes)? } else { vec![parse(&raw.bytes)?] };
    let count = within("offers", all.len() as u64, 1, MAX_OFFERS)?;
    let mut units = BTreeMap::new();
    for (index, Object(offer)) in all.into_iter().enumerate() {
        let (name, payload) = checked(offer).map_err(|mut problem| {
            if is_list {
                problem.detail = format!("offer {}: {}", index + 1, problem.detail);
            }
            problem
        })?;
        units.entry(name).or_insert(payload);
    }
    let new = app.broker().claims(&service).offer_all(units).await?;
    Ok(Json(Offered { offered: count, new: new as u64 }))
}

fn checked(offer: NewOffer) -> Answer<(String, Vec<u8>)> {
    OfferName::new(&offer.name).map_err(|error| Problem::from(error).at("name"))?;
    let (name, payload) = offer.into_parts()?;
    if payload.len() > MAX_OFFER {
        let detail =
            format!("the payload of {name} has {} bytes; at most {MAX_OFFER} are allowed", payload.len());
        return Err(Problem::field("payload", detail).limit(MAX_OFFER as u64));
    }
    Ok((name, payload))
}

/// Takes an offer back, owned or not; its owner loses the claim
#[utoipa::path(delete, path = "/v1/claims/{service}/offers/{offer}", tag = "claims",
    params(("service" = String, Path), ("offer" = String, Path)), responses((status = 204, description = "Withdrawn")))]
pub(crate) async fn withdraw(
    State(app): State<App>,
    Path((service, offer)): Path<(String, String)>,
) -> Answer<StatusCode> {
    match there(&app, &service).await?.withdraw(&offer).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(missing("offer", format!("service {service} does not offer {offer}"))),
    }
}

/// Takes a claim away from its owner, alive or vanished; the unit is free at once
#[utoipa::path(post, path = "/v1/claims/{service}/offers/{offer}/release", tag = "claims",
    params(("service" = String, Path), ("offer" = String, Path)), responses((status = 204, description = "Released")))]
pub(crate) async fn release(
    State(app): State<App>,
    Path((service, offer)): Path<(String, String)>,
) -> Answer<StatusCode> {
    match there(&app, &service).await?.force_release(&offer).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(missing("offer", format!("nobody has {offer} of service {service}"))),
    }
}

/// All workers of a service, also those that are gone while something of theirs is left
#[utoipa::path(get, path = "/v1/claims/{service}/workers", tag = "claims", params(("service" = String, Path)),
    responses((status = 200, body = WorkerList)))]
pub(crate) async fn workers(State(app): State<App>, Path(service): Path<String>) -> Answer<Json<WorkerList>> {
    let workers = there(&app, &service).await?.workers().await?;
    Ok(Json(WorkerList { workers: workers.into_iter().map(WorkerShown::from).collect() }))
}

/// The service, if it was ever used; looking does not make it.
pub(super) async fn there(app: &App, service: &str) -> Answer<Claims> {
    match is_there(app, service).await? {
        true => Ok(app.broker().claims(service)),
        false => {
            let detail = format!("there is no service {service}: the first offer makes it");
            Err(missing("service", detail))
        }
    }
}

async fn is_there(app: &App, service: &str) -> Answer<bool> {
    Ok(app.broker().list_services().await?.iter().any(|known| known == service))
}

fn missing(field: &str, detail: String) -> Problem {
    Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail).at(field)
}
