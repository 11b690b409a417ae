//! `/v1/topics/{topic}/delayed/messages`: messages that wait for their time, listed, cancelled and
//! delivered before it.

use super::body::{Json, JsonBody, Path, Query, within};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{DelayedChanged, DelayedChanges, DelayedList, DelayedPick, DelayedShown};
use axum::extract::State;
use axum::http::StatusCode;
use firth::{DelayedId, ErrorKind, RecordId};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use utoipa::IntoParams;

/// The most ids of one request.
const MAX_IDS: u64 = 500;
/// How many of them are changed at a time.
const AT_ONCE: usize = 16;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DelayedQuery {
    /// Which partition; 0 unless set.
    #[param(minimum = 0, maximum = 4095)]
    partition: Option<u32>,
    /// Go on after this place: `next` of the answer before.
    #[param(pattern = "^[0-9]{1,18}-[0-9]{1,18}$")]
    after: Option<String>,
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 500)]
    max: Option<u64>,
}

/// Messages of one partition that wait for their time, the next one first
#[utoipa::path(get, path = "/v1/topics/{topic}/delayed/messages", tag = "topics", params(("topic" = String, Path), DelayedQuery),
    responses((status = 200, body = DelayedList)))]
pub(crate) async fn messages(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(asked): Query<DelayedQuery>,
) -> Answer<Json<DelayedList>> {
    let max = usize::try_from(within("max", asked.max.unwrap_or(100), 1, 500)?).unwrap_or(100);
    let after = asked.after.map_or(Ok(RecordId::ZERO), |id| id.parse())?;
    let partition = asked.partition.unwrap_or(0);
    let count = app.broker().topic(&topic).await?.config.partitions;
    if partition >= count {
        let detail = format!("there is no partition {partition}: topic {topic} has {count}");
        return Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail).at("partition"));
    }
    let found = app.broker().admin().delayed(&topic, partition, after, max).await?;
    let messages = found.messages.into_iter().map(DelayedShown::from).collect();
    Ok(Json(DelayedList { messages, next: found.next.map(|next| next.to_string()) }))
}

/// Cancels delayed messages: no group ever gets them
///
/// The answer says of each where it is now. One whose time had come before the call is `delivered`.
#[utoipa::path(post, path = "/v1/topics/{topic}/delayed/messages/cancel", tag = "topics", params(("topic" = String, Path)),
    request_body = DelayedPick, responses((status = 200, body = DelayedChanges)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(pick): JsonBody<DelayedPick>,
) -> Answer<Json<DelayedChanges>> {
    change(&app, &topic, &pick, true).await
}

/// Delivers delayed messages now, each once
///
/// The answer says of each where it is now. One that was cancelled before the call stays so.
#[utoipa::path(post, path = "/v1/topics/{topic}/delayed/messages/deliver", tag = "topics", params(("topic" = String, Path)),
    request_body = DelayedPick, responses((status = 200, body = DelayedChanges)))]
pub(crate) async fn deliver(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(pick): JsonBody<DelayedPick>,
) -> Answer<Json<DelayedChanges>> {
    change(&app, &topic, &pick, false).await
}

async fn change(app: &App, topic: &str, pick: &DelayedPick, cancels: bool) -> Answer<Json<DelayedChanges>> {
    within("ids", pick.ids.len() as u64, 1, MAX_IDS)?;
    let ids = pick.ids.iter().map(|id| id.parse()).collect::<firth::Result<Vec<DelayedId>>>();
    let ids = ids.map_err(|error| Problem::from(error).at("ids"))?;
    let count = app.broker().topic(topic).await?.config.partitions;
    if let Some(id) = ids.iter().find(|id| id.partition >= count) {
        let detail = format!("there is no partition {}: topic {topic} has {count}", id.partition);
        return Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail).at("ids"));
    }
    let admin = app.broker().admin();
    let change = |id: DelayedId| {
        let admin = &admin;
        async move {
            let changed = match cancels {
                true => admin.cancel_delayed(topic, id).await,
                false => admin.deliver_delayed(topic, id).await,
            };
            changed.map(|changed| DelayedChanged::new(id, changed))
        }
    };
    let messages: Vec<_> = stream::iter(ids).map(change).buffered(AT_ONCE).try_collect().await?;
    let count = messages.iter().filter(|message| message.changed).count();
    tracing::info!(topic, count, cancels, "delayed messages changed");
    Ok(Json(DelayedChanges { messages }))
}
