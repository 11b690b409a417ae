//! All metric names of this crate, and handles that are made once per producer or lane so that
//! recording costs a few nanoseconds. Labels are bounded: topic, group and result; never keys, ids
//! or member names. The guide's page on operating lists them for users.

use crate::admin::GroupInfo;
use crate::error::{ErrorKind, Result};
use firth_engine::{GroupName, TopicName};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Handles of one producer.
pub(crate) struct ProducerMeter {
    sent: Counter,
    failed: Counter,
    lost: Counter,
    batch: Histogram,
    took: Histogram,
    waits: Counter,
    waited: Histogram,
}

impl ProducerMeter {
    pub(crate) fn new(topic: &TopicName) -> Self {
        let topic = topic.to_string();
        Self {
            sent: counter!("firth_produced_total", "topic" => topic.clone(), "result" => "ok"),
            failed: counter!("firth_produced_total", "topic" => topic.clone(), "result" => "error"),
            lost: counter!("firth_lost_sends_total", "topic" => topic.clone()),
            batch: histogram!("firth_produce_batch_records", "topic" => topic.clone()),
            took: histogram!("firth_produce_seconds", "topic" => topic.clone()),
            waits: counter!("firth_backpressure_waits_total", "topic" => topic.clone()),
            waited: histogram!("firth_backpressure_wait_seconds", "topic" => topic),
        }
    }

    /// A sender had to wait for room.
    pub(crate) fn waited(&self, time: Duration) {
        self.waits.increment(1);
        self.waited.record(time.as_secs_f64());
    }

    /// The engine lost `count` messages that it had acknowledged.
    pub(crate) fn lost(&self, count: u64) {
        self.lost.increment(count);
    }

    /// An append of `count` messages took this long, with all its tries.
    pub(crate) fn sent(&self, count: usize, took: Duration, ok: bool) {
        if ok { &self.sent } else { &self.failed }.increment(count as u64);
        self.batch.record(count as f64);
        self.took.record(took.as_secs_f64());
    }
}

/// Handles of one writer of a source.
pub(crate) struct SourceMeter {
    producer: ProducerMeter,
    duplicates: Counter,
    fenced: Counter,
}

impl SourceMeter {
    pub(crate) fn new(topic: &TopicName) -> Self {
        Self {
            producer: ProducerMeter::new(topic),
            duplicates: counter!("firth_source_duplicates_total", "topic" => topic.to_string()),
            fenced: counter!("firth_source_fenced_total", "topic" => topic.to_string()),
        }
    }

    /// An append of `count` messages took this long, with all its tries; `answer` says whether the
    /// log had it already.
    pub(crate) fn appended(&self, count: usize, took: Duration, answer: Result<bool, ErrorKind>) {
        match answer {
            Err(ErrorKind::Fenced) => self.fenced.increment(1),
            _ if count == 0 => {}
            Ok(true) => self.duplicates.increment(1),
            answer => self.producer.sent(count, took, answer.is_ok()),
        }
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
    pub(crate) in_flight: InFlight,
    pub(crate) owned: Gauge,
    commit: Histogram,
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
            in_flight: InFlight { gauge: gauge!("firth_records_in_flight", &labels), count: Arc::default() },
            owned: gauge!("firth_partitions_owned", &labels),
            commit: histogram!("firth_commit_seconds", &labels),
            handle: histogram!("firth_handle_seconds", &labels),
            end_to_end: histogram!("firth_end_to_end_seconds", &labels),
        }
    }

    /// A commit took this long.
    pub(crate) fn committed(&self, took: Duration) {
        self.commits.increment(1);
        self.commit.record(took.as_secs_f64());
    }

    /// A handler ran this long on a record that was sent `age` ago.
    pub(crate) fn handled(&self, took: Duration, age: Duration) {
        self.handle.record(took.as_secs_f64());
        self.end_to_end.record(age.as_secs_f64());
    }
}

/// Records that are handed out and not judged: a gauge for the outside, a count for the consumer's
/// handle.
#[derive(Clone)]
pub(crate) struct InFlight {
    gauge: Gauge,
    count: Arc<AtomicUsize>,
}

impl InFlight {
    pub(crate) fn increment(&self, records: f64) {
        self.gauge.increment(records);
        self.count.fetch_add(records as usize, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self, records: f64) {
        self.gauge.decrement(records);
        self.count.fetch_sub(records as usize, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// A topic was looked after: records and dead letters removed, partitions where unsettled records
/// held retention back.
pub(crate) fn swept(topic: &TopicName, records: u64, letters: u64, held_back: u64) {
    let topic = topic.to_string();
    counter!("firth_sweeps_total", "topic" => topic.clone()).increment(1);
    counter!("firth_trimmed_total", "topic" => topic.clone()).increment(records);
    counter!("firth_dead_letters_expired_total", "topic" => topic.clone()).increment(letters);
    gauge!("firth_retention_held_back", "topic" => topic).set(held_back as f64);
}

/// Dead letters were replayed; or the attempt to do so failed.
pub(crate) fn replayed(topic: &TopicName, result: &Result<u64>) {
    let topic = topic.to_string();
    match result {
        Ok(count) => counter!("firth_replayed_total", "topic" => topic).increment(*count),
        Err(_) => counter!("firth_replay_failures_total", "topic" => topic).increment(1),
    }
}

/// Dead letters were deleted by hand.
pub(crate) fn buried(topic: &TopicName, count: u64) {
    counter!("firth_dead_letters_deleted_total", "topic" => topic.to_string()).increment(count);
}

/// Sets a topic's gauges to the figures that an `admin` call just read.
pub(crate) fn seen_topic(topic: &TopicName, records: u64, delayed: u64) {
    let topic = topic.to_string();
    gauge!("firth_topic_records", "topic" => topic.clone()).set(records as f64);
    gauge!("firth_topic_delayed", "topic" => topic).set(delayed as f64);
}

/// Sets a group's gauges to the figures that an `admin` call just read.
pub(crate) fn seen_group(info: &GroupInfo) {
    let labels = [("topic", info.topic.to_string()), ("group", info.group.to_string())];
    gauge!("firth_group_lag", &labels).set(info.lag() as f64);
    gauge!("firth_group_due", &labels).set(info.due() as f64);
    gauge!("firth_group_dead_letters", &labels).set(info.dead() as f64);
    gauge!("firth_group_members", &labels).set(info.members.len() as f64);
    gauge!("firth_group_oldest_seconds", &labels).set(info.oldest().unwrap_or_default().as_secs_f64());
}
