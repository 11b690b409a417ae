//! `/v1/topics/{topic}/dead`: dead letters, browsed, counted, replayed, edited and deleted.

use super::body::{Json, JsonBody, Path, Query, within};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::telemetry::RequestTrace;
use crate::wire::{Count, Edit, Letter, Letters, Pick};
use axum::Extension;
use axum::extract::State;
use firth::{DeadId, DeadLetters, Replay};
use serde::Deserialize;
use utoipa::IntoParams;

/// The most letters of one page.
const MAX_PAGE: u64 = 500;
/// The most ids of one request.
const MAX_IDS: u64 = 10_000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only those that this group gave up.
    group: Option<String>,
    /// Only those whose reason contains this text.
    reason: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only those that this group gave up.
    group: Option<String>,
    /// Only those whose reason contains this text.
    reason: Option<String>,
    /// Go on after this one.
    #[param(pattern = "^[A-Za-z0-9_-]{1,64}/[0-9]{1,4}/[0-9]{1,18}-[0-9]{1,18}$")]
    after: Option<String>,
    /// At most so many; 100 unless set.
    #[param(minimum = 1, maximum = 500)]
    max: Option<u64>,
}

fn view(app: &App, topic: &str, group: Option<&str>, reason: Option<&str>) -> DeadLetters {
    let mut letters = app.broker().dead_letters(topic);
    if let Some(group) = group {
        letters = letters.group(group);
    }
    if let Some(reason) = reason {
        letters = letters.reason(reason);
    }
    letters
}

/// Dead letters of a topic, page by page
#[utoipa::path(get, path = "/v1/topics/{topic}/dead", tag = "dead letters", params(("topic" = String, Path), Wanted),
    responses((status = 200, body = Letters)))]
pub(crate) async fn list(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Letters>> {
    let after = wanted.after.map(|id| id.parse::<DeadId>()).transpose();
    let after = after.map_err(|error| Problem::from(error).at("after"))?;
    let max = usize::try_from(within("max", wanted.max.unwrap_or(100), 1, MAX_PAGE)?).unwrap_or(100);
    let letters = view(&app, &topic, wanted.group.as_deref(), wanted.reason.as_deref());
    let page = letters.list(after.as_ref(), max).await?;
    let next = page.next.map(|id| id.to_string());
    Ok(Json(Letters { letters: page.letters.into_iter().map(Letter::from).collect(), next }))
}

/// How many dead letters there are
#[utoipa::path(get, path = "/v1/topics/{topic}/dead/count", tag = "dead letters", params(("topic" = String, Path), Filter),
    responses((status = 200, body = Count)))]
pub(crate) async fn count(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(filter): Query<Filter>,
) -> Answer<Json<Count>> {
    let letters = view(&app, &topic, filter.group.as_deref(), filter.reason.as_deref());
    Ok(Json(Count { count: letters.count().await? }))
}

/// Hands dead letters to their group again, or to everyone
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/replay", tag = "dead letters", params(("topic" = String, Path)), request_body = Pick,
    responses((status = 200, body = Count)))]
pub(crate) async fn replay(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(pick): JsonBody<Pick>,
) -> Answer<Json<Count>> {
    let to = if pick.everyone { Replay::Everyone } else { Replay::Group };
    let ids = picked(&pick)?;
    app.broker().topic(&topic).await?;
    let letters = view(&app, &topic, pick.group.as_deref(), pick.reason.as_deref());
    let count = match ids {
        Some(ids) => letters.replay(&ids, to).await?,
        None => letters.replay_all(to).await?,
    };
    tracing::info!(topic, count, "dead letters replayed");
    Ok(Json(Count { count }))
}

/// Deletes dead letters for good
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/delete", tag = "dead letters", params(("topic" = String, Path)), request_body = Pick,
    responses((status = 200, body = Count)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(pick): JsonBody<Pick>,
) -> Answer<Json<Count>> {
    let ids = picked(&pick)?;
    app.broker().topic(&topic).await?;
    let letters = view(&app, &topic, pick.group.as_deref(), pick.reason.as_deref());
    let count = match ids {
        Some(ids) => letters.delete(&ids).await?,
        None => letters.delete_all().await?,
    };
    tracing::info!(topic, count, "dead letters deleted");
    Ok(Json(Count { count }))
}

/// Hands a dead letter with another message in its place to its group again, or to everyone
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/edit", tag = "dead letters", params(("topic" = String, Path)), request_body = Edit,
    responses((status = 200, body = Count)))]
pub(crate) async fn edit(
    State(app): State<App>,
    Path(topic): Path<String>,
    Extension(trace): Extension<RequestTrace>,
    JsonBody(edit): JsonBody<Edit>,
) -> Answer<Json<Count>> {
    let id: DeadId = edit.id.parse().map_err(|error| Problem::from(error).at("id"))?;
    let given = &edit.message;
    if given.partition.is_some() || given.after_ms.is_some() || given.at_ms.is_some() {
        let detail = "an edited dead letter stays in its partition and comes back at once: leave out partition, after_ms and at_ms";
        return Err(Problem::field("message", detail));
    }
    let trace = trace.for_messages().map(|trace| trace.to_string());
    let message = edit.message.into_message(trace.as_deref())?;
    let to = if edit.everyone { Replay::Everyone } else { Replay::Group };
    app.broker().dead_letters(&topic).edit_and_replay(&id, message, to).await?;
    tracing::info!(topic, "a dead letter was edited and replayed");
    Ok(Json(Count { count: 1 }))
}

/// The ids, or `None` for all that pass the filter.
fn picked(pick: &Pick) -> Answer<Option<Vec<DeadId>>> {
    match (pick.all, pick.ids.is_empty()) {
        (true, true) => Ok(None),
        (false, false) if pick.group.is_some() || pick.reason.is_some() => {
            Err(Problem::field("group", "group and reason choose among all: leave them out with ids"))
        }
        (false, false) => {
            within("ids", pick.ids.len() as u64, 1, MAX_IDS)?;
            let ids = pick.ids.iter().map(|id| id.parse()).collect::<firth::Result<_>>();
            ids.map(Some).map_err(|error| Problem::from(error).at("ids"))
        }
        _ => Err(Problem::field("ids", "give either ids or \"all\": true")),
    }
}
