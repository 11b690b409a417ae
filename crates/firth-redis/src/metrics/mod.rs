//! All metric names of this crate, and handles that are made once per connection. Recording then
//! takes a few nanoseconds, and next to nothing without a recorder. Labels are bounded: the lane,
//! never an address or a key.

#[cfg(not(feature = "metrics"))]
mod off;

use crate::cluster::{RetryDecision, RetryReason};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(feature = "metrics")]
pub(crate) use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

#[cfg(not(feature = "metrics"))]
pub(crate) use self::off::{
    NoCounter as Counter, NoGauge as Gauge, NoHistogram as Histogram, counter, gauge, histogram,
};

/// Handles of one connection. Updated once per turn of its task, not once per request.
pub(crate) struct ConnectionMeter {
    pub(crate) replies: Counter,
    pub(crate) pushes: Counter,
    pub(crate) writes: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) opened: Counter,
    pub(crate) lost: Counter,
    pub(crate) failed_attempts: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) in_flight: GaugeShare,
    /// Handshakes in full, and those that took up an earlier session. Only with TLS.
    tls: Option<[Counter; 2]>,
}

/// Share of one connection in a gauge that all connections of its lane add up to. Taken back when
/// the connection is gone.
pub(crate) struct GaugeShare {
    gauge: Gauge,
    told: AtomicUsize,
}

impl GaugeShare {
    /// Says how much it is now.
    pub(crate) fn set(&self, now: usize) {
        let before = self.told.swap(now, Ordering::Relaxed);
        if now > before {
            self.gauge.increment((now - before) as f64);
        } else if now < before {
            self.gauge.decrement((before - now) as f64);
        }
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl ConnectionMeter {
    /// The handles of a connection of this lane (`shared`, `bulk`, `blocking`, `dedicated`,
    /// `subscriptions`).
    pub(crate) fn new(lane: &'static str, tls: bool) -> Self {
        let handshakes = |resumed: &'static str| counter!("firth_redis_tls_handshakes_total", "lane" => lane, "resumed" => resumed);
        Self {
            tls: tls.then(|| ["false", "true"].map(handshakes)),
            replies: counter!("firth_redis_replies_total", "lane" => lane),
            pushes: counter!("firth_redis_pushes_total", "lane" => lane),
            writes: counter!("firth_redis_writes_total", "lane" => lane),
            bytes_sent: counter!("firth_redis_sent_bytes_total", "lane" => lane),
            bytes_received: counter!("firth_redis_received_bytes_total", "lane" => lane),
            opened: counter!("firth_redis_connections_opened_total", "lane" => lane),
            lost: counter!("firth_redis_connections_lost_total", "lane" => lane),
            failed_attempts: counter!("firth_redis_connect_failures_total", "lane" => lane),
            timeouts: counter!("firth_redis_request_timeouts_total", "lane" => lane),
            in_flight: GaugeShare {
                gauge: gauge!("firth_redis_requests_in_flight", "lane" => lane),
                told: AtomicUsize::new(0),
            },
        }
    }

    /// A connection was secured.
    pub(crate) fn secured(&self, resumed: bool) {
        if let Some(handshakes) = &self.tls {
            handshakes[usize::from(resumed)].increment(1);
        }
    }
}

/// Handles of one cluster client.
pub(crate) struct ClusterMeter {
    moved: Counter,
    asked: Counter,
    again: [Counter; RetryReason::ALL.len()],
    refreshes: Counter,
    failed_refreshes: Counter,
    refresh_seconds: Histogram,
}

impl ClusterMeter {
    pub(crate) fn new() -> Self {
        let redirects = |kind: &'static str| counter!("firth_redis_redirects_total", "kind" => kind);
        Self {
            moved: redirects("moved"),
            asked: redirects("ask"),
            again: RetryReason::ALL.map(|reason| redirects(reason.name())),
            refreshes: counter!("firth_redis_topology_refreshes_total", "success" => "true"),
            failed_refreshes: counter!("firth_redis_topology_refreshes_total", "success" => "false"),
            refresh_seconds: histogram!("firth_redis_topology_refresh_seconds"),
        }
    }

    /// A request is sent again, or elsewhere.
    pub(crate) fn redirected(&self, decision: &RetryDecision) {
        match decision {
            RetryDecision::Finish => {}
            RetryDecision::Moved { .. } => self.moved.increment(1),
            RetryDecision::Ask { .. } => self.asked.increment(1),
            RetryDecision::Retry(reason) => self.again[*reason as usize].increment(1),
        }
    }

    /// The topology was asked for.
    pub(crate) fn refreshed(&self, success: bool, took: Duration) {
        if success { &self.refreshes } else { &self.failed_refreshes }.increment(1);
        self.refresh_seconds.record(took);
    }
}
