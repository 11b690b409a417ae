//! One node as the mux's core sees it: whether it can be used, and which operations it has not
//! answered yet. Answers come in order, so the first operation is the one that is being answered.
//! Pure.

use super::event::{Message, SubscriptionKind};
use super::mailbox::EventMailbox;
use super::registry::{ChannelId, Confirmation};
use crate::backoff::Backoff;
use crate::config::Address;
use crate::error::{CallError, LostCause};
use crate::resp::ServerError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// State of the connection to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connecting,
    Open,
    /// The connection is open, but the server speaks only RESP2, which mixes pushes with replies.
    Resp2Only,
    /// The connection broke; it is being made again.
    Down,
}

/// Something that was sent and not yet answered.
#[derive(Debug)]
pub(crate) enum PendingOp {
    /// Answered by one push per name in this order, or by one error for all.
    Subscribe { id: u64, kind: SubscriptionKind, channels: Vec<ChannelId>, confirmed: usize },
    /// Answered by one push per name, of which `left` are still to come, or by one error for all.
    /// The pushes look like those of a slot that moves away. So a PING follows as a barrier, and
    /// its answer ends the operation.
    Unsubscribe {
        id: u64,
        kind: SubscriptionKind,
        left: usize,
        channels: Vec<ChannelId>,
        waiter: Option<Arc<Confirmation>>,
    },
    /// An idle PING of the connection, sent behind the operation `after`. Answered by a number, or
    /// by an error.
    Ping { after: u64 },
}

impl PendingOp {
    /// Its place in the order of what was sent.
    fn number(&self) -> u64 {
        match self {
            Self::Subscribe { id, .. } | Self::Unsubscribe { id, .. } | Self::Ping { after: id } => *id,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: Address,
    pub(crate) state: LinkState,
    /// Why the last connection, or the last try, failed; `None` while one stands.
    pub(crate) cause: Option<LostCause>,
    /// When the connection was requested.
    ordered: Instant,
    /// How often in a row the connection broke or could not be made.
    pub(crate) failures: u32,
    /// Which of its connections stands.
    pub(crate) generation: u64,
    pub(crate) ops: VecDeque<PendingOp>,
    /// Channels that are served here, or requested.
    pub(crate) load: usize,
    /// Messages that a full mailbox with policy `Block` has not taken yet. Until it has,
    /// nothing is read.
    pub(crate) blocked: VecDeque<BlockedMessages>,
    /// The server may hold subscriptions here that only closing the connection ends.
    pub(crate) has_stale_subscriptions: bool,
    /// Health when all unplaced channels were last checked.
    pub(crate) checked_health: Option<LinkHealth>,
    /// Since when it serves nothing.
    pub(crate) idle_since: Option<Instant>,
    /// Set while the node answers but cannot serve (loading, cluster down), or has not served yet:
    /// one probe at a time.
    probation: Option<Probation>,
}

/// Messages for one subscriber without room.
#[derive(Debug)]
pub(crate) struct BlockedMessages {
    pub(crate) mailbox: Arc<EventMailbox>,
    pub(crate) messages: VecDeque<Message>,
}

#[derive(Debug)]
struct Probation {
    attempts: u32,
    retry_at: Instant,
    probing: bool,
    /// The slot of the last probe. The next one takes another, so that one bad slot does not speak
    /// for all.
    probed: u16,
    /// Error of the last refusal.
    error: Option<ServerError>,
}

/// A node that cannot be connected to within this time may be out of reach.
const SLOW_CONNECT: Duration = Duration::from_millis(500);

/// Pauses between probes of a node on probation.
const PROBES: Backoff = Backoff {
    immediate: 0,
    first: Duration::from_millis(25),
    max: Duration::from_millis(500),
    factor: 2.0,
    jitter: 0.2,
};

/// What a link can do now, and whether another node is the better choice.
pub(crate) type LinkHealth = (Readiness, bool);

/// What may be sent to a link now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// One operation, to see whether the node serves again.
    Probe,
    NotNow,
}

impl Link {
    pub(crate) fn new(address: Address, now: Instant) -> Self {
        Self {
            address,
            state: LinkState::Connecting,
            cause: None,
            ordered: now,
            failures: 0,
            generation: 0,
            ops: VecDeque::new(),
            load: 0,
            blocked: VecDeque::new(),
            has_stale_subscriptions: false,
            checked_health: None,
            idle_since: None,
            probation: None,
        }
    }

    /// Whether another node is the better choice: the connection is broken, or takes too long to
    /// open.
    pub(crate) fn is_down(&self, now: Instant) -> bool {
        match self.state {
            LinkState::Down | LinkState::Resp2Only => true,
            LinkState::Connecting => now - self.ordered > SLOW_CONNECT,
            LinkState::Open => false,
        }
    }

    /// Input of placement. It changes with the link's state, and with time.
    pub(crate) fn health(&self, now: Instant) -> LinkHealth {
        (self.readiness(now), self.is_down(now))
    }

    /// Whether the connection broke and could not be made again.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.failures >= 2
    }

    pub(crate) fn readiness(&self, now: Instant) -> Readiness {
        match (&self.probation, self.state) {
            (_, LinkState::Connecting | LinkState::Resp2Only | LinkState::Down) => Readiness::NotNow,
            (None, LinkState::Open) => Readiness::Ready,
            (Some(t), LinkState::Open) if t.probing || now < t.retry_at => Readiness::NotNow,
            (Some(_), LinkState::Open) => Readiness::Probe,
        }
    }

    /// Error of a node that can never serve, so that waiting does not help.
    pub(crate) fn permanent_error(&self) -> Option<CallError> {
        match (self.state, &self.cause) {
            (LinkState::Resp2Only, _) => Some(CallError::Invalid(
                "the server does not speak RESP3, which subscriptions need: use Redis 6 or newer".into(),
            )),
            (LinkState::Down, Some(cause @ LostCause::Reconnect(error))) if !error.is_retryable() => {
                Some(CallError::Down { cause: cause.clone() })
            }
            _ => None,
        }
    }

    /// Error that explains why no subscription was confirmed here yet.
    pub(crate) fn failure(&self) -> Option<CallError> {
        match (&self.cause, self.probation.as_ref().and_then(|trouble| trouble.error.as_ref())) {
            (Some(cause), _) => Some(CallError::Down { cause: cause.clone() }),
            (None, Some(error)) => Some(CallError::Server(error.clone())),
            (None, None) => None,
        }
    }

    /// Puts an idle PING behind the operation that it was sent behind.
    pub(crate) fn pinged(&mut self, after: u64) {
        let behind = self.ops.iter().position(|op| op.number() > after).unwrap_or(self.ops.len());
        self.ops.insert(behind, PendingOp::Ping { after });
    }

    /// Whether an answer to a change of subscriptions is still to come.
    pub(crate) fn is_owed_answers(&self) -> bool {
        self.ops.iter().any(|op| !matches!(op, PendingOp::Ping { .. }))
    }

    /// The slot after which the next probe is looked for.
    pub(crate) fn last_probe(&self) -> Option<u16> {
        self.probation.as_ref().map(|t| t.probed)
    }

    /// A probe with this slot is sent.
    pub(crate) fn probing(&mut self, slot: u16) {
        if let Some(trouble) = &mut self.probation {
            trouble.probing = true;
            trouble.probed = slot;
        }
    }

    /// Starts probation on a new connection: one probe comes before everything else.
    pub(crate) fn start_probation(&mut self, now: Instant) {
        let trouble = Probation { attempts: 0, retry_at: now, probing: false, probed: u16::MAX, error: None };
        self.probation = Some(trouble);
        self.checked_health = None;
    }

    /// The node answered that it cannot serve now.
    pub(crate) fn refused_service(&mut self, error: &ServerError, now: Instant) {
        let (attempts, probed) =
            self.probation.as_ref().map_or((0, u16::MAX), |t| (t.attempts + u32::from(t.probing), t.probed));
        let retry_at = now + PROBES.delay(attempts);
        let error = Some(error.clone());
        self.probation = Some(Probation { attempts, retry_at, probing: false, probed, error });
        self.checked_health = None;
    }

    /// The node serves. True if it did not before.
    pub(crate) fn end_probation(&mut self) -> bool {
        self.probation.take().is_some()
    }
}
