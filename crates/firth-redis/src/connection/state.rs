//! The life of a connection as a pure state machine. The task in `actor` drives it; handles read it
//! to know whether a request may be queued.
//!
//! ```text
//!            start            opened
//!   INIT ───────────► CONNECTING ───────────► OPEN ◄──────────────┐
//!                         │ failed              │ failed          │ opened
//!                         ▼                     ▼                 │
//!                       FAILED ◄────────────────┘                 │
//!            give_up ┌────┤ ▲            failed                   │
//!                    │    │ └────────────────────────── RECONNECTING
//!                    │    └───────────────────────────────►───────┘
//!                    ▼              retry (after the backoff)
//!   CLOSED ◄── CLOSING ◄── close (from OPEN; from any other state straight to CLOSED)
//!     └───────► CONNECTING   start (a closed connection can be opened again)
//! ```
//!
//! FAILED is the backoff window: requests are refused, nothing is queued. CONNECTING and
//! RECONNECTING queue within the bounds of the connection. A second report of the same failure
//! changes nothing.

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionState {
    /// Made, but not started.
    Init,
    /// The first connection is being made; requests are queued.
    Connecting,
    /// Connected and ready.
    Open,
    /// Broken, waiting for the next try; requests are refused.
    Failed,
    /// A new connection is being made; requests are queued.
    Reconnecting,
    /// No new requests; those under way are finished.
    Closing,
    /// Over. The connection can be started again.
    Closed,
}

impl ConnectionState {
    /// Whether a request may be queued now.
    pub fn accepts(self) -> bool {
        matches!(self, Self::Init | Self::Connecting | Self::Open | Self::Reconnecting)
    }
}

/// The state with its two counters.
#[derive(Debug, Clone)]
pub(crate) struct StateMachine {
    state: ConnectionState,
    /// Counts the connections that stood; 1 is the first.
    generation: u64,
    /// Failed tries since the connection last stood.
    attempts: u32,
}

impl StateMachine {
    pub(crate) fn new() -> Self {
        Self { state: ConnectionState::Init, generation: 0, attempts: 0 }
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.state
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Starts the connection. False if it runs.
    pub(crate) fn start(&mut self) -> bool {
        let fresh = matches!(self.state, ConnectionState::Init | ConnectionState::Closed);
        if fresh {
            self.state = ConnectionState::Connecting;
            self.attempts = 0;
        }
        fresh
    }

    /// The handshake succeeded. False if the connection is no longer wanted.
    pub(crate) fn opened(&mut self) -> bool {
        let expected = matches!(self.state, ConnectionState::Connecting | ConnectionState::Reconnecting);
        if expected {
            self.state = ConnectionState::Open;
            self.generation += 1;
            self.attempts = 0;
        }
        expected
    }

    /// A try or the connection failed. False for a repeated report, or when closing made it
    /// meaningless.
    pub(crate) fn failed(&mut self) -> bool {
        let news = matches!(
            self.state,
            ConnectionState::Connecting | ConnectionState::Open | ConnectionState::Reconnecting
        );
        if news {
            self.state = ConnectionState::Failed;
        }
        news
    }

    /// The backoff is over: try again.
    pub(crate) fn retry(&mut self) -> bool {
        let waiting = self.state == ConnectionState::Failed;
        if waiting {
            self.state = ConnectionState::Reconnecting;
            self.attempts = self.attempts.saturating_add(1);
        }
        waiting
    }

    /// No (further) reconnection: over.
    pub(crate) fn give_up(&mut self) {
        self.state = ConnectionState::Closed;
    }

    /// Asks for the end. Only an open connection has something to finish first.
    pub(crate) fn close(&mut self) -> ConnectionState {
        self.state = match self.state {
            ConnectionState::Open | ConnectionState::Closing => ConnectionState::Closing,
            _ => ConnectionState::Closed,
        };
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> StateMachine {
        let mut m = StateMachine::new();
        assert!(m.start() && m.opened());
        m
    }

    #[test]
    fn the_drawn_path_is_walked() {
        let mut m = StateMachine::new();
        assert_eq!(m.state(), ConnectionState::Init);
        assert!(m.start());
        assert_eq!(m.state(), ConnectionState::Connecting);
        assert!(m.opened());
        assert_eq!((m.state(), m.generation()), (ConnectionState::Open, 1));
        assert!(m.failed());
        assert!(m.retry());
        assert_eq!((m.state(), m.attempts()), (ConnectionState::Reconnecting, 1));
        assert!(m.failed() && m.retry());
        assert_eq!(m.attempts(), 2);
        assert!(m.opened());
        assert_eq!((m.generation(), m.attempts()), (2, 0), "success resets the counter");
        assert_eq!(m.close(), ConnectionState::Closing);
        m.give_up();
        assert_eq!(m.state(), ConnectionState::Closed);
    }

    #[test]
    fn duplicate_error_reports_start_one_reconnect() {
        let mut m = open();
        assert!(m.failed());
        assert!(!m.failed());
        assert!(m.retry());
        assert!(!m.retry());
    }

    #[test]
    fn failed_refuses_and_reconnecting_queues() {
        let mut m = open();
        m.failed();
        assert!(!m.state().accepts());
        m.retry();
        assert!(m.state().accepts());
    }

    #[test]
    fn nothing_leaves_closed_but_a_new_start() {
        let mut m = open();
        m.close();
        m.give_up();
        assert!(!m.opened() && !m.failed() && !m.retry());
        assert_eq!(m.state(), ConnectionState::Closed);
        assert!(m.start());
        assert!(m.opened());
        assert_eq!(m.generation(), 2);
    }

    #[test]
    fn closing_before_it_stands_ends_at_once() {
        let mut m = StateMachine::new();
        m.start();
        assert_eq!(m.close(), ConnectionState::Closed);
        assert!(!m.opened(), "a handshake that ends later does not bring it back");
    }
}
