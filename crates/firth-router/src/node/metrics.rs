//! The node's metrics, all names in one place. Labels are gateways (bounded by what is registered) and fixed words; never keys or ids.

use crate::lane::{Fate, Lane, Outcome, Pressure, Released};
use crate::name::GatewayId;
use metrics::{counter, gauge, histogram};
use std::time::Duration;

/// An event was matched and put into lanes, or found to be for nobody.
pub(super) fn routed(took: Duration, gateways: usize) {
    histogram!("firth_router_routing_seconds").record(took);
    counter!("firth_router_events_total", "wanted" => if gateways > 0 { "yes" } else { "no" }).increment(1);
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
    for one in released {
        let fate = match one.fate {
            Fate::Delivered => "delivered",
            Fate::Dead(_) => "dead",
            Fate::Gapped => "gapped",
            Fate::Parked => "parked",
        };
        counter!("firth_router_released_total", "fate" => fate).increment(1);
    }
}

/// A lane as it stands.
pub(super) fn lane(gateway: &GatewayId, lane: &Lane) {
    let gateway = gateway.to_string();
    gauge!("firth_router_queue_events", "gateway" => gateway.clone()).set(lane.held() as f64);
    let level = match lane.pressure() {
        Pressure::None => 0.0,
        Pressure::Soft => 1.0,
        Pressure::Hard => 2.0,
    };
    gauge!("firth_router_pressure", "gateway" => gateway).set(level);
}
