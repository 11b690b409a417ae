//! `/v1/sources`: the databases whose changes become events, and what operators want of them.

use super::body::{Json, JsonBody, Path, Query};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{Examined, NewSnapshot, SourceShown, Sources};
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this file.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list))
        .routes(routes!(show, remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(restart))
        .routes(routes!(snapshot))
        .routes(routes!(doctor))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemovalQuery {
    /// Only forget it here: slot and publication stay in a database that is gone anyway.
    forget: Option<bool>,
}

/// The sources of this server's configuration and those that other servers told of, with who reads
/// them and how they are
#[utoipa::path(get, path = "/v1/sources", tag = "sources", responses((status = 200, body = Sources)))]
async fn list(State(app): State<App>) -> Answer<Json<Sources>> {
    Ok(Json(app.connect().shown().await?))
}

/// One source
#[utoipa::path(get, path = "/v1/sources/{source}", tag = "sources", params(("source" = String, Path)),
    responses((status = 200, body = SourceShown)))]
async fn show(State(app): State<App>, Path(source): Path<String>) -> Answer<Json<SourceShown>> {
    Ok(Json(app.connect().one(&source).await?))
}

/// Takes a paused source down: its slot and publication in the database, and its marks in the topic
///
/// A node that has the source in its configuration does it. The configuration may still name it;
/// `resume` makes it a new source then.
#[utoipa::path(delete, path = "/v1/sources/{source}", tag = "sources", params(("source" = String, Path), RemovalQuery),
    responses((status = 204, description = "It is gone"),
        (status = 409, body = Problem, description = "It is read: pause it first")))]
async fn remove(
    State(app): State<App>,
    Path(source): Path<String>,
    Query(asked): Query<RemovalQuery>,
) -> Answer<StatusCode> {
    match asked.forget {
        Some(true) => app.connect().forget(&source).await?,
        _ => app.connect().remove(&source).await?,
    }
    tracing::info!(source, "source removed");
    Ok(StatusCode::NO_CONTENT)
}

/// Lets the reader of a source rest, until it is resumed
///
/// The database keeps its log for the source until it goes on.
#[utoipa::path(post, path = "/v1/sources/{source}/pause", tag = "sources", params(("source" = String, Path)),
    responses((status = 200, body = SourceShown)))]
async fn pause(State(app): State<App>, Path(source): Path<String>) -> Answer<Json<SourceShown>> {
    Ok(Json(app.connect().pause(&source).await?))
}

/// Lets a source that was paused or removed be read again
#[utoipa::path(post, path = "/v1/sources/{source}/resume", tag = "sources", params(("source" = String, Path)),
    responses((status = 200, body = SourceShown)))]
async fn resume(State(app): State<App>, Path(source): Path<String>) -> Answer<Json<SourceShown>> {
    Ok(Json(app.connect().resume(&source).await?))
}

/// Lets the reader of a source begin anew, where it stopped
#[utoipa::path(post, path = "/v1/sources/{source}/restart", tag = "sources", params(("source" = String, Path)),
    responses((status = 200, body = SourceShown)))]
async fn restart(State(app): State<App>, Path(source): Path<String>) -> Answer<Json<SourceShown>> {
    Ok(Json(app.connect().restart(&source).await?))
}

/// Asks for a copy of a table, or of all, into the topic beside the changes
#[utoipa::path(post, path = "/v1/sources/{source}/snapshot", tag = "sources", params(("source" = String, Path)),
    request_body = NewSnapshot, responses((status = 202, body = SourceShown, description = "Asked for: the reader begins soon")))]
async fn snapshot(
    State(app): State<App>,
    Path(source): Path<String>,
    JsonBody(request): JsonBody<NewSnapshot>,
) -> Answer<(StatusCode, Json<SourceShown>)> {
    Ok((StatusCode::ACCEPTED, Json(app.connect().snapshot(&source, &request).await?)))
}

/// Looks whether the other side of a source is fit, and names the statements that are missing
///
/// Only a server that has the source in its configuration can look. Nothing is changed.
#[utoipa::path(get, path = "/v1/sources/{source}/doctor", tag = "sources", params(("source" = String, Path)),
    responses((status = 200, body = Examined)))]
async fn doctor(State(app): State<App>, Path(source): Path<String>) -> Answer<Json<Examined>> {
    Ok(Json(app.connect().examine(&source).await?))
}
