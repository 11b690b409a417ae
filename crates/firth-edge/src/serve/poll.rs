//! Long poll, for clients behind proxies that let nothing else through. Each poll says all: what it
//! wants and where it stands; nothing is kept for it between two polls but the journal.

use super::{address, json};
use crate::edge::Edge;
use crate::hub::Session;
use crate::outbox::SlowPolicy;
use crate::position::Position;
use crate::protocol::{EdgeError, SubscriptionRequest};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap};
use axum::response::Response;
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// An answer that is this long is sent; the next poll brings the rest.
const ANSWER: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    subscriptions: Vec<SubscriptionRequest>,
    #[serde(default)]
    after: Option<Position>,
    #[serde(default)]
    wait_ms: Option<u64>,
    #[serde(default)]
    slow: Option<SlowPolicy>,
}

pub(super) async fn poll(
    State(edge): State<Edge>,
    headers: HeaderMap,
    extensions: Extensions,
    body: Bytes,
) -> Result<Response, EdgeError> {
    let asked: Asked = serde_json::from_slice(&body)
        .map_err(|error| EdgeError::invalid("message", format!("this is not a poll: {error}")))?;
    if asked.subscriptions.iter().any(|request| request.presence) {
        return Err(EdgeError::invalid(
            "presence",
            "who polls is not present: use a WebSocket or server-sent events",
        ));
    }
    let _pass = edge.enter(address(&extensions))?;
    let mut session = edge.admit_request(None, &headers, asked.slow)?;
    session.prepare(&asked.subscriptions, asked.after.as_ref()).await?;
    session.subscribe(&asked.subscriptions, asked.after.clone())?;
    let longest = edge.hub().config().poll_wait;
    // Without a position there is nothing to wait for: the answer says where the client begins.
    let wait = asked.after.map_or(Duration::ZERO, |_| asked.wait_ms.map_or(longest, Duration::from_millis));
    let (messages, at) = collect(&mut session, Instant::now() + wait.min(longest)).await;
    session.written();
    Ok(json(format!(r#"{{"at":"{at}","messages":[{messages}]}}"#)))
}

/// Waits for the first message, takes what else is there, and says where the client stands then.
async fn collect(session: &mut Session, until: Instant) -> (String, Position) {
    let mut messages = String::new();
    loop {
        // Everything up to here is queued already, and is taken below.
        let mut at = session.head();
        let mut last = at.clone();
        loop {
            let before = messages.len();
            let step = session.take();
            for message in step.messages {
                let Some(stands) = message.at.clone().filter(|_| concerns(message.text())) else {
                    continue;
                };
                if !messages.is_empty() {
                    messages.push(',');
                }
                messages.push_str(message.text());
                if stands.offsets.order() > at.offsets.order() {
                    at.clone_from(&stands);
                }
                last = stands;
            }
            if messages.len() > ANSWER {
                return (messages, last);
            }
            if step.close.is_some() {
                return (messages, at);
            }
            if session.is_idle() && messages.len() == before {
                break;
            }
        }
        if !messages.is_empty() || timeout_at(until, session.ready()).await.is_err() {
            return (messages, at);
        }
    }
}

/// Answers and heartbeats do not concern a poll.
fn concerns(text: &str) -> bool {
    [r#"{"type":"event""#, r#"{"type":"gap""#, r#"{"type":"resync-required""#]
        .iter()
        .any(|kind| text.starts_with(kind))
}
