//! System events on the wire: what `/v1/events` tells.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that happened, or a figure of the last second. Never payloads or keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum SystemEvent {
    TopicCreated {
        topic: String,
        partitions: u32,
    },
    TopicGrown {
        topic: String,
        partitions: u32,
    },
    TopicDeleted {
        topic: String,
    },
    GroupCreated {
        topic: String,
        group: String,
    },
    GroupDeleted {
        topic: String,
        group: String,
    },
    GroupReset {
        topic: String,
        group: String,
    },
    MemberJoined {
        topic: String,
        group: String,
        member: String,
    },
    MemberLeft {
        topic: String,
        group: String,
        member: String,
    },
    /// `count` records were given up since the last look.
    DeadLetter {
        topic: String,
        group: String,
        count: u64,
        total: u64,
    },
    /// Dead letters went away: replayed, deleted or expired.
    DeadLettersGone {
        topic: String,
        group: String,
        count: u64,
        total: u64,
    },
    /// A group's lag, whenever it changed.
    Lag {
        topic: String,
        group: String,
        lag: u64,
        due: u64,
        oldest_ms: Option<u64>,
    },
    /// Records per second over the last look, of topics where something moved.
    Throughput {
        topic: String,
        produced_per_second: f64,
        records: u64,
        delayed: u64,
    },
    /// Settled records per second of a group where something moved.
    Settled {
        topic: String,
        group: String,
        per_second: f64,
    },
    /// This listener was too slow: this many events are missing here.
    Missed {
        count: u64,
    },
    /// There are more topics than are watched.
    Truncated {
        topics: usize,
        watched: usize,
    },
}

impl SystemEvent {
    /// Its name on the wire.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::TopicCreated { .. } => "topic_created",
            Self::TopicGrown { .. } => "topic_grown",
            Self::TopicDeleted { .. } => "topic_deleted",
            Self::GroupCreated { .. } => "group_created",
            Self::GroupDeleted { .. } => "group_deleted",
            Self::GroupReset { .. } => "group_reset",
            Self::MemberJoined { .. } => "member_joined",
            Self::MemberLeft { .. } => "member_left",
            Self::DeadLetter { .. } => "dead_letter",
            Self::DeadLettersGone { .. } => "dead_letters_gone",
            Self::Lag { .. } => "lag",
            Self::Throughput { .. } => "throughput",
            Self::Settled { .. } => "settled",
            Self::Missed { .. } => "missed",
            Self::Truncated { .. } => "truncated",
        }
    }

    /// The topic that it is about.
    pub(crate) fn topic(&self) -> Option<&str> {
        match self {
            Self::TopicCreated { topic, .. }
            | Self::TopicGrown { topic, .. }
            | Self::TopicDeleted { topic }
            | Self::GroupCreated { topic, .. }
            | Self::GroupDeleted { topic, .. }
            | Self::GroupReset { topic, .. }
            | Self::MemberJoined { topic, .. }
            | Self::MemberLeft { topic, .. }
            | Self::DeadLetter { topic, .. }
            | Self::DeadLettersGone { topic, .. }
            | Self::Lag { topic, .. }
            | Self::Throughput { topic, .. }
            | Self::Settled { topic, .. } => Some(topic),
            Self::Missed { .. } | Self::Truncated { .. } => None,
        }
    }
}
