//! One node as the mux's core sees it: whether it can be talked to, and which operations it still owes an answer to.
//! Answers come in order, so the operation in front is the one that is being answered. Pure.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    event::{Kind, Message},
    mailbox::Mailbox,
    registry::{ChannelId, Confirm},
};
use crate::{
    backoff::Backoff,
    config::Address,
    error::{CallError, LostCause},
    resp::ServerError,
};

/// Whether a node can be talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connecting,
    Open,
    /// The connection stands, but the server speaks only RESP2, which mixes pushes with replies.
    TooOld,
    /// The connection broke; it is being made again.
    Down,
}

/// Something that was sent and not yet answered.
#[derive(Debug)]
pub(crate) enum Op {
    /// Answered by one push per name in this order, or by one error for all.
    Subscribe { id: u64, kind: Kind, channels: Vec<ChannelId>, confirmed: usize },
    /// Answered by one push per name, of which `left` are still to come, or by one error for all.
    /// The pushes look like those of a slot that moves away; hence the barrier behind it, a PING
    /// whose answer ends the operation.
    Unsubscribe { id: u64, kind: Kind, left: usize, channels: Vec<ChannelId>, waiter: Option<Arc<Confirm>> },
    /// An idle PING of the connection, sent behind the operation `after`. Answered by a number, or
    /// by an error.
    Ping { after: u64 },
}

impl Op {
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
    /// When the connection was ordered.
    ordered: Instant,
    /// How often in a row the connection broke or could not be made.
    pub(crate) failures: u32,
    /// Which of its connections stands.
    pub(crate) generation: u64,
    pub(crate) ops: VecDeque<Op>,
    /// Channels that are served here, or asked for.
    pub(crate) load: usize,
    /// Messages that a full mailbox with policy `Block` has not taken yet; nothing is read meanwhile.
    pub(crate) stuck: VecDeque<Stuck>,
    /// The server may hold subscriptions here that nobody can end but by closing the connection.
    pub(crate) keeps_ghosts: bool,
    /// What it could do when all channels without a home were last looked at.
    pub(crate) seen: Option<Outlook>,
    /// Since when it serves nothing.
    pub(crate) idle_since: Option<Instant>,
    /// Set while the node answers but cannot serve (loading, cluster down), or has not shown that it can: one probe
    /// at a time.
    troubled: Option<Trouble>,
}

/// Messages for one subscriber who has no room.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) messages: VecDeque<Message>,
}

#[derive(Debug)]
struct Trouble {
    attempts: u32,
    retry_at: Instant,
    probing: bool,
    /// The slot of the last probe. The next one takes another, so that one bad slot does not speak for all.
    probed: u16,
    /// What the node said when it last refused to serve.
    words: Option<ServerError>,
}

/// A node that cannot be connected to within this time may be out of reach.
const SLOW_CONNECT: Duration = Duration::from_millis(500);

/// How fast a troubled node is asked again.
const PROBES: Backoff = Backoff {
    immediate: 0,
    first: Duration::from_millis(25),
    max: Duration::from_millis(500),
    factor: 2.0,
    jitter: 0.2,
};

/// What a link can do now, and whether another one is the better choice.
pub(crate) type Outlook = (Readiness, bool);

/// How much may be asked of a link now.
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
            stuck: VecDeque::new(),
            keeps_ghosts: false,
            seen: None,
            idle_since: None,
            troubled: None,
        }
    }

    /// Whether another node is the better choice: the connection is broken, or takes too long to be made.
    pub(crate) fn is_down(&self, now: Instant) -> bool {
        match self.state {
            LinkState::Down | LinkState::TooOld => true,
            LinkState::Connecting => now - self.ordered > SLOW_CONNECT,
            LinkState::Open => false,
        }
    }

    /// What placement goes by. It changes with the link's state, and with time.
    pub(crate) fn outlook(&self, now: Instant) -> Outlook {
        (self.readiness(now), self.is_down(now))
    }

    /// Whether the connection broke and could not be made again.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.failures >= 2
    }

    pub(crate) fn readiness(&self, now: Instant) -> Readiness {
        match (&self.troubled, self.state) {
            (_, LinkState::Connecting | LinkState::TooOld | LinkState::Down) => Readiness::NotNow,
            (None, LinkState::Open) => Readiness::Ready,
            (Some(t), LinkState::Open) if t.probing || now < t.retry_at => Readiness::NotNow,
            (Some(_), LinkState::Open) => Readiness::Probe,
        }
    }

    /// Why no subscription can come about here, if waiting does not help.
    pub(crate) fn refusal(&self) -> Option<CallError> {
        match (self.state, &self.cause) {
            (LinkState::TooOld, _) => Some(CallError::Invalid(
                "the server does not speak RESP3, which subscriptions need: use Redis 6 or newer".into(),
            )),
            (LinkState::Down, Some(cause @ LostCause::Reconnect(error))) if !error.is_retryable() => {
                Some(CallError::Down { cause: cause.clone() })
            }
            _ => None,
        }
    }

    /// Why a subscription has not come about here yet.
    pub(crate) fn excuse(&self) -> Option<CallError> {
        match (&self.cause, self.troubled.as_ref().and_then(|trouble| trouble.words.as_ref())) {
            (Some(cause), _) => Some(CallError::Down { cause: cause.clone() }),
            (None, Some(words)) => Some(CallError::Server(words.clone())),
            (None, None) => None,
        }
    }

    /// Puts an idle PING behind the operation that it was sent behind.
    pub(crate) fn pinged(&mut self, after: u64) {
        let behind = self.ops.iter().position(|op| op.number() > after).unwrap_or(self.ops.len());
        self.ops.insert(behind, Op::Ping { after });
    }

    /// Whether an answer to a change of subscriptions is still to come.
    pub(crate) fn is_owed_answers(&self) -> bool {
        self.ops.iter().any(|op| !matches!(op, Op::Ping { .. }))
    }

    /// The slot after which the next probe is looked for.
    pub(crate) fn last_probe(&self) -> Option<u16> {
        self.troubled.as_ref().map(|t| t.probed)
    }

    /// A probe with this slot is sent.
    pub(crate) fn probing(&mut self, slot: u16) {
        if let Some(trouble) = &mut self.troubled {
            trouble.probing = true;
            trouble.probed = slot;
        }
    }

    /// A new connection: the node has yet to show that it serves, before everything is asked of it at once.
    pub(crate) fn unproved(&mut self, now: Instant) {
        let trouble = Trouble { attempts: 0, retry_at: now, probing: false, probed: u16::MAX, words: None };
        self.troubled = Some(trouble);
        self.seen = None;
    }

    /// The node answered that it cannot serve now.
    pub(crate) fn in_trouble(&mut self, words: &ServerError, now: Instant) {
        let (attempts, probed) =
            self.troubled.as_ref().map_or((0, u16::MAX), |t| (t.attempts + u32::from(t.probing), t.probed));
        let retry_at = now + PROBES.delay(attempts);
        let words = Some(words.clone());
        self.troubled = Some(Trouble { attempts, retry_at, probing: false, probed, words });
        self.seen = None;
    }

    /// The node serves. True if it did not before.
    pub(crate) fn well(&mut self) -> bool {
        self.troubled.take().is_some()
    }
}
