//! All metric names of this crate, and handles that are made once per producer or lane so that recording costs a few nanoseconds.
//! Labels are bounded: topic, group and result; never keys, ids or member names.

use firth_engine::{GroupName, TopicName};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// Handles of one producer.
pub(crate) struct ProducerMeter {
    sent: Counter,
    failed: Counter,
    batch: Histogram,
}

impl ProducerMeter {
    pub(crate) fn new(topic: &TopicName) -> Self {
        let topic = topic.to_string();
        Self {
            sent: counter!("firth_produced_total", "topic" => topic.clone(), "result" => "ok"),
            failed: counter!("firth_produced_total", "topic" => topic.clone(), "result" => "error"),
            batch: histogram!("firth_produce_batch_records", "topic" => topic),
        }
    }

    pub(crate) fn sent(&self, count: usize, ok: bool) {
        if ok { &self.sent } else { &self.failed }.increment(count as u64);
        self.batch.record(count as f64);
    }
}

/// Handles of one group of one topic, shared by its lanes.
#[derive(Clone)]
pub(crate) struct GroupMeter {
    pub(crate) delivered: Counter,
    pub(crate) acked: Counter,
    pub(crate) retried: Counter,
    pub(crate) dead: Counter,
    pub(crate) panicked: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) lost: Counter,
    pub(crate) fenced: Counter,
    pub(crate) commits: Counter,
    pub(crate) reopened: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) owned: Gauge,
    handle: Histogram,
    end_to_end: Histogram,
}

impl GroupMeter {
    pub(crate) fn new(topic: &TopicName, group: &GroupName) -> Self {
        let labels = [("topic", topic.to_string()), ("group", group.to_string())];
        Self {
            delivered: counter!("firth_delivered_total", &labels),
            acked: counter!("firth_acked_total", &labels),
            retried: counter!("firth_retried_total", &labels),
            dead: counter!("firth_dead_letters_total", &labels),
            panicked: counter!("firth_handler_panics_total", &labels),
            timed_out: counter!("firth_handler_timeouts_total", &labels),
            lost: counter!("firth_lost_records_total", &labels),
            fenced: counter!("firth_fenced_total", &labels),
            commits: counter!("firth_commits_total", &labels),
            reopened: counter!("firth_reopened_total", &labels),
            in_flight: gauge!("firth_records_in_flight", &labels),
            owned: gauge!("firth_partitions_owned", &labels),
            handle: histogram!("firth_handle_seconds", &labels),
            end_to_end: histogram!("firth_end_to_end_seconds", &labels),
        }
    }

    /// A handler ran this long on a record that was sent `age` ago.
    pub(crate) fn handled(&self, took: Duration, age: Duration) {
        self.handle.record(took.as_secs_f64());
        self.end_to_end.record(age.as_secs_f64());
    }
}

/// Retention removed records.
pub(crate) fn trimmed(topic: &TopicName, records: u64) {
    if records > 0 {
        counter!("firth_trimmed_total", "topic" => topic.to_string()).increment(records);
    }
}

/// Dead letters were replayed.
pub(crate) fn replayed(topic: &TopicName, count: u64) {
    if count > 0 {
        counter!("firth_replayed_total", "topic" => topic.to_string()).increment(count);
    }
}
