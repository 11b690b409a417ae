//! What lies under the lock of a connection: its state, its pipeline, its output. Pure: the time and the limits are
//! parameters. `shared` holds the lock and tells the world; the driver and the actor borrow it for a moment.

use std::task::Waker;

use super::{
    feed::{Feed, FeedItem},
    handshake::Greeting,
    pipeline::{Failure, NEVER, Pipeline, Ticket},
    state::{Machine, State},
};
use crate::{
    config::{QueueLimits, WhenFull},
    error::{CallError, LostCause},
};

/// A clock that is behind by more than this many ms is not good enough for deadlines.
const SLACK: u64 = 10;

pub(crate) struct Inner {
    pub(crate) machine: Machine,
    pub(crate) pipeline: Pipeline,
    /// Encoded and not yet taken by the task.
    pub(crate) out: Vec<u8>,
    /// Bytes that the task has taken since this connection stands: the offset at which `out` begins.
    pub(crate) taken: u64,
    /// Bytes that the task has taken and the network has not.
    pub(crate) unwritten: usize,
    /// Set while the task sleeps; whoever gives it work takes this and wakes it.
    pub(crate) task: Option<Waker>,
    /// The time in ms, as fresh as the task's last turn, or as the first request since.
    pub(super) now: u64,
    /// Requests from this offset on came after the task's last turn: their deadlines were reckoned from `now`.
    seen: u64,
    /// Requests that wait for room.
    pub(super) waiting: usize,
    pub(super) last_error: Option<LostCause>,
    /// The end was asked for, so that no error is to blame for it.
    pub(super) asked_to_close: bool,
    /// Closing does not wait for what is under way.
    pub(crate) hurry: bool,
    pub(super) greeting: Option<Greeting>,
    /// Where the connection leads, for traces.
    pub(super) node: Option<std::sync::Arc<str>>,
    /// Somebody wants the connection broken and made anew.
    pub(crate) reset: bool,
    /// The last operation that the owner of the feed has sent.
    pub(super) last_op: u64,
}

/// What became of a request that wants to be sent.
pub(crate) enum Submitted {
    Queued(usize),
    /// No room, and the configuration says to wait for some.
    Wait,
    Refused(CallError),
}

impl Inner {
    pub(super) fn new() -> Self {
        Self {
            machine: Machine::new(),
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
            hurry: false,
            greeting: None,
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
            (Some(_), WhenFull::Wait) => Err(Submitted::Wait),
            (Some((what, limit)), WhenFull::Fail) => Err(Submitted::Refused(CallError::Full { what, limit })),
        }
    }

    fn refusal(&self, state: State) -> CallError {
        match state {
            State::Failed => CallError::Down { cause: self.last_error.clone().unwrap_or(LostCause::Closed) },
            _ => CallError::Closed { sent: false },
        }
    }

    /// Moves the clock on and returns the time. Requests that came in while the clock stood still keep their time.
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

    /// Takes back what nobody waits for and the task has not taken. Returns the number of such requests.
    pub(super) fn withdraw(&mut self) -> usize {
        let count = self.pipeline.withdraw(self.taken, &mut self.out);
        self.seen = self.seen.min(self.end());
        count
    }

    /// Asks the peer for a sign of life. The answer has no receiver.
    fn ping(&mut self) {
        let start = self.end();
        self.out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
        let (patient, long) = (false, false);
        self.pipeline.push_unheard(Ticket { replies: 1, start, deadline: NEVER, patient, long });
    }

    /// As [`ping`](Self::ping), on a connection with a feed. The feed's owner pairs answers with
    /// what it has sent, so it learns behind which operation this PING stands.
    pub(crate) fn ask_for_life(&mut self, feed: Option<&Feed>) {
        let Some(feed) = feed else { return self.ping() };
        self.out.extend_from_slice(b"*2\r\n$4\r\nPING\r\n$1\r\n0\r\n");
        feed.notice(FeedItem::Pinged { after: self.last_op });
    }

    pub(super) fn end_all(&mut self, sent: u64, failure: impl Fn(bool) -> Failure) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.pipeline.fail_all(sent, failure, &mut wakers);
        self.out = Vec::new();
        (self.taken, self.seen, self.unwritten) = (0, 0, 0);
        wakers
    }
}
