//! Server-sent events: the same messages, one direction. `id` is the position, so that a browser
//! resumes by itself.
//!
//! `GET /v1/events?subscriptions=[…]`, or for a single one `?collection=…&document=…&filter=…`;
//! `after` or the header `Last-Event-ID` resumes. The token is a header, or a ticket in the
//! address.

use super::{PART, address};
use crate::edge::Edge;
use crate::hub::{Session, Step};
use crate::limits::ConnectionPermit;
use crate::outbox::SlowPolicy;
use crate::position::Position;
use crate::protocol::{EdgeError, SubscriptionRequest};
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{Extensions, HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default)]
    subscriptions: Option<String>,
    #[serde(default)]
    collection: Option<String>,
    #[serde(default)]
    document: Option<String>,
    #[serde(default)]
    filter: Option<String>,
    #[serde(default)]
    presence: bool,
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    ticket: Option<String>,
    #[serde(default)]
    slow: Option<SlowPolicy>,
}

pub(super) async fn events(
    State(edge): State<Edge>,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, EdgeError> {
    let Query(asked) = asked.map_err(|error| EdgeError::invalid("query", error.body_text()))?;
    let permit = edge.enter(address(&extensions))?;
    let mut session = edge.admit_request(asked.ticket.as_deref(), &headers, asked.slow)?;
    let requests = asked.requests()?;
    let after = asked.after(&headers)?;
    session.prepare(&requests, after.as_ref()).await?;
    session.subscribe(&requests, after)?;
    let (chunks, out) = mpsc::channel::<Bytes>(1);
    tokio::spawn(drive(edge, session, chunks, permit));
    let stream = futures_util::stream::unfold(out, async |mut out| {
        out.recv().await.map(|chunk| (Ok::<_, Infallible>(chunk), out))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

impl Asked {
    fn requests(&self) -> Result<Vec<SubscriptionRequest>, EdgeError> {
        match (&self.subscriptions, &self.collection) {
            (Some(list), None) => serde_json::from_str(list).map_err(|error| {
                EdgeError::invalid("subscriptions", format!("`subscriptions` is a list in JSON: {error}"))
            }),
            (None, Some(collection)) => Ok(vec![SubscriptionRequest {
                document: self.document.clone(),
                filter: self.filter.clone(),
                presence: self.presence,
                ..SubscriptionRequest::collection(collection, collection)
            }]),
            _ => Err(EdgeError::invalid("subscriptions", "give either `subscriptions` or `collection`")),
        }
    }

    /// A browser that comes back by itself sends the header; it is newer than the address.
    fn after(&self, headers: &HeaderMap) -> Result<Option<Position>, EdgeError> {
        let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
        let text = header.filter(|text| !text.is_empty()).or(self.after.as_deref());
        text.map(|text| text.parse().map_err(|error| EdgeError::invalid("after", format!("{error}"))))
            .transpose()
    }
}

/// One task owns the session; the response takes its chunks.
async fn drive(edge: Edge, mut session: Session, chunks: mpsc::Sender<Bytes>, permit: ConnectionPermit) {
    let patience = edge.hub().config().write_within;
    let mut timer = std::pin::pin!(sleep_until(session.deadline(false)));
    loop {
        tokio::select! {
            () = session.ready() => {
                let step = session.take();
                if step.messages.is_empty() && step.close.is_none() {
                    continue;
                }
                let is_last = step.close.is_some();
                if !send(&chunks, chunk(&step), patience).await {
                    break;
                }
                session.written();
                if is_last {
                    break;
                }
            }
            () = chunks.closed() => break,
            () = edge.stop().cancelled() => break,
            () = &mut timer => {
                session.on_time(false);
                timer.as_mut().reset(session.deadline(false));
            }
        }
    }
    drop(permit);
}

/// Sends it in parts, each of which must be taken in time; false if one was not.
async fn send(chunks: &mpsc::Sender<Bytes>, mut bytes: Bytes, patience: Duration) -> bool {
    while !bytes.is_empty() {
        let part = bytes.split_to(bytes.len().min(PART));
        if !matches!(timeout(patience, chunks.send(part)).await, Ok(Ok(()))) {
            return false;
        }
    }
    true
}

fn chunk(step: &Step) -> Bytes {
    let size = step.messages.iter().map(|message| message.text().len() + 48).sum();
    let mut out = String::with_capacity(size);
    for message in &step.messages {
        if let Some(at) = &message.at {
            let _ = writeln!(out, "id: {at}");
        }
        out.push_str("data: ");
        out.push_str(message.text());
        out.push_str("\n\n");
    }
    if let Some(retry) = step.retry {
        let _ = write!(out, "retry: {}\n\n", retry.as_millis());
    }
    out.into()
}
