//! WebSocket: one task owns the socket and the session. The first message says who the client is.
//!
//! [`tungstenite`](tokio_tungstenite::tungstenite) reads, and writes control frames. Messages go past it: they are frames already, shared with other
//! sockets, and everything that waits for a socket goes out in one write.

mod frames;
mod upgrade;

use super::PART;
use crate::edge::Edge;
use crate::hub::{Pieces, Session};
use crate::limits::Pass;
use crate::packet::Packet;
use crate::protocol::client::{Auth, ClientMessage};
use crate::protocol::{Code, Refusal, VERSION, server};
use bytes::Buf as _;
use frames::Frames;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Bytes, Message};
pub(super) use upgrade::upgrade;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// What one read of a socket takes. Clients say little.
const READ_BUFFER: usize = 1 << 10;

/// Close codes.
const POLICY: u16 = 1008;
const TOO_BIG: u16 = 1009;
const UNAUTHORIZED: u16 = 4401;
const RESTART: u16 = 1012;

/// The socket is of no use any more.
struct Broken;

/// Serves a connection that has just become a WebSocket.
async fn run(edge: Edge, upgraded: Upgraded, token: Option<String>, pass: Pass) {
    let (patience, limit) = (edge.hub().config().write_within, edge.hub().config().limits.message_bytes);
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    let mut socket =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
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
async fn greet(edge: &Edge, socket: &mut Socket, token: Option<String>) -> Option<Session> {
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
            let said = [Packet::new(&[&server::error(&refusal, None)])];
            let _ = write(socket, &said, Some((code, reason)), config.write_within).await;
            None
        }
    }
}

/// The first message, which must be `auth`; `None` if the client leaves.
async fn first_words(socket: &mut Socket) -> Option<Result<Auth, Refusal>> {
    loop {
        return match socket.next().await? {
            Ok(Message::Text(text)) => Some(match ClientMessage::parse(&text) {
                Ok(ClientMessage::Auth(auth)) if auth.version == VERSION => Ok(auth),
                Ok(ClientMessage::Auth(_)) => {
                    let message = "this gateway speaks version 1 only";
                    Err(Refusal { limit: Some(u64::from(VERSION)), ..Refusal::invalid("version", message) })
                }
                Ok(_) => Err(Refusal::new(Code::Unauthorized, "the first message must be `auth`")),
                Err(refusal) => Err(refusal),
            }),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Binary(_)) => Some(Err(not_text())),
            Ok(Message::Close(_)) | Err(_) => None,
        };
    }
}

async fn converse(edge: &Edge, mut socket: Socket, mut session: Session, patience: Duration) {
    let mut timer = std::pin::pin!(sleep_until(session.deadline(true)));
    loop {
        tokio::select! {
            () = session.ready() => {
                let Pieces { list, close, .. } = session.take_pieces();
                if list.is_empty() && close.is_none() {
                    continue;
                }
                let Ok(()) = write(&mut socket, &list, close, patience).await else { return };
                session.written();
                if close.is_some() {
                    return goodbye(socket, patience).await;
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
                    // Answered by every browser by itself, so that a page need not.
                    let ping = socket.send(Message::Ping(Bytes::new()));
                    if !matches!(timeout(patience, ping).await, Ok(Ok(()))) {
                        return;
                    }
                }
                timer.as_mut().reset(session.deadline(true));
            }
        }
    }
}

/// Everything in one write, then the close if there is one. What is long goes in parts, each of which must get through in time: slow is not stuck.
async fn write<P: AsRef<[u8]>>(
    socket: &mut Socket,
    pieces: &[P],
    closing: Option<(u16, &'static str)>,
    patience: Duration,
) -> Result<(), Broken> {
    let mut frames = Frames::new(pieces);
    while frames.remaining() > PART {
        let part = async {
            socket.flush().await.map_err(|_| Broken)?;
            let mut part = (&mut frames).take(PART);
            socket.get_mut().write_all_buf(&mut part).await.map_err(|_| Broken)
        };
        timeout(patience, part).await.unwrap_or(Err(Broken))?;
    }
    let rest = async {
        // A pong may be half written.
        socket.flush().await.map_err(|_| Broken)?;
        let raw = socket.get_mut();
        if frames.chunk().len() == frames.remaining() {
            raw.write_all(frames.chunk()).await.map_err(|_| Broken)?;
        } else {
            raw.write_all_buf(&mut frames).await.map_err(|_| Broken)?;
        }
        raw.flush().await.map_err(|_| Broken)?;
        match closing {
            Some((code, reason)) => socket.send(close(code, reason)).await.map_err(|_| Broken),
            None => Ok(()),
        }
    };
    timeout(patience, rest).await.unwrap_or(Err(Broken))
}

async fn hear(
    edge: &Edge,
    socket: &mut Socket,
    session: &mut Session,
    heard: Option<Result<Message, tungstenite::Error>>,
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
                Ok(message) => take(session, &message).await,
                Err(refusal) => session.refuse(&refusal, ClientMessage::reference_in(&text)),
            }
            Ok(())
        }
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {
            session.alive();
            Ok(())
        }
        Some(Ok(Message::Binary(_))) => {
            session.refuse(&not_text(), None);
            session.heard().map_err(|_| Broken)
        }
        Some(Err(tungstenite::Error::Capacity(_))) => {
            let patience = edge.hub().config().write_within;
            let _ = timeout(patience, socket.send(close(TOO_BIG, "message too large"))).await;
            Err(Broken)
        }
        Some(Ok(Message::Close(_)) | Err(_)) | None => Err(Broken),
    }
}

async fn take(session: &mut Session, message: &ClientMessage) {
    if let ClientMessage::Subscribe(wish) = message
        && let Err(refusal) = session.prepare(&wish.subscriptions, wish.after.as_ref()).await
    {
        session.refuse(&refusal, wish.reference);
        if refusal.code == Code::Unavailable {
            session.end(RESTART, "the router cannot be reached");
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

fn not_text() -> Refusal {
    Refusal::invalid("message", "messages are text, not binary")
}
