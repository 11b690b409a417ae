//! Metrics that record nothing: what is left without the feature `metrics`.

/// Counts nothing.
#[derive(Clone)]
pub(crate) struct NoCounter;

impl NoCounter {
    pub(crate) fn increment(&self, _by: u64) {}
}

/// Holds nothing.
#[derive(Clone)]
pub(crate) struct NoGauge;

impl NoGauge {
    pub(crate) fn increment(&self, _by: f64) {}
    pub(crate) fn decrement(&self, _by: f64) {}
}

/// Records nothing.
#[derive(Clone)]
pub(crate) struct NoHistogram;

impl NoHistogram {
    pub(crate) fn noop() -> Self {
        Self
    }

    pub(crate) fn record<T>(&self, _value: T) {}
}

macro_rules! counter {
    ($name:expr $(, $key:expr => $value:expr)*) => {{
        let _ = ($name $(, $key, $value)*);
        $crate::metrics::Counter
    }};
}

macro_rules! gauge {
    ($name:expr $(, $key:expr => $value:expr)*) => {{
        let _ = ($name $(, $key, $value)*);
        $crate::metrics::Gauge
    }};
}

macro_rules! histogram {
    ($name:expr) => {{
        let _ = $name;
        $crate::metrics::Histogram
    }};
}

pub(crate) use {counter, gauge, histogram};
