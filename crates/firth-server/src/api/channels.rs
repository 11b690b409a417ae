//! `/v1/channels/{channel}`: live messages over the engine's bus. At most once, kept nowhere, but
//! never a silent gap.

use super::body::{JsonBody, Path, Query, within};
use super::stream::{ALIVE, AsyncNext, Form};
use crate::app::{App, StreamPermit};
use crate::problem::{Answer, Problem};
use crate::wire::{Live, MAX_MS, Published};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use firth::catalog::{ChannelName, Listener, Signal};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

/// Publishes on a live channel, to its current subscribers
#[utoipa::path(post, path = "/v1/channels/{channel}", tag = "channels", params(("channel" = String, Path)),
    request_body = Published, responses((status = 204, description = "Published")))]
pub(crate) async fn publish(
    State(app): State<App>,
    Path(channel): Path<String>,
    JsonBody(message): JsonBody<Published>,
) -> Answer<StatusCode> {
    let channel = ChannelName::new(&channel).map_err(|error| Problem::from(error).at("channel"))?;
    let payload = message.into_payload()?;
    app.broker().bus().publish(&channel, payload).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HowLong {
    /// End after this long.
    #[param(maximum = 3_155_760_000_000_u64)]
    for_ms: Option<u64>,
}

struct Listening {
    heard: Listener,
    form: Form,
    until: Option<Instant>,
    closing: CancellationToken,
    _permit: StreamPermit,
}

struct NextMessage;

impl AsyncNext<Listening> for NextMessage {
    async fn call(&self, state: &mut Listening) -> Option<Bytes> {
        let until = state.until;
        let ended = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let signal = tokio::select! {
            signal = state.heard.next() => signal.ok()?,
            () = ended => return None,
            () = state.closing.cancelled() => return None,
            () = tokio::time::sleep(ALIVE) => return Some(state.form.alive()),
        };
        Some(match signal {
            Signal::Message(payload) => state.form.entry("message", &Live::message(&payload)),
            Signal::Gap => state.form.entry("gap", &Live::gap()),
        })
    }
}

/// Messages of a live channel from now on, until either side ends it; nothing is missed once the
/// answer has begun, or a gap says so
#[utoipa::path(get, path = "/v1/channels/{channel}", tag = "channels",
    params(("channel" = String, Path), HowLong, ("Accept" = Option<String>, Header, description = "text/event-stream or application/x-ndjson")),
    responses((status = 200, description = "Messages as they are published",
        content((Live = "text/event-stream"), (Live = "application/x-ndjson"))),
        (status = 406, body = Problem, description = "Neither form is accepted")))]
pub(crate) async fn subscribe(
    State(app): State<App>,
    Path(channel): Path<String>,
    Query(how): Query<HowLong>,
    headers: HeaderMap,
) -> Answer<Response> {
    let form = Form::accepted(&headers)?;
    let channel = ChannelName::new(&channel).map_err(|error| Problem::from(error).at("channel"))?;
    let for_ms = how.for_ms.map(|ms| within("for_ms", ms, 0, MAX_MS)).transpose()?;
    let permit = app.permit()?;
    let listening = Listening {
        heard: app.broker().bus().subscribe(&channel).await?,
        form,
        until: for_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
        closing: app.closing().clone(),
        _permit: permit,
    };
    Ok(form.answer(listening, NextMessage))
}
