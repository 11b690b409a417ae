//! `/v1/topics/{topic}/dead`: dead letters, browsed, counted, replayed, edited and deleted.

use super::body::{Json, JsonBody, Path, Query, within};
use super::stream::{ALIVE, AsyncNext, Form};
use crate::app::{App, StreamPermit};
use crate::problem::{Answer, Problem};
use crate::telemetry::RequestSpan;
use crate::wire::{Count, Edit, Letter, Letters, MAX_MS, Pick};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use firth::{DeadId, DeadLetters, Follow, Replay};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

/// The most letters of one page.
const MAX_PAGE: u64 = 500;
/// The most ids of one request.
const MAX_IDS: u64 = 10_000;
const MAX_PARTITION: u64 = 4095;

/// A query with what all filters of dead letters have, and more. (Flattened structs would take
/// unknown fields.)
macro_rules! filter {
    ($name:ident { $($(#[$about:meta])* $field:ident: $kind:ty,)* }) => {
        #[derive(Deserialize, IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $name {
            /// Only those that this group gave up.
            group: Option<String>,
            /// Only those whose reason contains this text.
            reason: Option<String>,
            /// Only those of this partition.
            #[param(maximum = 4095)]
            partition: Option<u32>,
            /// Only those with this key.
            key: Option<String>,
            /// Only those that died at least so long ago.
            #[param(maximum = 3_155_760_000_000_u64)]
            older_than_ms: Option<u64>,
            $($(#[$about])* $field: $kind,)*
        }
    };
}

filter!(Filter {});

filter!(Wanted {
    /// Go on after this one.
    #[param(pattern = "^[A-Za-z0-9_-]{1,64}/[0-9]{1,4}/[0-9]{1,18}-[0-9]{1,18}$")]
    after: Option<String>,
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 500)]
    max: Option<u64>,
});

filter!(Followed {
    /// End after this long.
    #[param(maximum = 3_155_760_000_000_u64)]
    for_ms: Option<u64>,
});

/// Which letters are meant.
#[derive(Default)]
struct Chosen<'a> {
    group: Option<&'a str>,
    reason: Option<&'a str>,
    partition: Option<u32>,
    key: Option<&'a str>,
    older_than_ms: Option<u64>,
}

impl Chosen<'_> {
    fn view(&self, app: &App, topic: &str) -> Answer<DeadLetters> {
        let mut letters = app.broker().dead_letters(topic);
        if let Some(group) = self.group {
            letters = letters.group(group);
        }
        if let Some(reason) = self.reason {
            letters = letters.reason(reason);
        }
        if let Some(partition) = self.partition {
            within("partition", partition.into(), 0, MAX_PARTITION)?;
            letters = letters.partition(partition);
        }
        if let Some(key) = self.key {
            letters = letters.key(key.to_owned());
        }
        if let Some(age) = self.older_than_ms {
            letters = letters.older_than(Duration::from_millis(within("older_than_ms", age, 0, MAX_MS)?));
        }
        Ok(letters)
    }
}

macro_rules! chosen {
    ($from:expr) => {
        Chosen {
            group: $from.group.as_deref(),
            reason: $from.reason.as_deref(),
            partition: $from.partition,
            key: $from.key.as_deref(),
            older_than_ms: $from.older_than_ms,
        }
    };
}

/// Dead letters of a topic, page by page
#[utoipa::path(get, path = "/v1/topics/{topic}/dead", tag = "dead letters", params(("topic" = String, Path), Wanted),
    responses((status = 200, body = Letters)))]
pub(crate) async fn list(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<Letters>> {
    let after = wanted.after.as_ref().map(|id| id.parse::<DeadId>()).transpose();
    let after = after.map_err(|error| Problem::from(error).at("after"))?;
    let max = usize::try_from(within("max", wanted.max.unwrap_or(100), 1, MAX_PAGE)?).unwrap_or(100);
    let letters = chosen!(wanted).view(&app, &topic)?;
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
    let letters = chosen!(filter).view(&app, &topic)?;
    Ok(Json(Count { count: letters.count().await? }))
}

struct LetterStream {
    letters: Follow,
    form: Form,
    until: Option<Instant>,
    closing: CancellationToken,
    is_over: bool,
    _permit: StreamPermit,
}

struct NextLetter;

impl AsyncNext<LetterStream> for NextLetter {
    async fn call(&self, state: &mut LetterStream) -> Option<Bytes> {
        let left =
            state.until.map_or(ALIVE, |until| until.saturating_duration_since(Instant::now()).min(ALIVE));
        if state.is_over || left.is_zero() {
            return None;
        }
        tokio::select! {
            biased;
            next = state.letters.next() => match next {
                Ok(letter) => Some(state.form.entry("letter", &Letter::from(letter))),
                Err(error) => {
                    state.is_over = true;
                    Some(state.form.entry("problem", &Problem::from(error)))
                }
            },
            () = state.closing.cancelled() => None,
            () = tokio::time::sleep(left) => Some(state.form.alive()),
        }
    }
}

/// Dead letters as they come, those that are there first, as server-sent events or one JSON object
/// per line
///
/// Each letter comes once per stream. For programs that delete or replay what they get: 100 000
/// that are left lying end the stream.
#[utoipa::path(get, path = "/v1/topics/{topic}/dead/stream", tag = "dead letters",
    params(("topic" = String, Path), Followed,
        ("Accept" = Option<String>, Header, description = "text/event-stream or application/x-ndjson")),
    responses((status = 200, description = "Events `letter` and `problem`, or letters one per line",
        content((Letter = "text/event-stream"), (Letter = "application/x-ndjson"))),
        (status = 406, body = Problem, description = "Neither form is accepted")))]
pub(crate) async fn follow(
    State(app): State<App>,
    Path(topic): Path<String>,
    Query(wanted): Query<Followed>,
    headers: HeaderMap,
) -> Answer<Response> {
    let form = Form::accepted(&headers)?;
    let for_ms = wanted.for_ms.map(|ms| within("for_ms", ms, 0, MAX_MS)).transpose()?;
    let letters = chosen!(wanted).view(&app, &topic)?;
    app.broker().topic(&topic).await?;
    // A wrong name of a group is told before the answer begins.
    letters.list(None, 1).await?;
    let following = LetterStream {
        letters: letters.follow(),
        form,
        until: for_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
        closing: app.closing().clone(),
        is_over: false,
        _permit: app.permit()?,
    };
    Ok(form.answer(following, NextLetter))
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
    let letters = chosen!(pick).view(&app, &topic)?;
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
    let letters = chosen!(pick).view(&app, &topic)?;
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
    Extension(trace): Extension<RequestSpan>,
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
        (false, false) if pick.has_filter() => Err(Problem::field(
            "group",
            "group, reason, partition, key and older_than_ms choose among all: leave them out with ids",
        )),
        (false, false) => {
            within("ids", pick.ids.len() as u64, 1, MAX_IDS)?;
            let ids = pick.ids.iter().map(|id| id.parse()).collect::<firth::Result<_>>();
            ids.map(Some).map_err(|error| Problem::from(error).at("ids"))
        }
        _ => Err(Problem::field("ids", "give either ids or \"all\": true")),
    }
}
