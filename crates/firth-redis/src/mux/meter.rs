//! The metrics of a mux: all of their names, and handles made once per mux, so that recording is a
//! few nanoseconds. Labels are bounded: the kind of a name and the reason of a gap, never a
//! channel, a pattern or a slot. Gauges are told by how much they change, so that several muxes of
//! one process add up, and fall back when a mux ends.

use super::event::{GapReason, Message, SubscriptionKind};
use super::stats::{MuxCounters, MuxStats};
use crate::metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Handles made once per mux.
pub(crate) struct MuxMeter {
    received: [Counter; 3],
    asked: [Counter; 3],
    confirmed: [Counter; 3],
    refused: [Counter; 3],
    gaps: [Counter; 4],
    dropped: Counter,
    resumed: Counter,
    moved: Counter,
    stalled: Counter,
    timed_out: Counter,
    gap_seconds: Histogram,
    connections_opened: Counter,
    connections_lost: Counter,
    connections_failed: Counter,
    names: [Gauge; 3],
    unserved: Gauge,
    connections: Gauge,
    subscriptions: Gauge,
    queued: Gauge,
    held: Mutex<MuxStats>,
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) task_panics: Counter,
    pub(crate) callbacks: CallbackMeter,
}

/// What waits in the mailboxes of a mux.
pub(crate) struct Backlog {
    events: AtomicUsize,
    /// From the server's message to its subscriber, for the oldest message of each read.
    seconds: Histogram,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { events: AtomicUsize::new(0), seconds: Histogram::noop() }
    }
}

impl std::fmt::Debug for Backlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backlog").field("events", &self.len()).finish()
    }
}

impl Backlog {
    /// A mailbox held `before` events, and now holds `now`.
    pub(crate) fn changed(&self, before: usize, now: usize) {
        if before != now {
            self.events.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Events that wait.
    pub(crate) fn len(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }

    /// A subscriber has taken what waited; this is the oldest message of it.
    pub(crate) fn taken(&self, oldest: Option<&Message>) {
        if let Some(message) = oldest.filter(|_| cfg!(feature = "metrics")) {
            self.seconds.record(message.received.elapsed().as_secs_f64());
        }
    }
}

/// The part of the workers that run callbacks.
#[derive(Clone)]
pub(crate) struct CallbackMeter {
    /// By kind.
    pub(crate) runs: [Counter; 3],
    pub(crate) panics: [Counter; 3],
    /// Subscriptions given to the workers because events have come.
    pub(crate) submissions: Counter,
    /// Events that came and were never run, because the subscription had ended.
    pub(crate) dropped: Counter,
    /// Callback subscriptions that were refused, because there are too many.
    pub(crate) refused: Counter,
    /// How long callbacks take.
    pub(crate) seconds: Histogram,
    /// How long subscriptions with events wait for a worker.
    pub(crate) wait_seconds: Histogram,
    pub(crate) queue: Gauge,
    pub(crate) queue_capacity: Gauge,
}

impl MuxMeter {
    pub(crate) fn new() -> Self {
        let each =
            |name: &'static str| SubscriptionKind::ALL.map(|kind| counter!(name, "kind" => kind.label()));
        Self {
            received: each("firth_mux_messages_received_total"),
            asked: each("firth_mux_subscribe_attempts_total"),
            confirmed: each("firth_mux_subscribe_confirmed_total"),
            refused: each("firth_mux_subscribe_refused_total"),
            gaps: GapReason::LABELS.map(|reason| counter!("firth_mux_gaps_total", "reason" => reason)),
            dropped: counter!("firth_mux_messages_dropped_total"),
            resumed: counter!("firth_mux_gaps_resumed_total"),
            moved: counter!("firth_mux_channels_moved_total"),
            stalled: counter!("firth_mux_gaps_stalled_total"),
            timed_out: counter!("firth_mux_gaps_timed_out_total"),
            gap_seconds: histogram!("firth_mux_gap_seconds"),
            connections_opened: counter!("firth_mux_connections_opened_total"),
            connections_lost: counter!("firth_mux_connections_lost_total"),
            connections_failed: counter!("firth_mux_connections_failed_total"),
            names: SubscriptionKind::ALL
                .map(|kind| gauge!("firth_mux_server_subscriptions", "kind" => kind.label())),
            unserved: gauge!("firth_mux_homeless_channels"),
            connections: gauge!("firth_mux_connections"),
            subscriptions: gauge!("firth_mux_subscriptions"),
            queued: gauge!("firth_mux_queued_events"),
            held: Mutex::default(),
            backlog: Arc::new(Backlog {
                events: AtomicUsize::new(0),
                seconds: histogram!("firth_mux_delivery_seconds"),
            }),
            task_panics: counter!("firth_mux_task_panics_total"),
            callbacks: CallbackMeter {
                runs: each("firth_mux_callbacks_total"),
                panics: each("firth_mux_callback_panics_total"),
                submissions: counter!("firth_mux_callback_submissions_total"),
                dropped: counter!("firth_mux_callback_events_dropped_total"),
                refused: counter!("firth_mux_callback_refused_total"),
                seconds: histogram!("firth_mux_callback_seconds"),
                wait_seconds: histogram!("firth_mux_callback_wait_seconds"),
                queue: gauge!("firth_mux_callback_queue"),
                queue_capacity: gauge!("firth_mux_callback_queue_capacity"),
            },
        }
    }

    /// Hands over the counts of a turn.
    pub(crate) fn record(&self, counters: &mut MuxCounters) {
        let turn = std::mem::take(&mut counters.turn);
        each(&self.received, &turn.received);
        each(&self.asked, &turn.asked);
        each(&self.confirmed, &turn.confirmed);
        each(&self.refused, &turn.refused);
        each(&self.gaps, &turn.gaps);
        let ended = turn.ended.len() as u64;
        let plain = [
            (&self.dropped, turn.dropped),
            (&self.resumed, ended),
            (&self.moved, turn.moved),
            (&self.stalled, turn.stalled),
            (&self.timed_out, turn.timed_out),
            (&self.connections_opened, turn.opened),
            (&self.connections_lost, turn.lost),
            (&self.connections_failed, turn.failed),
        ];
        plain.into_iter().filter(|(_, n)| *n > 0).for_each(|(counter, n)| counter.increment(n));
        turn.ended.iter().for_each(|after| self.gap_seconds.record(after.as_secs_f64()));
    }

    /// Tells what the mux holds now.
    pub(crate) fn hold(&self, now: MuxStats) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *held, now);
        let change = |gauge: &Gauge, what: fn(&MuxStats) -> usize| {
            gauge.increment(what(&held) as f64 - what(&before) as f64);
        };
        let [channels, patterns, sharded] = &self.names;
        change(channels, |s| s.channels);
        change(patterns, |s| s.patterns);
        change(sharded, |s| s.sharded);
        change(&self.unserved, |s| s.unserved);
        change(&self.connections, |s| s.connections);
        change(&self.subscriptions, |s| s.subscriptions);
        change(&self.queued, |s| s.queued);
    }
}

impl Drop for MuxMeter {
    fn drop(&mut self) {
        self.hold(MuxStats::default());
    }
}

fn each<const N: usize>(counters: &[Counter; N], counts: &[u64; N]) {
    counters.iter().zip(counts).filter(|(_, n)| **n > 0).for_each(|(counter, n)| counter.increment(*n));
}
