//! The node's metrics, all names in one place. Labels are gateways (no more than a limit) and fixed
//! words; never keys or ids.

use crate::lane::{Lane, LaneCounters, Outcome, Pressure, ReleaseCause, Released};
use crate::name::GatewayId;
use metrics::{counter, gauge, histogram};
use std::collections::HashSet;
use std::time::Duration;

/// Records the time and the counts of matched events: `wanted` by some gateway, or `unwanted`.
pub(super) fn routed(took: Duration, wanted: usize, unwanted: usize) {
    let count = wanted + unwanted;
    if count > 0 {
        let each = took.as_secs_f64() / count as f64;
        histogram!("firth_router_routing_seconds").record_many(each, count);
    }
    for (is_wanted, count) in [("yes", wanted), ("no", unwanted)].into_iter().filter(|(_, count)| *count > 0)
    {
        counter!("firth_router_events_total", "wanted" => is_wanted).increment(count as u64);
    }
}

/// A record was given up before it reached a lane.
pub(super) fn unroutable() {
    counter!("firth_router_unroutable_total").increment(1);
}

/// A gateway was parked, or caught up again.
pub(super) fn parking(step: &'static str) {
    counter!("firth_router_parking_total", "step" => step).increment(1);
}

/// A batch came back.
pub(super) fn delivery(outcome: &Outcome, events: usize, took: Duration) {
    let result = match outcome {
        Outcome::Accepted => "accepted",
        Outcome::Answered(_) => "answered",
        Outcome::Unreached => "unreached",
        Outcome::Busy(_) => "busy",
    };
    histogram!("firth_router_delivery_seconds").record(took);
    counter!("firth_router_batches_total", "result" => result).increment(1);
    counter!("firth_router_batch_events_total", "result" => result).increment(events as u64);
}

/// Events left a lane.
pub(super) fn released(released: &[Released]) {
    let mut counts = [("delivered", 0), ("dead", 0), ("gapped", 0), ("parked", 0)];
    for one in released {
        let place = match one.cause {
            ReleaseCause::Delivered => 0,
            ReleaseCause::Dead(_) => 1,
            ReleaseCause::Gapped => 2,
            ReleaseCause::Parked => 3,
        };
        counts[place].1 += 1;
    }
    for (cause, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        counter!("firth_router_released_total", "fate" => cause).increment(count);
    }
}

/// The most gateways that ever have a label of their own; what the others count goes under `other`,
/// and they have no gauges.
const MAX_LABELS: usize = 1000;

/// The gateways that have a label: none is taken away, so that no more series than that are ever
/// made.
#[derive(Default)]
pub(super) struct Labels(HashSet<GatewayId>);

impl Labels {
    /// The label of a gateway, if it may have one.
    pub(super) fn of(&mut self, gateway: &GatewayId) -> Option<String> {
        if self.0.len() < MAX_LABELS && !self.0.contains(gateway) {
            self.0.insert(gateway.clone());
        }
        let label = self.0.contains(gateway).then(|| gateway.to_string())?;
        // A rate over a counter needs its beginning.
        for level in ["soft", "hard"] {
            counter!("firth_router_pressure_events_total", "gateway" => label.clone(), "level" => level)
                .increment(0);
        }
        Some(label)
    }
}

/// A lane as it stands, and what it has counted.
pub(super) fn lane(label: Option<&str>, lane: &mut Lane) {
    let gateway = label.unwrap_or("other");
    let LaneCounters { soft, hard, retries, lost } = lane.take_counters();
    if lost > 0 {
        counter!("firth_router_released_total", "fate" => "gapped").increment(lost);
    }
    for (level, times) in [("soft", soft), ("hard", hard)].into_iter().filter(|(_, times)| *times > 0) {
        counter!("firth_router_pressure_events_total", "gateway" => gateway.to_owned(), "level" => level)
            .increment(times);
    }
    if retries > 0 {
        counter!("firth_router_retries_total", "gateway" => gateway.to_owned()).increment(retries);
    }
    if let Some(label) = label {
        let level = match lane.pressure() {
            Pressure::None => 0.0,
            Pressure::Soft => 1.0,
            Pressure::Hard => 2.0,
        };
        stands(label, lane.held() as f64, level);
    }
}

/// How many partitions a gateway is fed from the topic for.
pub(super) fn parked(label: Option<&str>, partitions: usize) {
    if let Some(label) = label {
        gauge!("firth_router_parked_partitions", "gateway" => label.to_owned()).set(partitions as f64);
    }
}

/// A gateway is gone: its gauges must not go on saying what was.
pub(super) fn gone(label: Option<&str>) {
    parked(label, 0);
    if let Some(label) = label {
        stands(label, 0.0, 0.0);
    }
}

fn stands(gateway: &str, held: f64, pressure: f64) {
    gauge!("firth_router_queue_events", "gateway" => gateway.to_owned()).set(held);
    gauge!("firth_router_pressure", "gateway" => gateway.to_owned()).set(pressure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_gateways_that_come_and_go_make_no_more_labels_than_the_limit() {
        let mut labels = Labels::default();
        let id = |n: usize| GatewayId::new(format!("pod-{n}")).unwrap();
        let named = (0..3 * MAX_LABELS).filter(|n| labels.of(&id(*n)).is_some()).count();
        assert_eq!(named, MAX_LABELS);
        assert_eq!(labels.of(&id(7)).as_deref(), Some("pod-7"), "it comes back under its own");
    }
}
