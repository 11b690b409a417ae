//! WebSocket: one task owns the socket and the session. The first message says who the client is.

use super::address;
use crate::edge::{Edge, bearer};
use crate::hub::{Session, Step};
use crate::limits::Pass;
use crate::protocol::client::{Auth, ClientMessage};
use crate::protocol::{Code, Refusal, VERSION, server};
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::{Extensions, HeaderMap};
use axum::response::Response;
use futures_util::SinkExt as _;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// What one read of a socket takes. Clients say little.
const READ_BUFFER: usize = 1 << 10;
/// What one write to a socket carries, unless a single message is longer.
const WRITE_BUFFER: usize = 4 << 10;

/// Close codes.
const POLICY: u16 = 1008;
const TOO_BIG: u16 = 1009;
const UNAUTHORIZED: u16 = 4401;
const RESTART: u16 = 1012;

/// The socket is of no use any more.
struct Broken;

pub(super) async fn upgrade(
    State(edge): State<Edge>,
    headers: HeaderMap,
    extensions: Extensions,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Refusal> {
    let pass = edge.enter(address(&extensions))?;
    let token = bearer(&headers).map(str::to_owned);
    let limit = edge.hub().config().limits.message_bytes;
    let upgrade = upgrade
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(limit)
        .max_frame_size(limit);
    Ok(upgrade.on_upgrade(move |socket| drive(edge, socket, token, pass)))
}

async fn drive(edge: Edge, mut socket: WebSocket, token: Option<String>, pass: Pass) {
    let patience = edge.hub().config().write_within;
    let stop = edge.stop().clone();
    tokio::select! {
        () = stop.cancelled() => {}
        // The state of a whole connection lives in here; boxed, so that it does not lie twice in the task that greets.
        () = Box::pin(async move {
            if let Some(session) = greet(&edge, &mut socket, token).await {
                converse(&edge, socket, session, patience).await;
            }
            drop(pass);
        }) => {}
    }
}

/// Waits for the client to say who it is.
async fn greet(edge: &Edge, socket: &mut WebSocket, token: Option<String>) -> Option<Session> {
    let config = *edge.hub().config();
    let admitted = match timeout(config.auth_within, first_words(socket)).await {
        Ok(Some(Ok(auth))) => edge.admit(auth.token.or(token).as_deref(), auth.slow),
        Ok(Some(Err(refusal))) => Err(refusal),
        Ok(None) => return None,
        Err(_) => {
            let message = format!("say `auth` within {} seconds", config.auth_within.as_secs());
            Err(Refusal::new(Code::Unauthorized, message))
        }
    };
    match admitted {
        Ok(session) => Some(session),
        Err(refusal) => {
            crate::metrics::refused(refusal.code);
            let (code, reason) = match refusal.code {
                Code::Unavailable => (RESTART, "the gateway restarts"),
                Code::Unauthorized => (UNAUTHORIZED, "not authorized"),
                _ => (POLICY, "refused"),
            };
            let said = Message::Text(server::error(&refusal, None).to_string().into());
            let _ = timeout(config.write_within, async {
                let _ = socket.send(said).await;
                let _ = socket.send(close(code, reason)).await;
            })
            .await;
            None
        }
    }
}

/// The first message, which must be `auth`; `None` if the client leaves.
async fn first_words(socket: &mut WebSocket) -> Option<Result<Auth, Refusal>> {
    loop {
        return match socket.recv().await? {
            Ok(Message::Text(text)) => Some(match ClientMessage::parse(&text) {
                Ok(ClientMessage::Auth(auth)) if auth.version == VERSION => Ok(auth),
                Ok(ClientMessage::Auth(_)) => {
                    let message = "this gateway speaks version 1 only";
                    Err(Refusal { limit: Some(u64::from(VERSION)), ..Refusal::invalid("version", message) })
                }
                Ok(_) => Err(Refusal::new(Code::Unauthorized, "the first message must be `auth`")),
                Err(refusal) => Err(refusal),
            }),
            Ok(Message::Ping(_) | Message::Pong(_)) => continue,
            Ok(Message::Binary(_)) => Some(Err(not_text())),
            Ok(Message::Close(_)) | Err(_) => None,
        };
    }
}

async fn converse(edge: &Edge, mut socket: WebSocket, mut session: Session, patience: Duration) {
    let mut timer = std::pin::pin!(sleep_until(session.deadline(true)));
    loop {
        tokio::select! {
            () = session.ready() => {
                let step = session.take();
                if step.messages.is_empty() && step.close.is_none() {
                    continue;
                }
                let close = step.close;
                let Ok(()) = write(&mut socket, step, patience).await else { return };
                session.written();
                if close.is_some() {
                    return goodbye(socket, patience).await;
                }
            }
            heard = socket.recv() => {
                let Ok(()) = hear(edge, &mut socket, &mut session, heard).await else { return };
                // A renewed token moves the deadline.
                if session.deadline(true) < timer.deadline() {
                    timer.as_mut().reset(session.deadline(true));
                }
            }
            () = &mut timer => {
                if session.on_time(true) {
                    // Answered by every browser by itself, so that a page need not.
                    let ping = socket.feed(Message::Ping(axum::body::Bytes::new()));
                    if !matches!(timeout(patience, ping).await, Ok(Ok(()))) {
                        return;
                    }
                }
                timer.as_mut().reset(session.deadline(true));
            }
        }
    }
}

/// All messages of a step, in as few writes as they take.
async fn write(socket: &mut WebSocket, step: Step, patience: Duration) -> Result<(), Broken> {
    let all = async {
        for message in step.messages {
            socket.feed(Message::Text(message.text.into())).await?;
        }
        if let Some((code, reason)) = step.close {
            socket.feed(close(code, reason)).await?;
        }
        socket.flush().await
    };
    match timeout(patience, all).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Broken),
    }
}

async fn hear(
    edge: &Edge,
    socket: &mut WebSocket,
    session: &mut Session,
    heard: Option<Result<Message, axum::Error>>,
) -> Result<(), Broken> {
    match heard {
        Some(Ok(Message::Text(text))) => {
            if let Err(refusal) = session.heard() {
                session.refuse(&refusal, None);
                session.end(POLICY, "too many messages");
                return Ok(());
            }
            match ClientMessage::parse(&text) {
                Ok(ClientMessage::Auth(auth)) => {
                    let renewed = edge.check(auth.token.as_deref()).and_then(|grant| session.regrant(grant));
                    if let Err(refusal) = renewed {
                        session.refuse(&refusal, None);
                    }
                }
                Ok(message) => session.hear(&message),
                Err(refusal) => session.refuse(&refusal, None),
            }
            Ok(())
        }
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {
            session.alive();
            Ok(())
        }
        Some(Ok(Message::Binary(_))) => {
            session.refuse(&not_text(), None);
            session.heard().map_err(|_| Broken)
        }
        Some(Err(error)) if is_too_big(&error) => {
            let patience = edge.hub().config().write_within;
            let _ = timeout(patience, socket.send(close(TOO_BIG, "message too large"))).await;
            Err(Broken)
        }
        Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Broken),
    }
}

/// Waits for the client's close, so that what was written is not thrown away by a reset.
async fn goodbye(mut socket: WebSocket, patience: Duration) {
    let end = Instant::now() + patience.min(Duration::from_secs(2));
    let _ = tokio::time::timeout_at(end, async { while let Some(Ok(_)) = socket.recv().await {} }).await;
}

fn is_too_big(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.to_string().contains("too long") || cause.to_string().contains("too large") {
            return true;
        }
        source = cause.source();
    }
    false
}

fn close(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code, reason: reason.into() }))
}

fn not_text() -> Refusal {
    Refusal::invalid("message", "messages are text, not binary")
}
