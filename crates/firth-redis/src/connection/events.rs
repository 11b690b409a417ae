//! Events of a connection, as a stream. It is bounded: a watcher that falls behind is told how many
//! events it missed.

use crate::error::LostCause;
use tokio::sync::broadcast;

/// How many events are kept for a slow watcher.
pub(crate) const CAPACITY: usize = 64;

/// One thing that happened to a connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectionEvent {
    /// What happened.
    pub kind: ConnectionEventKind,
    /// During which part of the connection's life.
    pub phase: ConnectionPhase,
    /// Which connection: 1 is the first that stood, 0 if none stood yet.
    pub generation: u64,
    /// Which retry since a connection last stood: 0 for a loss, for the first try of all, and for
    /// success.
    pub attempts: u32,
    /// Why, unless all is well.
    pub cause: Option<LostCause>,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEventKind {
    /// A connection stands.
    Connected,
    /// A connection, or a try to make one, failed.
    Disconnected,
    /// The end; nothing follows unless the connection is opened again.
    Closed,
}

/// Parts of a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionPhase {
    /// The first socket.
    Connect,
    /// HELLO, AUTH, SELECT.
    Handshake,
    /// Requests and replies.
    Runtime,
    /// A socket after the first.
    Reconnect,
    /// The orderly end.
    Close,
}

/// The events of one connection, from the moment of asking on.
#[derive(Debug)]
pub struct ConnectionEvents(pub(crate) broadcast::Receiver<ConnectionEvent>);

impl ConnectionEvents {
    /// The next event, or `None` once the connection is gone for good. Events that this watcher was
    /// too slow for are skipped.
    pub async fn next(&mut self) -> Option<ConnectionEvent> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
