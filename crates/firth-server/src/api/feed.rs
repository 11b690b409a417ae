//! `/v1/events`: what happens in the system, for dashboards.

use super::body::{Query, within};
use super::stream::{ALIVE, AsyncNext, Form, event};
use crate::app::{App, StreamPermit};
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::wire::{MAX_MS, SystemEvent};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only events of this topic.
    topic: Option<String>,
    /// End after this long.
    #[param(maximum = 3_155_760_000_000_u64)]
    for_ms: Option<u64>,
}

struct EventStream {
    events: Receiver<SystemEvent>,
    caller: Caller,
    topic: Option<String>,
    form: Form,
    until: Option<Instant>,
    closing: CancellationToken,
    _permit: StreamPermit,
}

impl EventStream {
    fn wants(&self, event: &SystemEvent) -> bool {
        event.topic().is_none_or(|topic| {
            self.caller.covers(topic) && self.topic.as_deref().is_none_or(|wanted| wanted == topic)
        })
    }
}

struct NextEvent;

impl AsyncNext<EventStream> for NextEvent {
    async fn call(&self, state: &mut EventStream) -> Option<Bytes> {
        let alive = Instant::now() + ALIVE;
        loop {
            let until = state.until;
            let ended = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let heard = tokio::select! {
                heard = state.events.recv() => heard,
                () = ended => return None,
                () = state.closing.cancelled() => return None,
                () = tokio::time::sleep_until(alive) => return Some(state.form.alive()),
            };
            match heard {
                Ok(heard) if state.wants(&heard) => return Some(event(state.form, &heard)),
                Ok(_) => {}
                Err(RecvError::Lagged(count)) => {
                    return Some(event(state.form, &SystemEvent::Missed { count }));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

/// What happens: topics, groups, members, dead letters, lag and throughput, about once a second
#[utoipa::path(get, path = "/v1/events", tag = "system",
    params(EventQuery, ("Accept" = Option<String>, Header, description = "text/event-stream or application/x-ndjson")),
    responses((status = 200, description = "Events as they happen",
        content((SystemEvent = "text/event-stream"), (SystemEvent = "application/x-ndjson"))),
        (status = 406, body = Problem, description = "Neither form is accepted")))]
pub(crate) async fn events(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<EventQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let form = Form::accepted(&headers)?;
    let for_ms = which.for_ms.map(|ms| within("for_ms", ms, 0, MAX_MS)).transpose()?;
    let permit = app.permit()?;
    let listening = EventStream {
        events: app.events().listen().await,
        caller,
        topic: which.topic,
        form,
        until: for_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
        closing: app.closing().clone(),
        _permit: permit,
    };
    Ok(form.answer(listening, NextEvent))
}
