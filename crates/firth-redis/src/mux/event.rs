//! What a subscriber sees: messages, and signals about holes between them.

use crate::config::Address;
pub use crate::resp::pubsub::SubscriptionKind;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl SubscriptionKind {
    /// All kinds, in the order of their index.
    pub(crate) const ALL: [Self; 3] = [Self::Channel, Self::Pattern, Self::Sharded];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Channel => 0,
            Self::Pattern => 1,
            Self::Sharded => 2,
        }
    }

    /// The kind as a metric's label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Pattern => "pattern",
            Self::Sharded => "sharded",
        }
    }
}

/// What comes out of a [`Subscription`](super::Subscription), in order.
#[derive(Debug, Clone)]
pub enum Event {
    /// A published message.
    Message(Message),
    /// Something happened to the subscription. Signals stand between the messages around them and
    /// are never dropped; only if thousands of them wait unread, they are joined to one gap around
    /// everything.
    Signal(Signal),
}

impl Event {
    /// The message, if it is one.
    pub fn message(&self) -> Option<&Message> {
        match self {
            Self::Message(message) => Some(message),
            Self::Signal(_) => None,
        }
    }

    /// The signal, if it is one.
    pub fn signal(&self) -> Option<&Signal> {
        match self {
            Self::Signal(signal) => Some(signal),
            Self::Message(_) => None,
        }
    }
}

/// A published message. Two are equal if they say the same, whenever they came.
#[derive(Clone)]
#[non_exhaustive]
pub struct Message {
    /// The kind of subscription that it came for.
    pub kind: SubscriptionKind,
    /// The channel that it was published to.
    pub channel: Bytes,
    /// The pattern that matched, for subscriptions by pattern.
    pub pattern: Option<Bytes>,
    /// What was published.
    pub payload: Bytes,
    /// When the mux got it from the server. Messages that came together have the same time.
    pub received: Instant,
}

impl Message {
    pub(crate) fn new(
        kind: SubscriptionKind,
        channel: Bytes,
        pattern: Option<Bytes>,
        payload: Bytes,
        received: Instant,
    ) -> Self {
        Self { kind, channel, pattern, payload, received }
    }

    /// The name that was subscribed.
    pub(crate) fn subscribed(&self) -> &Bytes {
        self.pattern.as_ref().unwrap_or(&self.channel)
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.channel, &self.pattern, &self.payload)
            == (other.kind, &other.channel, &other.pattern, &other.payload)
    }
}

impl Eq for Message {}

impl std::fmt::Debug for Message {
    /// Sizes only: payloads are never logged (invariant 10).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("kind", &self.kind)
            .field("channel", &self.channel)
            .field("pattern", &self.pattern)
            .field("bytes", &self.payload.len())
            .finish()
    }
}

/// The names that a signal speaks of.
pub type Names = Arc<[Bytes]>;

/// Something that happened to a subscription, or to some of its channels.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Signal {
    /// A slot has a new owner, and these sharded channels are now subscribed there.
    Moved {
        /// The slot.
        slot: u16,
        /// Who served these channels before.
        from: Address,
        /// Who serves them now.
        to: Address,
        /// The channels.
        channels: Names,
    },
    /// The connection to the node that served these channels broke.
    NodeLost {
        /// The node.
        node: Address,
        /// The channels.
        channels: Names,
    },
    /// From here on messages may be missing, until [`Resumed`](Self::Resumed).
    Gap {
        /// Why.
        reason: GapReason,
        /// Since when, at the latest.
        since: Instant,
        /// The channels.
        channels: Names,
    },
    /// The server confirmed these channels anew: from here on nothing is missing.
    Resumed {
        /// How long the gap lasted.
        after: Duration,
        /// The channels.
        channels: Names,
    },
    /// These channels have been without a node for a while; the search goes on.
    Stalled {
        /// For how long.
        after: Duration,
        /// The channels.
        channels: Names,
    },
    /// These channels have been without a node for so long that an operator should check; the
    /// search goes on.
    TimedOut {
        /// For how long.
        after: Duration,
        /// The channels.
        channels: Names,
    },
    /// The subscriber was too slow: messages were dropped exactly here.
    Lagged {
        /// How many.
        dropped: u64,
    },
}

impl Signal {
    /// The names that it speaks of.
    pub(crate) fn names(&self) -> Option<&[Bytes]> {
        match self {
            Self::Moved { channels, .. }
            | Self::NodeLost { channels, .. }
            | Self::Gap { channels, .. }
            | Self::Resumed { channels, .. }
            | Self::Stalled { channels, .. }
            | Self::TimedOut { channels, .. } => Some(channels),
            Self::Lagged { .. } => None,
        }
    }
}

/// Why messages may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GapReason {
    /// The server took the channel away, because its slot moved.
    Migrated,
    /// The connection to the node broke.
    NodeLost,
    /// The cluster's nodes name another owner.
    Reassigned,
    /// The server refuses the channel, for example for lack of permission; its words.
    Refused(String),
}

impl GapReason {
    /// The reasons as a metric's label, in the order of their index.
    pub(crate) const LABELS: [&'static str; 4] = ["migrated", "node_lost", "reassigned", "refused"];

    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Migrated => 0,
            Self::NodeLost => 1,
            Self::Reassigned => 2,
            Self::Refused(_) => 3,
        }
    }
}
