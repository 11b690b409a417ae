//! The node's metrics, all names in one place. Labels are gateways (no more than a limit) and fixed words; never keys or ids.

use crate::lane::{Fate, Lane, Outcome, Pressure, Released, Tally};
use crate::name::GatewayId;
use metrics::{counter, gauge, histogram};
use std::time::Duration;

/// Events were matched together: so many that some gateway wants, and so many for nobody.
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
        let place = match one.fate {
            Fate::Delivered => 0,
            Fate::Dead(_) => 1,
            Fate::Gapped => 2,
            Fate::Parked => 3,
        };
        counts[place].1 += 1;
    }
    for (fate, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        counter!("firth_router_released_total", "fate" => fate).increment(count);
    }
}

/// The most gateways that have a label of their own; what the others count goes under `other`, and they have no gauges.
const MAX_LABELS: u64 = 1000;

/// A lane as it stands, and what it has counted. `number` is the lane's at this node.
pub(super) fn lane(gateway: &GatewayId, number: u64, lane: &mut Lane) {
    let is_named = number < MAX_LABELS;
    let gateway = if is_named { gateway.to_string() } else { "other".to_owned() };
    let Tally { soft, hard, retries, lost } = lane.take_tally();
    if lost > 0 {
        counter!("firth_router_released_total", "fate" => "gapped").increment(lost);
    }
    for (level, times) in [("soft", soft), ("hard", hard)].into_iter().filter(|(_, times)| *times > 0) {
        counter!("firth_router_pressure_events_total", "gateway" => gateway.clone(), "level" => level)
            .increment(times);
    }
    if retries > 0 {
        counter!("firth_router_retries_total", "gateway" => gateway.clone()).increment(retries);
    }
    if !is_named {
        return;
    }
    gauge!("firth_router_queue_events", "gateway" => gateway.clone()).set(lane.held() as f64);
    let level = match lane.pressure() {
        Pressure::None => 0.0,
        Pressure::Soft => 1.0,
        Pressure::Hard => 2.0,
    };
    gauge!("firth_router_pressure", "gateway" => gateway).set(level);
}
