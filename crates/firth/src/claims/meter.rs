//! The metrics of claims. Labels are bounded: service, and what happened; never names of offers or
//! workers.

use firth_engine::ServiceName;
use firth_engine::facet::PreviousOwner;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// Handles of one worker.
pub(crate) struct WorkerMeter {
    new: Counter,
    released: Counter,
    orphaned: Counter,
    pub(crate) done: Counter,
    pub(crate) given_back: Counter,
    pub(crate) recalled: Counter,
    pub(crate) lost: Counter,
    pub(crate) beats: Counter,
    pub(crate) failed_beats: Counter,
    pub(crate) joins: Counter,
    pub(crate) reconciled: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) held: Gauge,
    pub(crate) waiting: Gauge,
    grant: Histogram,
    processing: Histogram,
}

impl WorkerMeter {
    pub(crate) fn new(service: &ServiceName) -> Self {
        let service = service.to_string();
        let granted =
            |kind| counter!("firth_claims_granted_total", "service" => service.clone(), "kind" => kind);
        let ended =
            |result| counter!("firth_claims_ended_total", "service" => service.clone(), "result" => result);
        let beats =
            |result| counter!("firth_claims_beats_total", "service" => service.clone(), "result" => result);
        Self {
            new: granted("new"),
            released: granted("released"),
            orphaned: granted("orphaned"),
            done: ended("done"),
            given_back: ended("released"),
            recalled: counter!("firth_claims_recalled_total", "service" => service.clone()),
            lost: ended("lost"),
            beats: beats("ok"),
            failed_beats: beats("error"),
            joins: counter!("firth_claims_joins_total", "service" => service.clone()),
            reconciled: counter!("firth_claims_reconciled_total", "service" => service.clone()),
            checkpoints: counter!("firth_claims_checkpoints_total", "service" => service.clone()),
            held: gauge!("firth_claims_held", "service" => service.clone()),
            waiting: gauge!("firth_claims_events_waiting", "service" => service.clone()),
            grant: histogram!("firth_claims_grant_seconds", "service" => service.clone()),
            processing: histogram!("firth_claims_processing_seconds", "service" => service),
        }
    }

    pub(crate) fn granted(&self, former: &PreviousOwner) {
        match former {
            PreviousOwner::Nobody => &self.new,
            PreviousOwner::Released(_) => &self.released,
            PreviousOwner::Vanished(_) => &self.orphaned,
        }
        .increment(1);
    }

    /// A grant took so long to be asked for.
    pub(crate) fn asked(&self, took: Duration) {
        self.grant.record(took.as_secs_f64());
    }

    /// A claim was held so long.
    pub(crate) fn held_for(&self, time: Duration) {
        self.processing.record(time.as_secs_f64());
    }
}
