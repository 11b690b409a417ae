//! OTLP over HTTP in its JSON form: spans and metrics to a collector.
//!
//! One task sends; what waits for it is bounded by [`MAX_WAITING`] spans, and more are dropped and
//! counted. A collector that is away costs nothing but the spans of that time: nothing waits for
//! it. The JSON is the protobuf's mapping: ids in hex, 64-bit numbers as text.

use super::prometheus::{self, Family, Labels};
use super::{Series, Span, TraceParent};
use crate::config::Otlp;
use crate::events::Events;
use axum::body::Body;
use axum::http::{Method, Request, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};

/// Spans that may wait to be sent.
const MAX_WAITING: usize = 4096;
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// How long a span waits for company.
const LINGER: Duration = Duration::from_secs(1);
/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(5);

enum Order {
    Span(Box<Span>),
    Close(oneshot::Sender<()>),
}

/// The handle on the sending task; clones share it.
#[derive(Clone)]
pub(super) struct Exporter(Arc<Inner>);

struct Inner {
    orders: mpsc::Sender<Order>,
    /// The bits of the share of new traces that is kept.
    sample: AtomicU64,
    closed: Mutex<bool>,
    gauges: Gauges,
}

/// Brings the gauges of topics and groups up to date before an export; empty until the server sets
/// it.
type Gauges = Arc<OnceLock<Events>>;

impl Exporter {
    pub(super) fn start(config: Otlp, metrics: Series) -> Self {
        let (orders, waiting) = mpsc::channel(MAX_WAITING);
        let sample = AtomicU64::new(config.sample.to_bits());
        let sockets = Client::builder(TokioExecutor::new()).build_http();
        let gauges = Gauges::default();
        let sender =
            OtlpSender { sockets, metrics, gauges: gauges.clone(), start: SystemTime::now(), config };
        tokio::spawn(sender.run(waiting));
        Self(Arc::new(Inner { orders, sample, closed: Mutex::new(false), gauges }))
    }

    pub(super) fn refresh_with(&self, events: Events) {
        // It is told once.
        let _ = self.0.gauges.set(events);
    }

    pub(super) fn set_sample(&self, share: f64) {
        self.0.sample.store(share.to_bits(), Ordering::Relaxed);
    }

    /// Whether a new trace is kept.
    pub(super) fn sample(&self) -> bool {
        fastrand::f64() < f64::from_bits(self.0.sample.load(Ordering::Relaxed))
    }

    pub(super) fn put(&self, span: Span) {
        if self.0.orders.try_send(Order::Span(Box::new(span))).is_err() {
            metrics::counter!("firth_otlp_dropped_total").increment(1);
        }
    }

    /// Sends what waits, and the last metrics.
    pub(super) async fn close(&self) {
        if std::mem::replace(&mut *self.0.closed.lock().expect("nothing panics under this lock"), true) {
            return;
        }
        let (done, wait) = oneshot::channel();
        let closing = async {
            let _ = self.0.orders.send(Order::Close(done)).await;
            let _ = wait.await;
        };
        // A collector that is away must not keep the server from ending.
        let _ = tokio::time::timeout(2 * PATIENCE, closing).await;
    }
}

struct OtlpSender {
    sockets: Client<HttpConnector, Body>,
    metrics: Series,
    gauges: Gauges,
    start: SystemTime,
    config: Otlp,
}

impl OtlpSender {
    async fn run(self, mut orders: mpsc::Receiver<Order>) {
        let mut metrics = tokio::time::interval(self.config.interval);
        metrics.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut flush = tokio::time::interval(LINGER);
        flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut spans = Vec::new();
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Span(span)) => spans.push(*span),
                    Some(Order::Close(done)) => {
                        self.send_spans(&mut spans).await;
                        self.send_metrics().await;
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
                _ = metrics.tick() => self.send_metrics().await,
                _ = flush.tick() => self.send_spans(&mut spans).await,
            }
            if spans.len() >= BATCH {
                self.send_spans(&mut spans).await;
            }
        }
    }

    async fn send_spans(&self, spans: &mut Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let list: Vec<_> = spans.drain(..).map(|span| span_json(&span)).collect();
        let body = json!({ "resourceSpans": [{
            "resource": self.resource(),
            "scopeSpans": [{ "scope": scope(), "spans": list }],
        }] });
        self.post("/v1/traces", &body).await;
    }

    async fn send_metrics(&self) {
        if let Some(gauges) = self.gauges.get() {
            gauges.refresh().await;
        }
        self.metrics.run_upkeep();
        let families = prometheus::read(&self.metrics.render());
        let start = nanos(self.start);
        let now = nanos(SystemTime::now());
        let list: Vec<_> = families.iter().filter_map(|family| metric_json(family, &start, &now)).collect();
        let body = json!({ "resourceMetrics": [{
            "resource": self.resource(),
            "scopeMetrics": [{ "scope": scope(), "metrics": list }],
        }] });
        self.post("/v1/metrics", &body).await;
    }

    fn resource(&self) -> Value {
        let service =
            [("service.name", self.config.service.as_str()), ("service.version", env!("CARGO_PKG_VERSION"))];
        json!({ "attributes": service.map(|(key, value)| attribute(key, value)) })
    }

    async fn post(&self, path: &str, body: &Value) {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.config.endpoint))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        let Ok(request) = request else { return };
        let outcome = match tokio::time::timeout(PATIENCE, self.sockets.request(request)).await {
            Ok(Ok(answer)) if answer.status().is_success() => "ok",
            Ok(Ok(_)) => "refused",
            Ok(Err(_)) => "unreachable",
            Err(_) => "timeout",
        };
        metrics::counter!("firth_otlp_requests_total", "result" => outcome).increment(1);
        if outcome != "ok" {
            tracing::debug!(path, outcome, "the collector did not take it");
        }
    }
}

fn scope() -> Value {
    json!({ "name": "firth", "version": env!("CARGO_PKG_VERSION") })
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn attributes(labels: &Labels) -> Vec<Value> {
    labels.iter().map(|(key, value)| attribute(key, value)).collect()
}

fn nanos(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn span_json(span: &Span) -> Value {
    let TraceParent { trace, span: id, .. } = span.context;
    json!({
        "traceId": format!("{trace:032x}"),
        "spanId": format!("{id:016x}"),
        "parentSpanId": span.parent.map_or_else(String::new, |id| format!("{id:016x}")),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": nanos(span.start),
        "endTimeUnixNano": nanos(span.end),
        "attributes": span.attributes.iter().map(|(key, value)| attribute(key, value)).collect::<Vec<_>>(),
        "status": { "code": if span.failed { 2 } else { 0 } },
    })
}

fn metric_json(family: &Family, start: &str, now: &str) -> Option<Value> {
    let point = |(labels, value): &(Labels, f64)| json!({ "attributes": attributes(labels), "startTimeUnixNano": start, "timeUnixNano": now, "asDouble": value });
    let points: Vec<_> = family.points.iter().map(point).collect();
    let name = &family.name;
    match family.kind.as_str() {
        "counter" => Some(json!({ "name": name, "sum": {
            "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points,
        } })),
        "gauge" => Some(json!({ "name": name, "gauge": { "dataPoints": points } })),
        "histogram" => {
            let points: Vec<_> = family
                .histograms
                .iter()
                .map(|(labels, histogram)| {
                    let bounds: Vec<_> = histogram.buckets.iter().map(|(bound, _)| *bound).collect();
                    let mut counts = Vec::with_capacity(bounds.len() + 1);
                    let mut before = 0;
                    for total in histogram.buckets.iter().map(|(_, total)| *total).chain([histogram.count]) {
                        counts.push(total.saturating_sub(before).to_string());
                        before = total.max(before);
                    }
                    json!({
                        "attributes": attributes(labels), "startTimeUnixNano": start, "timeUnixNano": now,
                        "count": histogram.count.to_string(), "sum": histogram.sum,
                        "explicitBounds": bounds, "bucketCounts": counts,
                    })
                })
                .collect();
            Some(json!({ "name": name, "histogram": { "aggregationTemporality": 2, "dataPoints": points } }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_lose_no_observation_on_the_way() {
        let text = "# TYPE t histogram\nt_bucket{le=\"1\"} 2\nt_bucket{le=\"5\"} 3\nt_bucket{le=\"+Inf\"} 7\nt_sum 50\nt_count 7\n";
        let metric = metric_json(&prometheus::read(text)[0], "1", "2").unwrap();
        let point = &metric["histogram"]["dataPoints"][0];
        assert_eq!(
            (&point["bucketCounts"], &point["explicitBounds"]),
            (&json!(["2", "1", "4"]), &json!([1.0, 5.0]))
        );
        assert_eq!(point["count"], "7");
    }
}
