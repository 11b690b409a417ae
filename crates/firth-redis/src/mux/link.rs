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
    /// Which of its connections stands.
    pub(crate) generation: u64,
    pub(crate) ops: VecDeque<Op>,
    /// Channels that are served here, or asked for.
    pub(crate) load: usize,
    /// Messages that a full mailbox with policy `Block` has not taken yet; nothing is read meanwhile.
    pub(crate) stuck: VecDeque<(Arc<Mailbox>, VecDeque<Message>)>,
    /// Set while the node answers but cannot serve (loading, cluster down): one probe at a time.
    troubled: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    attempts: u32,
    retry_at: Instant,
    probing: bool,
}

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
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            state: LinkState::Connecting,
            generation: 0,
            ops: VecDeque::new(),
            load: 0,
            stuck: VecDeque::new(),
            troubled: None,
        }
    }

    pub(crate) fn readiness(&self, now: Instant) -> Readiness {
        match (&self.troubled, self.state) {
            (_, LinkState::Connecting | LinkState::Down) => Readiness::NotNow,
            (None, LinkState::Open) => Readiness::Ready,
            (Some(t), LinkState::Open) if t.probing || now < t.retry_at => Readiness::NotNow,
            (Some(_), LinkState::Open) => Readiness::Probe,
        }
    }

    /// A probe was sent.
    pub(crate) fn probing(&mut self) {
        if let Some(trouble) = &mut self.troubled {
            trouble.probing = true;
        }
    }

    /// The node answered that it cannot serve now.
    pub(crate) fn in_trouble(&mut self, now: Instant) {
        let attempts = self.troubled.as_ref().map_or(0, |t| t.attempts + u32::from(t.probing));
        self.troubled = Some(Trouble { attempts, retry_at: now + PROBES.delay(attempts), probing: false });
    }

    /// The node serves. True if it did not before.
    pub(crate) fn well(&mut self) -> bool {
        self.troubled.take().is_some()
    }
}
