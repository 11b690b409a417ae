//! `/v1/engine`: where topics are kept, and how the servers below are.

use super::body::Json;
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::stats::resident_bytes;
use crate::wire::{EngineNodeShown, EngineShown};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use firth::ErrorKind;

/// The engine: whether it answers, its directory or its servers, without secrets
///
/// The server notes every 2 s how the engine's servers are, so asking costs them nothing beyond one
/// sign of life.
#[utoipa::path(get, path = "/v1/engine", tag = "system", responses((status = 200, body = EngineShown)))]
pub(crate) async fn engine(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<EngineShown>> {
    if !caller.covers_all() {
        let detail = format!("token {} is for some topics only; the engine holds all of them", caller.name());
        return Err(Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, detail));
    }
    let broker = app.broker();
    let place = broker.describe();
    let kind = place.split(':').next().unwrap_or_default().to_owned();
    let problem = broker.check().await.err().map(|error| error.to_string());
    let measured = app.events().stats().disk();
    Ok(Json(EngineShown {
        ready: problem.is_none() && !app.is_draining(),
        problem,
        process_memory: resident_bytes(),
        directory: place.strip_prefix("file:").map(str::to_owned),
        disk: measured.map(|(used, _)| used),
        disk_free: measured.map(|(_, free)| free),
        nodes: broker.nodes().into_iter().map(EngineNodeShown::from).collect(),
        kind,
        place,
    }))
}
