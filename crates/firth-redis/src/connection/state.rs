//! The life of a connection as a pure state machine. The task in `actor` drives it; handles read it to know whether
//! a request may be queued.
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
//! FAILED is the backoff window: requests are refused, nothing is queued. CONNECTING and RECONNECTING queue within
//! the bounds of the connection. A second report of the same failure changes nothing.

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
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

impl State {
    /// Whether a request may be queued now.
    pub fn accepts(self) -> bool {
        matches!(self, Self::Init | Self::Connecting | Self::Open | Self::Reconnecting)
    }
}

/// The state with its two counters.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    state: State,
    /// Counts the connections that stood; 1 is the first.
    generation: u64,
    /// Failed tries since the connection last stood.
    attempts: u32,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { state: State::Init, generation: 0, attempts: 0 }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Begins a life. False if one is under way.
    pub(crate) fn start(&mut self) -> bool {
        let fresh = matches!(self.state, State::Init | State::Closed);
        if fresh {
            self.state = State::Connecting;
            self.attempts = 0;
        }
        fresh
    }

    /// The handshake succeeded. False if the connection is no longer wanted.
    pub(crate) fn opened(&mut self) -> bool {
        let expected = matches!(self.state, State::Connecting | State::Reconnecting);
        if expected {
            self.state = State::Open;
            self.generation += 1;
            self.attempts = 0;
        }
        expected
    }

    /// A try or the connection failed. False for a repeated report, or when closing made it meaningless.
    pub(crate) fn failed(&mut self) -> bool {
        let news = matches!(self.state, State::Connecting | State::Open | State::Reconnecting);
        if news {
            self.state = State::Failed;
        }
        news
    }

    /// The backoff is over: try again.
    pub(crate) fn retry(&mut self) -> bool {
        let waiting = self.state == State::Failed;
        if waiting {
            self.state = State::Reconnecting;
            self.attempts = self.attempts.saturating_add(1);
        }
        waiting
    }

    /// No (further) reconnection: over.
    pub(crate) fn give_up(&mut self) {
        self.state = State::Closed;
    }

    /// Asks for the end. Only an open connection has something to finish first.
    pub(crate) fn close(&mut self) -> State {
        self.state = match self.state {
            State::Open | State::Closing => State::Closing,
            _ => State::Closed,
        };
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Machine {
        let mut m = Machine::new();
        assert!(m.start() && m.opened());
        m
    }

    #[test]
    fn the_drawn_path_is_walked() {
        let mut m = Machine::new();
        assert_eq!(m.state(), State::Init);
        assert!(m.start());
        assert_eq!(m.state(), State::Connecting);
        assert!(m.opened());
        assert_eq!((m.state(), m.generation()), (State::Open, 1));
        assert!(m.failed());
        assert!(m.retry());
        assert_eq!((m.state(), m.attempts()), (State::Reconnecting, 1));
        assert!(m.failed() && m.retry());
        assert_eq!(m.attempts(), 2);
        assert!(m.opened());
        assert_eq!((m.generation(), m.attempts()), (2, 0), "success resets the counter");
        assert_eq!(m.close(), State::Closing);
        m.give_up();
        assert_eq!(m.state(), State::Closed);
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
        assert_eq!(m.state(), State::Closed);
        assert!(m.start());
        assert!(m.opened());
        assert_eq!(m.generation(), 2);
    }

    #[test]
    fn closing_before_it_stands_ends_at_once() {
        let mut m = Machine::new();
        m.start();
        assert_eq!(m.close(), State::Closed);
        assert!(!m.opened(), "a handshake that ends later does not bring it back");
    }
}
