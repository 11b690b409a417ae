//! WebSocket: one task owns the socket and the session. The first message says who the client is.
//!
//! [`tungstenite`](tokio_tungstenite::tungstenite) reads, and makes control frames. Messages go
//! past it: they are frames already, shared with other sockets, and everything that waits for a
//! socket goes out in one write. The hub's writers may write events directly (invariant 1), so this
//! task takes from the session before it writes, and tells it when all is written.

mod frames;
mod upgrade;
mod wire;

use super::PART;
use crate::edge::Edge;
use crate::hub::{Session, WriteOp, WriteOps};
use crate::limits::ConnectionPermit;
use crate::packet::Packet;
use crate::protocol::client::{Auth, ClientMessage};
use crate::protocol::{Code, EdgeError, VERSION, server};
use bytes::Buf as _;
use frames::Frames;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Bytes, Message};
pub(super) use upgrade::upgrade;
use wire::Wire;

type Socket = WebSocketStream<Wire>;

/// What one read of a socket takes. Clients say little.
const READ_BUFFER: usize = 1 << 10;

/// Frames that may come before a client says who it is.
const FIRST_FRAMES: usize = 32;

/// Close codes.
const POLICY: u16 = 1008;
const TOO_BIG: u16 = 1009;
const UNAUTHORIZED: u16 = 4401;
const RESTART: u16 = 1012;

/// The socket is of no use any more.
struct Broken;

/// Serves a connection that has just become a WebSocket.
async fn run(edge: Edge, upgraded: Upgraded, token: Option<String>, permit: ConnectionPermit) {
    let patience = edge.hub().config().write_within;
    let limit = edge.hub().config().limits.message_bytes;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    let (wire, read) = Wire::new(upgraded);
    let mut socket = WebSocketStream::from_partially_read(wire, read, Role::Server, Some(config)).await;
    let stop = edge.stop().clone();
    tokio::select! {
        () = stop.cancelled() => {}
        // The state of a whole connection lives in here; boxed, so that it does not lie twice in
        // the task that greets.
        () = Box::pin(async move {
            match greet(&edge, &mut socket, token).await {
                Some(session) => converse(&edge, socket, session, patience).await,
                None => goodbye(socket, patience).await,
            }
            drop(permit);
        }) => {}
    }
}

/// Waits for the client to say who it is.
async fn greet(edge: &Edge, socket: &mut Socket, token: Option<String>) -> Option<Session> {
    let config = *edge.hub().config();
    let admitted = match timeout(config.auth_within, first_words(socket, config.write_within)).await {
        Ok(Some(Ok(auth))) => edge.admit(auth.token.or(token).as_deref(), auth.slow),
        Ok(Some(Err(error))) => Err(error),
        Ok(None) => return None,
        Err(_) => {
            let message = format!("say `auth` within {} seconds", config.auth_within.as_secs());
            Err(EdgeError::new(Code::Unauthorized, message))
        }
    };
    match admitted {
        Ok(session) => Some(session),
        Err(error) => {
            crate::metrics::refused(error.code);
            let (code, reason) = match error.code {
                Code::Unavailable => (RESTART, "the gateway restarts"),
                Code::Unauthorized => (UNAUTHORIZED, "not authorized"),
                _ => (POLICY, "refused"),
            };
            let _ = socket.send(close(code, reason)).await;
            let error = Packet::new(&[&server::error(&error, None)]);
            let said = [error.as_ref(), &socket.get_mut().said().unwrap_or_default()];
            let _ = write(socket, &said, config.write_within).await;
            None
        }
    }
}

/// The first message, which must be `auth`; `None` if the client leaves.
async fn first_words(socket: &mut Socket, patience: Duration) -> Option<Result<Auth, EdgeError>> {
    for _ in 0..FIRST_FRAMES {
        return match socket.next().await? {
            Ok(Message::Text(text)) => Some(match ClientMessage::parse(&text) {
                Ok(ClientMessage::Auth(auth)) if auth.version == VERSION => Ok(auth),
                Ok(ClientMessage::Auth(_)) => {
                    let message = "this gateway speaks version 1 only";
                    Err(EdgeError {
                        limit: Some(u64::from(VERSION)),
                        ..EdgeError::invalid("version", message)
                    })
                }
                Ok(_) => Err(EdgeError::new(Code::Unauthorized, "the first message must be `auth`")),
                Err(error) => Err(error),
            }),
            Ok(Message::Ping(_)) => {
                let _ = socket.flush().await;
                let pong = socket.get_mut().said();
                write(socket, pong.as_slice(), patience).await.ok()?;
                continue;
            }
            Ok(Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Binary(_)) => Some(Err(not_text())),
            Ok(Message::Close(_)) | Err(_) => None,
        };
    }
    Some(Err(EdgeError::new(Code::Rate, "the first message must be `auth`, not one ping after another")))
}

async fn converse(edge: &Edge, mut socket: Socket, mut session: Session, patience: Duration) {
    if let Some(raw) = socket.get_ref().raw_socket() {
        session.attach(raw);
    }
    let mut timer = std::pin::pin!(sleep_until(session.deadline(true)));
    loop {
        tokio::select! {
            () = session.ready() => {
                match speak(&mut socket, &mut session, patience).await {
                    Ok(Told::More) => {}
                    Ok(Told::All) => return goodbye(socket, patience).await,
                    Err(Broken) => return,
                }
            }
            heard = socket.next() => {
                let Ok(()) = hear(edge, &mut socket, &mut session, heard).await else { return };
                // A renewed token moves the deadline.
                if session.deadline(true) < timer.deadline() {
                    timer.as_mut().reset(session.deadline(true));
                }
            }
            () = &mut timer => {
                if session.on_time(true) {
                    // Answered by every browser by itself, so that a page need not. The heartbeat
                    // takes it along.
                    let Ok(()) = socket.send(Message::Ping(Bytes::new())).await else { return };
                }
                timer.as_mut().reset(session.deadline(true));
            }
        }
    }
}

/// What the client has been told.
enum Told {
    More,
    All,
}

/// Writes what waits for the client, and what the protocol has to say.
async fn speak(socket: &mut Socket, session: &mut Session, patience: Duration) -> Result<Told, Broken> {
    let WriteOps { mut list, close: closing, .. } = session.take_writes();
    if let Some((code, reason)) = closing {
        // Fails if a close was said already.
        let _ = socket.send(close(code, reason)).await;
    }
    list.extend(socket.get_mut().said().map(WriteOp::Control));
    write(socket, &list, patience).await?;
    session.written();
    Ok(if closing.is_some() { Told::All } else { Told::More })
}

/// Everything in one write. What is long goes in parts, each of which must get through in time:
/// slow is not stuck.
async fn write<P: AsRef<[u8]>>(socket: &mut Socket, pieces: &[P], patience: Duration) -> Result<(), Broken> {
    let mut frames = Frames::new(pieces);
    while frames.has_remaining() {
        let part = socket.get_mut().send((&mut frames).take(PART));
        timeout(patience, part).await.ok().and_then(Result::ok).ok_or(Broken)?;
    }
    Ok(())
}

async fn hear(
    edge: &Edge,
    socket: &mut Socket,
    session: &mut Session,
    heard: Option<Result<Message, tungstenite::Error>>,
) -> Result<(), Broken> {
    match heard {
        Some(Ok(Message::Text(text))) => {
            if says_too_much(session) {
                return Ok(());
            }
            match ClientMessage::parse(&text) {
                Ok(ClientMessage::Auth(auth)) => {
                    if let Err(error) = edge.renew(session, auth.token.as_deref()) {
                        session.refuse(&error, None);
                    }
                }
                Ok(message) => take(session, &message).await,
                Err(error) => session.refuse(&error, ClientMessage::reference_in(&text)),
            }
            Ok(())
        }
        Some(Ok(Message::Ping(_))) => {
            if says_too_much(session) {
                return Ok(());
            }
            socket.flush().await.map_err(|_| Broken)?;
            session.must_speak();
            Ok(())
        }
        Some(Ok(Message::Pong(_) | Message::Frame(_))) => {
            says_too_much(session);
            Ok(())
        }
        Some(Ok(Message::Binary(_))) => {
            session.refuse(&not_text(), None);
            session.heard().map_err(|_| Broken)
        }
        Some(Err(tungstenite::Error::Capacity(_))) => {
            let _ = socket.send(close(TOO_BIG, "message too large")).await;
            leave(edge, socket, session).await
        }
        Some(Ok(Message::Close(_))) => {
            let _ = socket.flush().await;
            leave(edge, socket, session).await
        }
        Some(Err(_)) | None => Err(Broken),
    }
}

/// Notes that the client lives, and ends a session that sends too many frames.
fn says_too_much(session: &mut Session) -> bool {
    let Err(error) = session.heard() else { return false };
    session.refuse(&error, None);
    session.end(POLICY, "too many messages");
    true
}

/// Says what is still to be said to a client that has left.
async fn leave(edge: &Edge, socket: &mut Socket, session: &mut Session) -> Result<(), Broken> {
    let _ = speak(socket, session, edge.hub().config().write_within).await;
    Err(Broken)
}

async fn take(session: &mut Session, message: &ClientMessage) {
    if let ClientMessage::Subscribe(request) = message
        && let Err(error) = session.prepare(&request.subscriptions, request.after.as_ref()).await
    {
        session.refuse(&error, request.reference);
        if error.code == Code::Unavailable {
            session.send_away("the router cannot be reached");
        }
        return;
    }
    session.hear(message);
}

/// Waits for the client's close, so that what was written is not thrown away by a reset.
async fn goodbye(mut socket: Socket, patience: Duration) {
    let end = Instant::now() + patience.min(Duration::from_secs(2));
    let _ = tokio::time::timeout_at(end, async { while let Some(Ok(_)) = socket.next().await {} }).await;
}

fn close(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code: code.into(), reason: reason.into() }))
}

fn not_text() -> EdgeError {
    EdgeError::invalid("message", "messages are text, not binary")
}
