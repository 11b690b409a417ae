//! Counters of a mux, in plain numbers. The core counts; the driver hands the counts of each turn
//! to the metrics (`meter`).

use super::event::{GapReason, SubscriptionKind};
use std::time::Duration;

/// Snapshot of a mux.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MuxStats {
    /// Subscription handles alive.
    pub subscriptions: usize,
    /// Channels that a server has confirmed: each counted once, however many handles share it.
    /// Keyspace notifications of a cluster count once for each master.
    pub channels: usize,
    /// Patterns that a server has confirmed, counted alike.
    pub patterns: usize,
    /// Sharded channels that a server has confirmed, each counted once.
    pub sharded: usize,
    /// Wanted names that no server has confirmed.
    pub unserved: usize,
    /// Nodes with a connection.
    pub connections: usize,
    /// Events that wait in the buffers of subscribers.
    pub queued: usize,
    /// Messages received since the start.
    pub received: u64,
    /// Messages dropped because a subscriber was too slow.
    pub dropped: u64,
    /// Gaps begun.
    pub gaps: u64,
    /// Gaps ended by a new confirmation.
    pub resumed: u64,
    /// Channels that another node served after a gap.
    pub moved: u64,
    /// Gaps that lasted long enough to be called stalled.
    pub stalled: u64,
    /// Gaps that lasted long enough to be called timed out.
    pub timed_out: u64,
    /// Callbacks that ran.
    pub callbacks: u64,
    /// Callbacks that panicked.
    pub callback_panics: u64,
}

/// Counts of one turn, and totals.
#[derive(Debug, Default)]
pub(crate) struct MuxCounters {
    pub(crate) totals: MuxStats,
    pub(super) turn: PendingCounts,
}

/// Counts since the metrics were last told.
#[derive(Debug, Default)]
pub(super) struct PendingCounts {
    pub(super) received: [u64; 3],
    pub(super) asked: [u64; 3],
    pub(super) confirmed: [u64; 3],
    pub(super) refused: [u64; 3],
    pub(super) gaps: [u64; 4],
    pub(super) dropped: u64,
    pub(super) moved: u64,
    pub(super) stalled: u64,
    pub(super) timed_out: u64,
    pub(super) opened: u64,
    pub(super) lost: u64,
    pub(super) failed: u64,
    /// How long the gaps lasted that have ended.
    pub(super) ended: Vec<Duration>,
}

impl MuxCounters {
    pub(crate) fn received(&mut self, kind: SubscriptionKind) {
        self.turn.received[kind.index()] += 1;
        self.totals.received += 1;
    }

    pub(crate) fn asked(&mut self, kind: SubscriptionKind, count: usize) {
        self.turn.asked[kind.index()] += count as u64;
    }

    pub(crate) fn confirmed(&mut self, kind: SubscriptionKind) {
        self.turn.confirmed[kind.index()] += 1;
    }

    pub(crate) fn refused(&mut self, kind: SubscriptionKind, count: usize) {
        self.turn.refused[kind.index()] += count as u64;
    }

    pub(crate) fn dropped(&mut self, count: u64) {
        self.turn.dropped += count;
        self.totals.dropped += count;
    }

    pub(crate) fn gaps_begun(&mut self, reason: &GapReason, count: usize) {
        self.turn.gaps[reason.index()] += count as u64;
        self.totals.gaps += count as u64;
    }

    pub(crate) fn gap_ended(&mut self, after: Duration) {
        self.turn.ended.push(after);
        self.totals.resumed += 1;
    }

    pub(crate) fn moved(&mut self) {
        self.turn.moved += 1;
        self.totals.moved += 1;
    }

    pub(crate) fn stalled(&mut self, count: usize) {
        self.turn.stalled += count as u64;
        self.totals.stalled += count as u64;
    }

    pub(crate) fn timed_out(&mut self, count: usize) {
        self.turn.timed_out += count as u64;
        self.totals.timed_out += count as u64;
    }

    pub(crate) fn connected(&mut self) {
        self.turn.opened += 1;
    }

    /// A connection broke, or (if it did not stand) could not be made.
    pub(crate) fn disconnected(&mut self, stood: bool) {
        if stood {
            self.turn.lost += 1;
        } else {
            self.turn.failed += 1;
        }
    }
}
