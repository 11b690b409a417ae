//! `/v1/topics/{topic}/dead`: dead letters, browsed, counted, replayed and deleted.

use super::body::{Json, JsonBody, Path, Query, bad};
use crate::app::App;
use crate::problem::Answer;
use crate::wire::{Count, Letter, Letters, Pick};
use axum::extract::State;
use firth::{DeadId, DeadLetters, Replay};
use serde::Deserialize;

/// The most letters of one page.
const MAX_PAGE: usize = 500;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    group: Option<String>,
    reason: Option<String>,
    after: Option<String>,
    max: Option<usize>,
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

pub(crate) async fn list(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(filter): Query<Filter>,
) -> Answer<Json<Letters>> {
    let after = filter.after.map(|id| id.parse::<DeadId>()).transpose()?;
    let max = filter.max.unwrap_or(100);
    if !(1..=MAX_PAGE).contains(&max) {
        return Err(bad(format!("max is {max}; give 1 to {MAX_PAGE}")));
    }
    let letters = view(&app, &topic, filter.group.as_deref(), filter.reason.as_deref());
    let page = letters.list(after.as_ref(), max).await?;
    let next = page.next.map(|id| id.to_string());
    Ok(Json(Letters { letters: page.letters.into_iter().map(Letter::from).collect(), next }))
}

pub(crate) async fn count(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(filter): Query<Filter>,
) -> Answer<Json<Count>> {
    let letters = view(&app, &topic, filter.group.as_deref(), filter.reason.as_deref());
    Ok(Json(Count { count: letters.count().await? }))
}

pub(crate) async fn replay(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(pick): JsonBody<Pick>,
) -> Answer<Json<Count>> {
    let to = if pick.everyone { Replay::Everyone } else { Replay::Group };
    let letters = view(&app, &topic, pick.group.as_deref(), pick.reason.as_deref());
    let count = match picked(&pick)? {
        Some(ids) => letters.replay(&ids, to).await?,
        None => letters.replay_all(to).await?,
    };
    tracing::info!(topic, count, "dead letters replayed");
    Ok(Json(Count { count }))
}

pub(crate) async fn delete(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(pick): JsonBody<Pick>,
) -> Answer<Json<Count>> {
    let letters = view(&app, &topic, pick.group.as_deref(), pick.reason.as_deref());
    let count = match picked(&pick)? {
        Some(ids) => letters.delete(&ids).await?,
        None => letters.delete_all().await?,
    };
    tracing::info!(topic, count, "dead letters deleted");
    Ok(Json(Count { count }))
}

/// The ids, or `None` for all that pass the filter.
fn picked(pick: &Pick) -> Answer<Option<Vec<DeadId>>> {
    match (pick.all, pick.ids.is_empty()) {
        (true, true) => Ok(None),
        (false, false) => Ok(Some(pick.ids.iter().map(|id| id.parse()).collect::<firth::Result<_>>()?)),
        _ => Err(bad("give either ids or \"all\": true")),
    }
}
