//! Traces and their way through the server: from the request's `traceparent` into the messages that
//! it brings, and from a record's to the time that a client took for it. Exported over OTLP if the
//! configuration names a collector (feature `otlp`); else contexts only pass through.

mod context;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod prometheus;
mod series;

pub(crate) use context::TraceParent;
pub(crate) use series::Series;

use crate::config::Otlp;
use crate::events::Events;
use axum::http::HeaderMap;
use firth::Record;
use std::time::SystemTime;

/// Where spans go; clones share it. The default sends none.
#[derive(Clone, Default)]
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    exporter: Option<otlp::Exporter>,
}

/// A finished piece of work.
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "only the exporter reads a span"))]
pub(crate) struct Span {
    pub(crate) context: TraceParent,
    pub(crate) parent: Option<u64>,
    pub(crate) name: String,
    pub(crate) kind: SpanKind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, String)>,
    pub(crate) failed: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum SpanKind {
    Server = 2,
    Consumer = 5,
}

/// One request as a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSpan {
    parent: Option<TraceParent>,
    /// This request's own span, if spans are exported.
    own: Option<TraceParent>,
    start: SystemTime,
}

impl RequestSpan {
    /// What the request's messages carry.
    pub(crate) fn for_messages(&self) -> Option<TraceParent> {
        self.own.or(self.parent)
    }
}

impl Telemetry {
    /// Sends spans, and metrics if there are any, to the collector.
    #[cfg(feature = "otlp")]
    pub(crate) fn start(config: Option<Otlp>, metrics: Series) -> Self {
        Self { exporter: config.map(|config| otlp::Exporter::start(config, metrics)) }
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn start(config: Option<Otlp>, _: Series) -> Self {
        if config.is_some() {
            tracing::warn!(
                "otlp.endpoint is set, but this build has no OTLP: build it with the feature otlp"
            );
        }
        Self::default()
    }

    /// Has the gauges of topics and groups brought up to date whenever metrics are sent.
    pub(crate) fn refresh_with(&self, events: &Events) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &self.exporter {
            exporter.refresh_with(events.clone());
        }
        #[cfg(not(feature = "otlp"))]
        let _ = events;
    }

    /// From now on this share of new traces is kept.
    pub(crate) fn set_sample(&self, share: f64) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &self.exporter {
            exporter.set_sample(share);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = share;
    }

    /// A request begins.
    pub(crate) fn request(&self, headers: &HeaderMap) -> RequestSpan {
        let parent = headers.get(firth::TRACEPARENT).and_then(|value| value.to_str().ok());
        let parent = parent.and_then(TraceParent::read);
        let own = self.sample().map(|sampled| match parent {
            Some(parent) => parent.child(),
            None => TraceParent::root(sampled),
        });
        RequestSpan { parent, own, start: SystemTime::now() }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, trace: RequestSpan, method: &str, route: &str, status: u16) {
        let Some(context) = trace.own.filter(|own| own.sampled) else { return };
        self.export(Span {
            context,
            parent: trace.parent.map(|parent| parent.span),
            name: format!("{method} {route}"),
            kind: SpanKind::Server,
            start: trace.start,
            end: SystemTime::now(),
            attributes: vec![
                ("http.request.method", method.to_owned()),
                ("http.route", route.to_owned()),
                ("http.response.status_code", status.to_string()),
            ],
            failed: status >= 500,
        });
    }

    /// A client had this record since then, and has settled it.
    pub(crate) fn processed(&self, record: &Record, since: SystemTime, outcome: &'static str) {
        if self.sample().is_none() {
            return;
        }
        let header = record.headers().get(firth::TRACEPARENT);
        let parent = header.as_deref().and_then(|value| std::str::from_utf8(value).ok());
        let Some(parent) = parent.and_then(TraceParent::read).filter(|parent| parent.sampled) else { return };
        self.export(Span {
            context: parent.child(),
            parent: Some(parent.span),
            name: format!("process {}", record.topic()),
            kind: SpanKind::Consumer,
            start: since,
            end: SystemTime::now(),
            attributes: vec![
                ("messaging.system", "firth".to_owned()),
                ("messaging.destination.name", record.topic().to_string()),
                ("messaging.destination.partition.id", record.partition().to_string()),
                ("messaging.message.id", record.id().to_string()),
                ("firth.attempt", record.attempt().to_string()),
                ("firth.verdict", outcome.to_owned()),
            ],
            failed: outcome == "nack",
        });
    }

    /// Sends what is left.
    pub(crate) async fn close(&self) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &self.exporter {
            exporter.close().await;
        }
    }

    /// Whether spans are exported at all, and if so whether a new trace is kept.
    fn sample(&self) -> Option<bool> {
        #[cfg(feature = "otlp")]
        return self.exporter.as_ref().map(otlp::Exporter::sample);
        #[cfg(not(feature = "otlp"))]
        None
    }

    fn export(&self, span: Span) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &self.exporter {
            exporter.put(span);
        }
        #[cfg(not(feature = "otlp"))]
        drop(span);
    }
}
