//! One node as the mux's core sees it: whether it can be talked to, and which operations it still owes an answer to.
//! Answers come in order, so the operation in front is the one that is being answered. Pure.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    event::{Kind, Message},
    mailbox::Mailbox,
    registry::{ChannelId, Confirm},
};
use crate::{backoff::Backoff, config::Address};

/// Whether a node can be talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connecting,
    Open,
    /// The connection broke; it is being made again.
    Down,
}

/// Something that was sent and not yet answered.
#[derive(Debug)]
pub(crate) enum Op {
    /// Answered by one push per name in this order, or by one error for all.
    Subscribe { id: u64, kind: Kind, channels: Vec<ChannelId>, confirmed: usize },
    /// Answered by pushes that look like those of a slot that moves away; hence the barrier behind it, whose answer
    /// ends the operation.
    Unsubscribe { id: u64, channels: Vec<ChannelId>, waiter: Option<Arc<Confirm>> },
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: Address,
    pub(crate) state: LinkState,
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
    /// Since when it serves nothing.
    pub(crate) idle_since: Option<Instant>,
    /// Set while the node answers but cannot serve (loading, cluster down), or has not shown that it can: one probe
    /// at a time.
    troubled: Option<Trouble>,
}

/// Messages of one kind for one subscriber who has no room.
#[derive(Debug)]
pub(crate) struct Stuck {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) kind: Kind,
    pub(crate) messages: VecDeque<Message>,
}

#[derive(Debug)]
struct Trouble {
    attempts: u32,
    retry_at: Instant,
    probing: bool,
    /// The slot of the last probe. The next one takes another, so that one bad slot does not speak for all.
    probed: u16,
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
            ordered: now,
            failures: 0,
            generation: 0,
            ops: VecDeque::new(),
            load: 0,
            stuck: VecDeque::new(),
            keeps_ghosts: false,
            idle_since: None,
            troubled: None,
        }
    }

    /// Whether another node is the better choice: the connection is broken, or takes too long to be made.
    pub(crate) fn is_down(&self, now: Instant) -> bool {
        match self.state {
            LinkState::Down => true,
            LinkState::Connecting => now - self.ordered > SLOW_CONNECT,
            LinkState::Open => false,
        }
    }

    /// Whether the connection broke and could not be made again.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.failures >= 2
    }

    pub(crate) fn readiness(&self, now: Instant) -> Readiness {
        match (&self.troubled, self.state) {
            (_, LinkState::Connecting | LinkState::Down) => Readiness::NotNow,
            (None, LinkState::Open) => Readiness::Ready,
            (Some(t), LinkState::Open) if t.probing || now < t.retry_at => Readiness::NotNow,
            (Some(_), LinkState::Open) => Readiness::Probe,
        }
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
        self.troubled = Some(Trouble { attempts: 0, retry_at: now, probing: false, probed: u16::MAX });
    }

    /// The node answered that it cannot serve now.
    pub(crate) fn in_trouble(&mut self, now: Instant) {
        let (attempts, probed) =
            self.troubled.as_ref().map_or((0, u16::MAX), |t| (t.attempts + u32::from(t.probing), t.probed));
        let retry_at = now + PROBES.delay(attempts);
        self.troubled = Some(Trouble { attempts, retry_at, probing: false, probed });
    }

    /// The node serves. True if it did not before.
    pub(crate) fn well(&mut self) -> bool {
        self.troubled.take().is_some()
    }
}
