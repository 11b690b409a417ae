//! Health and metrics.

use super::body::Json;
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::wire::{About, unix_ms};
use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use firth::{Error, ErrorKind};
use std::time::SystemTime;

/// Version, clock and engine of the server, and what the caller may do
#[utoipa::path(get, path = "/v1", tag = "system", responses((status = 200, body = About)))]
pub(crate) async fn about(State(app): State<App>, Extension(caller): Extension<Caller>) -> Json<About> {
    let engine = app.broker().describe();
    Json(About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time_ms: unix_ms(SystemTime::now()),
        engine: engine.split(':').next().unwrap_or_default().to_owned(),
        tokens: app.guard().has_tokens(),
        caller: matches!(caller, Caller::Holder(_)).then(|| caller.name().to_owned()),
        scopes: caller.scopes(),
        topics: caller.topics(),
        routing: app.routing().router().is_some(),
    })
}

/// The process runs
#[utoipa::path(get, path = "/health/live", tag = "system",
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(crate) async fn live() -> &'static str {
    "live\n"
}

/// The engine answers, and the server is not shutting down
#[utoipa::path(get, path = "/health/ready", tag = "system",
    responses((status = 200, body = String, content_type = "text/plain"), (status = 503, body = Problem, description = "Not now")))]
pub(crate) async fn ready(State(app): State<App>) -> Answer<&'static str> {
    if app.is_draining() {
        return Err(Error::new(ErrorKind::Closed, "the server is shutting down").into());
    }
    let away = |error| Problem { status: StatusCode::SERVICE_UNAVAILABLE.as_u16(), ..Problem::from(error) };
    app.broker().check().await.map(|()| "ready\n").map_err(away)
}

/// Everything counted, in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, body = String, content_type = "text/plain"),
        (status = 404, body = Problem, description = "This process counts nothing")))]
pub(crate) async fn metrics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<impl IntoResponse> {
    if !caller.covers_all() {
        let detail = format!("token {} is for some topics only; metrics name all of them", caller.name());
        return Err(Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, detail));
    }
    let Some(metrics) = app.metrics() else {
        let detail = "this process counts nothing: only `firth serve` does";
        return Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail));
    };
    app.events().refresh().await;
    app.connect().tell_metrics().await;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render()))
}
