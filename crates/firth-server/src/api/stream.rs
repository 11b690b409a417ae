//! Deliveries as a stream: server-sent events, or one JSON object per line.
//!
//! The client settles by handle over `settle`, on another connection. When this connection ends,
//! unsettled deliveries go back at once, without costing an attempt. While it stays open, a lease
//! bounds how long the client may take. A quiet stream sends a sign of life every [`ALIVE`].

use super::body::{Path, Query, within};
use super::client::Asker;
use super::consume::{MAX_DELIVERIES, delivered, lease};
use crate::app::{App, StreamPermit};
use crate::delivery_leases::DeliveryStream;
use crate::problem::{Answer, Problem};
use crate::wire::{MAX_COUNT, MAX_MS, SystemEvent};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use firth::ErrorKind;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::Instant;
use utoipa::IntoParams;

/// How often a quiet stream shows that it lives.
pub(super) const ALIVE: Duration = Duration::from_secs(10);
const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Events,
    Lines,
}

impl Form {
    /// What the client accepts; events unless it says otherwise.
    pub(super) fn accepted(headers: &HeaderMap) -> Answer<Self> {
        let Some(accept) = headers.get(header::ACCEPT) else { return Ok(Self::Events) };
        let accept = accept.to_str().unwrap_or_default().to_ascii_lowercase();
        let mut kinds = accept.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
        kinds
            .find_map(|kind| match kind {
                EVENTS | "text/*" | "*/*" | "" => Some(Self::Events),
                LINES | "application/*" | "application/json" => Some(Self::Lines),
                _ => None,
            })
            .ok_or_else(|| {
                let detail = format!("a stream is {EVENTS} or {LINES}: send one of them as Accept");
                Problem::http(StatusCode::NOT_ACCEPTABLE, ErrorKind::Invalid, detail).at("Accept")
            })
    }

    fn media(self) -> HeaderValue {
        HeaderValue::from_static(if self == Self::Events { EVENTS } else { LINES })
    }

    /// One entry.
    pub(super) fn entry(self, name: &str, data: &impl Serialize) -> Bytes {
        let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
        match self {
            Self::Events => format!("event: {name}\ndata: {data}\n\n"),
            Self::Lines => format!("{data}\n"),
        }
        .into()
    }

    /// A sign of life.
    pub(super) fn alive(self) -> Bytes {
        Bytes::from_static(if self == Self::Events { b": alive\n\n" } else { b"\n" })
    }

    /// Written at once, so that the client knows that it is heard.
    pub(super) fn hello(self) -> Bytes {
        Bytes::from_static(if self == Self::Events { b"retry: 1000\n: hello\n\n" } else { b"\n" })
    }

    /// An answer that goes on as long as `next` has something.
    pub(super) fn answer<S: Send + 'static>(self, state: S, next: impl AsyncNext<S>) -> Response {
        let hello = futures_util::stream::once(std::future::ready(Ok::<_, Infallible>(self.hello())));
        let rest = futures_util::stream::unfold((state, next), |(mut state, next)| async move {
            let bytes = next.call(&mut state).await?;
            Some((Ok(bytes), (state, next)))
        });
        let body = Body::from_stream(futures_util::StreamExt::chain(hello, rest));
        let headers = [
            (header::CONTENT_TYPE, self.media()),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        (headers, body).into_response()
    }
}

/// The next piece of a stream; nothing at its end.
pub(super) trait AsyncNext<S>: Send + 'static {
    fn call(&self, state: &mut S) -> impl Future<Output = Option<Bytes>> + Send;
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct How {
    /// At most this many unsettled deliveries of this stream at a time; 16 unless set.
    #[param(minimum = 1, maximum = 500)]
    max: Option<u64>,
    /// How long each may take; 30 s unless set.
    #[param(minimum = 100, maximum = 43_200_000)]
    lease_ms: Option<u64>,
    /// End after this many deliveries, once they are settled.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991_u64)]
    limit: Option<u64>,
    /// End after this long, once everything is settled.
    #[param(maximum = 3_155_760_000_000_u64)]
    for_ms: Option<u64>,
}

struct Consuming {
    stream: DeliveryStream,
    form: Form,
    lease: Duration,
    left: u64,
    until: Option<Instant>,
    over: bool,
    _permit: StreamPermit,
}

struct NextDelivery;

impl AsyncNext<Consuming> for NextDelivery {
    async fn call(&self, state: &mut Consuming) -> Option<Bytes> {
        if state.over {
            return None;
        }
        let form = state.form;
        let lease = state.lease;
        let until = state.until;
        if state.left == 0 || until.is_some_and(|until| Instant::now() >= until) {
            // Nothing more comes; what is out may still be settled.
            return tokio::select! {
                () = state.stream.drained() => None,
                () = tokio::time::sleep(ALIVE) => Some(form.alive()),
            };
        }
        let next = state.stream.next(|handle, delivery| delivered(handle, delivery, lease));
        let pause = until.map_or(ALIVE, |until| until.saturating_duration_since(Instant::now()).min(ALIVE));
        let next = tokio::select! {
            biased;
            next = next => next,
            () = tokio::time::sleep(pause) => return Some(form.alive()),
        };
        match next {
            Ok(Some(delivered)) => {
                state.left -= 1;
                Some(form.entry("delivery", &delivered))
            }
            Ok(None) => {
                state.over = true;
                (form == Form::Events).then(|| {
                    form.entry(
                        "end",
                        &serde_json::json!({ "why": "the server left the group, or a lease ran out" }),
                    )
                })
            }
            Err(error) => {
                state.over = true;
                Some(form.entry("problem", &Problem::from(error)))
            }
        }
    }
}

/// Deliveries as they come, as server-sent events or one JSON object per line
///
/// Each entry is a delivery; settle it by its handle. When this connection ends, what is not
/// settled goes back without costing an attempt.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/stream", tag = "consume",
    params(("topic" = String, Path), ("group" = String, Path), How,
        ("Firth-Client" = Option<String>, Header, description = "What the client calls itself, for operators"),
        ("Accept" = Option<String>, Header, description = "text/event-stream or application/x-ndjson")),
    responses((status = 200, description = "Events `delivery`, `end` and `problem`, or deliveries one per line",
        content((crate::wire::Delivered = "text/event-stream"), (crate::wire::Delivered = "application/x-ndjson"))),
        (status = 406, body = Problem, description = "Neither form is accepted")))]
pub(crate) async fn consume(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    Query(how): Query<How>,
    asker: Asker,
    headers: HeaderMap,
) -> Answer<Response> {
    let form = Form::accepted(&headers)?;
    let max = within("max", how.max.unwrap_or(16), 1, MAX_DELIVERIES)?;
    let left = within("limit", how.limit.unwrap_or(MAX_COUNT), 1, MAX_COUNT)?;
    let for_ms = how.for_ms.map(|ms| within("for_ms", ms, 0, MAX_MS)).transpose()?;
    let lease = lease(how.lease_ms)?;
    let permit = app.permit()?;
    let bounds = (usize::try_from(max).unwrap_or(1), lease);
    let stream = app.delivery_leases().stream((&topic, &group), asker.by("stream"), bounds).await?;
    let until = for_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    Ok(form
        .answer(Consuming { stream, form, lease, left, until, over: false, _permit: permit }, NextDelivery))
}

/// Used by the feed of events, which is written in the same forms.
pub(super) fn event(form: Form, event: &SystemEvent) -> Bytes {
    form.entry(event.name(), event)
}
