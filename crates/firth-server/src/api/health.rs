//! Health and metrics.

use super::body::Json;
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{About, unix_ms};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use firth::{Error, ErrorKind};
use std::time::{Duration, SystemTime};

/// How long the engine may take to prove that it is there.
const PROOF: Duration = Duration::from_secs(5);

/// Version and clock, for whoever checks whether they match.
pub(crate) async fn about() -> Json<About> {
    Json(About { version: env!("CARGO_PKG_VERSION").to_owned(), time_ms: unix_ms(SystemTime::now()) })
}

/// The process runs.
pub(crate) async fn live() -> &'static str {
    "live\n"
}

/// The engine answers, and the server is not shutting down.
pub(crate) async fn ready(State(app): State<App>) -> Answer<&'static str> {
    if app.is_draining() {
        return Err(Error::new(ErrorKind::Closed, "the server is shutting down").into());
    }
    match tokio::time::timeout(PROOF, app.broker().list_topics()).await {
        Ok(topics) => topics.map(|_| "ready\n").map_err(Problem::from),
        Err(_) => Err(Error::new(ErrorKind::Unavailable, "the engine does not answer").into()),
    }
}

/// Everything counted, in the text format of Prometheus.
pub(crate) async fn metrics(State(app): State<App>) -> Answer<impl IntoResponse> {
    let Some(metrics) = app.metrics() else {
        let detail = "this process counts nothing: only `firth serve` does";
        return Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail));
    };
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render()))
}
