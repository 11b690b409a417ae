//! State under the lock of a connection: its state machine, pipeline and output. Pure: time and
//! limits are parameters. `shared` holds the lock and publishes changes; the driver and the actor
//! borrow it for a moment.

use super::handshake::ServerInfo;
use super::pipeline::{NEVER, Pipeline, RequestFailure, RequestMeta};
use super::push_queue::{PushItem, PushQueue};
use super::state::{ConnectionState, StateMachine};
use crate::config::{FullQueuePolicy, QueueLimits};
use crate::error::{CallError, LostCause};
use std::task::Waker;

/// A clock that is behind by more than this many ms is not good enough for deadlines.
const SLACK: u64 = 10;

pub(crate) struct LockedState {
    pub(crate) machine: StateMachine,
    pub(crate) pipeline: Pipeline,
    /// Encoded and not yet taken by the task.
    pub(crate) out: Vec<u8>,
    /// Bytes that the task has taken since this connection opened: the offset at which `out`
    /// begins.
    pub(crate) taken: u64,
    /// Bytes that the task has taken and the network has not.
    pub(crate) unwritten: usize,
    /// Set while the task sleeps. A caller that adds work takes the waker and wakes the task.
    pub(crate) task: Option<Waker>,
    /// Time in ms, from the task's last turn or from the first request since.
    pub(super) now: u64,
    /// Requests from this offset on came after the task's last turn: their deadlines are relative
    /// to `now`.
    seen: u64,
    /// Requests that wait for room.
    pub(super) waiting: usize,
    pub(super) last_error: Option<LostCause>,
    /// The end was requested, so that no error caused it.
    pub(super) asked_to_close: bool,
    /// Closing does not wait for requests in flight.
    pub(crate) abort: bool,
    pub(super) server_info: Option<ServerInfo>,
    /// Where the connection leads, for traces.
    pub(super) node: Option<std::sync::Arc<str>>,
    /// A caller requested a reconnection.
    pub(crate) reset: bool,
    /// Last operation that the mux has sent.
    pub(super) last_op: u64,
}

/// Result of submitting a request.
pub(crate) enum Submitted {
    Queued(usize),
    /// No room, and the configuration says to wait for some.
    Wait,
    Refused(CallError),
}

impl LockedState {
    pub(super) fn new() -> Self {
        Self {
            machine: StateMachine::new(),
            pipeline: Pipeline::new(),
            out: Vec::new(),
            taken: 0,
            unwritten: 0,
            task: None,
            now: 0,
            seen: 0,
            waiting: 0,
            last_error: None,
            asked_to_close: false,
            abort: false,
            server_info: None,
            node: None,
            reset: false,
            last_op: 0,
        }
    }

    /// Whether a request of this size may enter now.
    #[inline]
    pub(super) fn admit(&self, limits: QueueLimits, bytes: usize) -> Result<(), Submitted> {
        let state = self.machine.state();
        if !state.accepts() {
            return Err(Submitted::Refused(self.refusal(state)));
        }
        let unsent = self.out.len() + self.unwritten;
        let full = if self.pipeline.len() >= limits.requests {
            Some(("the queue of requests", limits.requests))
        } else if unsent > 0 && unsent + bytes > limits.bytes {
            Some(("the output", limits.bytes))
        } else {
            None
        };
        match (full, limits.when_full) {
            (None, _) => Ok(()),
            (Some(_), FullQueuePolicy::Wait) => Err(Submitted::Wait),
            (Some((what, limit)), FullQueuePolicy::Fail) => {
                Err(Submitted::Refused(CallError::Full { what, limit }))
            }
        }
    }

    fn refusal(&self, state: ConnectionState) -> CallError {
        match state {
            ConnectionState::Failed => {
                CallError::Down { cause: self.last_error.clone().unwrap_or(LostCause::Closed) }
            }
            _ => CallError::Closed { sent: false },
        }
    }

    /// Sets the clock and returns the time. Requests that came in while the clock was stale keep
    /// their time.
    pub(crate) fn tick(&mut self, now: u64) -> u64 {
        let behind = now.saturating_sub(self.now);
        if behind > SLACK {
            self.pipeline.postpone(self.seen, behind);
        }
        self.now = now;
        self.seen = self.end();
        now
    }

    /// The offset at which the next request will begin.
    pub(super) fn end(&self) -> u64 {
        self.taken + self.out.len() as u64
    }

    /// Takes back abandoned requests that the task has not taken. Returns their number.
    pub(super) fn withdraw(&mut self) -> usize {
        let count = self.pipeline.withdraw(self.taken, &mut self.out);
        self.seen = self.seen.min(self.end());
        count
    }

    /// Sends a PING. Its answer has no receiver.
    fn ping(&mut self) {
        let start = self.end();
        self.out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
        let blocking = false;
        let long = false;
        self.pipeline.push_internal(RequestMeta { replies: 1, start, deadline: NEVER, blocking, long });
    }

    /// As [`ping`](Self::ping), for a connection with a push queue. The mux pairs answers with its
    /// operations, so it learns behind which operation this PING stands.
    pub(crate) fn ping_peer(&mut self, push_queue: Option<&PushQueue>) {
        let Some(push_queue) = push_queue else { return self.ping() };
        self.out.extend_from_slice(b"*2\r\n$4\r\nPING\r\n$1\r\n0\r\n");
        push_queue.push(PushItem::Pinged { after: self.last_op });
    }

    pub(super) fn end_all(&mut self, sent: u64, failure: impl Fn(bool) -> RequestFailure) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.pipeline.fail_all(sent, failure, &mut wakers);
        self.out = Vec::new();
        (self.taken, self.seen, self.unwritten) = (0, 0, 0);
        wakers
    }
}
