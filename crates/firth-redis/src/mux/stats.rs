//! What a mux has done and what it holds: for [`Mux::stats`](super::Mux::stats), and as metrics. The core counts in
//! plain numbers; the driver hands them to the `metrics` handles once per turn. Labels are bounded: the kind of
//! subscription and the outcome, never a channel, a pattern or a slot.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::event::Kind;

/// A look at a mux.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MuxStats {
    /// Subscription handles alive.
    pub subscriptions: usize,
    /// Names subscribed at servers, by kind: each counted once, however many handles share it.
    pub channels: usize,
    /// See `channels`.
    pub patterns: usize,
    /// See `channels`.
    pub sharded: usize,
    /// Names that no node serves now.
    pub homeless: usize,
    /// Nodes with a connection.
    pub connections: usize,
    /// Messages received since the start.
    pub received: u64,
    /// Messages dropped because a subscriber was too slow.
    pub dropped: u64,
    /// Gaps begun.
    pub gaps: u64,
    /// Gaps ended by a new confirmation.
    pub resumed: u64,
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
pub(crate) struct Tally {
    pub(crate) totals: MuxStats,
    received: [u64; 3],
    asked: [u64; 3],
    confirmed: [u64; 3],
    refused: [u64; 3],
    dropped: u64,
    gaps: u64,
    stalled: u64,
    timed_out: u64,
    ended: Vec<Duration>,
}

impl Tally {
    pub(crate) fn received(&mut self, kind: Kind) {
        self.received[kind.index()] += 1;
        self.totals.received += 1;
    }

    pub(crate) fn asked(&mut self, kind: Kind, count: usize) {
        self.asked[kind.index()] += count as u64;
    }

    pub(crate) fn confirmed(&mut self, kind: Kind) {
        self.confirmed[kind.index()] += 1;
    }

    pub(crate) fn refused(&mut self, kind: Kind, count: usize) {
        self.refused[kind.index()] += count as u64;
    }

    pub(crate) fn dropped(&mut self, count: u64) {
        self.dropped += count;
        self.totals.dropped += count;
    }

    pub(crate) fn gaps_begun(&mut self, count: usize) {
        self.gaps += count as u64;
        self.totals.gaps += count as u64;
    }

    pub(crate) fn gap_ended(&mut self, after: Duration) {
        self.ended.push(after);
        self.totals.resumed += 1;
    }

    pub(crate) fn stalled(&mut self, count: usize) {
        self.stalled += count as u64;
        self.totals.stalled += count as u64;
    }

    pub(crate) fn timed_out(&mut self, count: usize) {
        self.timed_out += count as u64;
        self.totals.timed_out += count as u64;
    }
}

/// Handles made once per mux.
pub(crate) struct MuxMeter {
    received: [Counter; 3],
    asked: [Counter; 3],
    confirmed: [Counter; 3],
    refused: [Counter; 3],
    dropped: Counter,
    gaps: Counter,
    resumed: Counter,
    stalled: Counter,
    timed_out: Counter,
    gap_seconds: Histogram,
    names: [Gauge; 3],
    homeless: Gauge,
    connections: Gauge,
    pub(crate) connections_opened: Counter,
    pub(crate) connections_lost: Counter,
    pub(crate) subscriptions: Gauge,
    pub(crate) callbacks: Counter,
    pub(crate) callback_panics: Counter,
    pub(crate) callback_seconds: Histogram,
    pub(crate) callback_wait_seconds: Histogram,
    pub(crate) callback_queue: Gauge,
    pub(crate) callback_queue_capacity: Gauge,
}

impl MuxMeter {
    pub(crate) fn new() -> Self {
        let each = |name: &'static str| Kind::ALL.map(|kind| counter!(name, "kind" => kind.label()));
        Self {
            received: each("firth_mux_messages_received_total"),
            asked: each("firth_mux_subscribe_attempts_total"),
            confirmed: each("firth_mux_subscribe_confirmed_total"),
            refused: each("firth_mux_subscribe_refused_total"),
            dropped: counter!("firth_mux_messages_dropped_total"),
            gaps: counter!("firth_mux_gaps_total"),
            resumed: counter!("firth_mux_gaps_resumed_total"),
            stalled: counter!("firth_mux_gaps_stalled_total"),
            timed_out: counter!("firth_mux_gaps_timed_out_total"),
            gap_seconds: histogram!("firth_mux_gap_seconds"),
            names: Kind::ALL.map(|kind| gauge!("firth_mux_server_subscriptions", "kind" => kind.label())),
            homeless: gauge!("firth_mux_homeless_channels"),
            connections: gauge!("firth_mux_connections"),
            connections_opened: counter!("firth_mux_connections_opened_total"),
            connections_lost: counter!("firth_mux_connections_lost_total"),
            subscriptions: gauge!("firth_mux_subscriptions"),
            callbacks: counter!("firth_mux_callbacks_total"),
            callback_panics: counter!("firth_mux_callback_panics_total"),
            callback_seconds: histogram!("firth_mux_callback_seconds"),
            callback_wait_seconds: histogram!("firth_mux_callback_wait_seconds"),
            callback_queue: gauge!("firth_mux_callback_queue"),
            callback_queue_capacity: gauge!("firth_mux_callback_queue_capacity"),
        }
    }

    /// Hands over the counts of a turn.
    pub(crate) fn record(&self, tally: &mut Tally) {
        let totals = std::mem::take(&mut tally.totals);
        let turn = std::mem::take(tally);
        tally.totals = totals;
        let each = |counters: &[Counter; 3], counts: [u64; 3]| {
            counters.iter().zip(counts).filter(|(_, n)| *n > 0).for_each(|(c, n)| c.increment(n));
        };
        each(&self.received, turn.received);
        each(&self.asked, turn.asked);
        each(&self.confirmed, turn.confirmed);
        each(&self.refused, turn.refused);
        self.dropped.increment(turn.dropped);
        self.gaps.increment(turn.gaps);
        self.resumed.increment(turn.ended.len() as u64);
        self.stalled.increment(turn.stalled);
        self.timed_out.increment(turn.timed_out);
        turn.ended.iter().for_each(|after| self.gap_seconds.record(after.as_secs_f64()));
    }

    /// Hands over what the mux holds.
    pub(crate) fn hold(&self, stats: &MuxStats) {
        for (gauge, count) in self.names.iter().zip([stats.channels, stats.patterns, stats.sharded]) {
            gauge.set(count as f64);
        }
        self.homeless.set(stats.homeless as f64);
        self.connections.set(stats.connections as f64);
        self.subscriptions.set(stats.subscriptions as f64);
    }
}
