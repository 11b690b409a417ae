//! What one measured round is worth: CPU time by getrusage, sampled latencies, and the row they
//! make.
//!
//! Drivers call [`Clock::start`] when every task stands ready and [`Clock::stop`] when the last one
//! has ended, so that work begun in a round is paid for in that round.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One result as it is printed by `--json`; every bench of the project prints this shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) bench: String,
    pub(crate) workload: String,
    pub(crate) subject: String,
    pub(crate) ops_per_s: f64,
    /// User + system time of the client process.
    pub(crate) cpu_us_per_op: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// What this bench adds, for example `allocs_per_op`.
    #[serde(flatten)]
    pub(crate) extra: BTreeMap<String, f64>,
}

impl Row {
    /// Field by field median of several measurements of the same thing; `None` of nothing.
    pub(crate) fn median(rows: &[Self]) -> Option<Self> {
        let first = rows.first()?;
        let of = |field: fn(&Self) -> f64| median(rows.iter().map(field).collect());
        let extra = first.extra.keys().map(|name| {
            let values = rows.iter().filter_map(|row| row.extra.get(name).copied()).collect();
            (name.clone(), median(values))
        });
        Some(Self {
            ops_per_s: of(|row| row.ops_per_s),
            cpu_us_per_op: of(|row| row.cpu_us_per_op),
            p50_us: of(|row| row.p50_us),
            p99_us: of(|row| row.p99_us),
            extra: extra.collect(),
            ..first.clone()
        })
    }

    /// A figure by its name in the JSON lines.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        match name {
            "ops_per_s" => Some(self.ops_per_s),
            "cpu_us_per_op" => Some(self.cpu_us_per_op),
            "p50_us" => Some(self.p50_us),
            "p99_us" => Some(self.p99_us),
            other => self.extra.get(other).copied(),
        }
    }

    /// Figures cut to what a reader can use: three decimals.
    pub(crate) fn rounded(&self) -> Self {
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        Self {
            ops_per_s: self.ops_per_s.round(),
            cpu_us_per_op: round(self.cpu_us_per_op),
            p50_us: round(self.p50_us),
            p99_us: round(self.p99_us),
            extra: self.extra.iter().map(|(name, value)| (name.clone(), round(*value))).collect(),
            ..self.clone()
        }
    }
}

/// The middle value, or the mean of the two middle ones; 0 of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Wall and CPU clock of this process, or of one thread.
pub(crate) struct Clock {
    who: UsageWho,
    wall: Instant,
    cpu: Duration,
}

/// What passed between start and stop of a [`Clock`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

impl Clock {
    /// Starts the clock of the whole process.
    pub(crate) fn start() -> Result<Self> {
        Self::of(UsageWho::RUSAGE_SELF)
    }

    /// Starts the clock of the thread that calls; the same thread must stop it.
    pub(crate) fn start_thread() -> Result<Self> {
        Self::of(UsageWho::RUSAGE_THREAD)
    }

    fn of(who: UsageWho) -> Result<Self> {
        Ok(Self { who, cpu: cpu(who)?, wall: Instant::now() })
    }

    pub(crate) fn stop(&self) -> Result<Spent> {
        let wall = self.wall.elapsed();
        Ok(Spent { wall, cpu: cpu(self.who)?.saturating_sub(self.cpu) })
    }
}

/// User + system time so far.
fn cpu(who: UsageWho) -> Result<Duration> {
    let usage = getrusage(who).context("getrusage")?;
    let micros = |time: nix::sys::time::TimeVal| {
        u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or_default()
    };
    Ok(Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time())))
}

/// Latencies of one task: the newest samples, up to a fixed number. Writing one is a store into a
/// buffer of its own, so that sampling costs the same for every subject and next to nothing.
pub(crate) struct Samples {
    nanos: Vec<u32>,
    next: usize,
}

impl Samples {
    /// Keeps the newest `capacity` samples (at least one).
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { nanos: Vec::with_capacity(capacity.max(1)), next: 0 }
    }

    /// Adds one; latencies above 4.2 s count as 4.2 s.
    pub(crate) fn push(&mut self, latency: Duration) {
        let nanos = u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX);
        if self.nanos.len() < self.nanos.capacity() {
            self.nanos.push(nanos);
        } else {
            self.nanos[self.next] = nanos;
            self.next = (self.next + 1) % self.nanos.len();
        }
    }
}

/// Median and 99th percentile in microseconds, over the samples of all tasks.
pub(crate) fn percentiles(tasks: &[Samples]) -> Result<(f64, f64)> {
    let mut histogram = Histogram::<u64>::new_with_max(u64::from(u32::MAX), 3)?;
    for nanos in tasks.iter().flat_map(|samples| &samples.nanos) {
        histogram.record(u64::from(*nanos).max(1))?;
    }
    let micros = |quantile| precise(histogram.value_at_quantile(quantile)) / 1000.0;
    Ok((micros(0.50), micros(0.99)))
}

/// Counts here stay far below 2^53, where every integer is an exact `f64`.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn precise(count: u64) -> f64 {
    count as f64
}

/// A row for the tests of other files.
#[cfg(test)]
pub(crate) fn sample_row(workload: &str, subject: &str, ops_per_s: f64, cpu_us_per_op: f64) -> Row {
    Row {
        bench: "client".into(),
        workload: workload.into(),
        subject: subject.into(),
        ops_per_s,
        cpu_us_per_op,
        p50_us: 2.0,
        p99_us: 3.0,
        extra: BTreeMap::from([("allocs_per_op".into(), 4.0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ops_per_s: f64, allocs: f64) -> Row {
        let extra = BTreeMap::from([("allocs_per_op".into(), allocs)]);
        Row { extra, ..sample_row("get/1/st", "firth", ops_per_s, 1.0) }
    }

    #[test]
    fn the_median_is_taken_field_by_field() {
        let merged = Row::median(&[row(10.0, 3.0), row(30.0, 1.0), row(20.0, 2.0)]).unwrap();
        assert_eq!(merged, row(20.0, 2.0));
        assert_eq!(Row::median(&[row(10.0, 3.0), row(30.0, 1.0)]).unwrap(), row(20.0, 2.0));
        assert_eq!(Row::median(&[]), None);
    }

    #[test]
    fn a_row_is_one_flat_json_object() {
        let json = serde_json::to_value(row(10.0, 3.0)).unwrap();
        assert_eq!(json["workload"], "get/1/st");
        assert_eq!(json["allocs_per_op"], 3.0);
        assert_eq!(serde_json::from_value::<Row>(json).unwrap(), row(10.0, 3.0));
    }

    #[test]
    fn full_samples_keep_the_newest() {
        let mut samples = Samples::with_capacity(2);
        for nanos in [1_000, 2_000, 3_000, 4_000, 5_000] {
            samples.push(Duration::from_nanos(nanos));
        }
        samples.nanos.sort_unstable();
        assert_eq!(samples.nanos, [4_000, 5_000]);
    }

    #[test]
    fn percentiles_come_from_all_tasks() {
        let mut fast = Samples::with_capacity(99);
        let mut slow = Samples::with_capacity(1);
        (0..98).for_each(|_| fast.push(Duration::from_micros(10)));
        slow.push(Duration::from_micros(500));
        slow.push(Duration::from_micros(500));
        fast.push(Duration::from_micros(500));
        let (p50, p99) = percentiles(&[fast, slow]).unwrap();
        assert!((p50 - 10.0).abs() < 0.1, "{p50}");
        assert!((p99 - 500.0).abs() < 1.0, "{p99}");
    }

    #[test]
    fn burning_cpu_shows_on_the_cpu_clock() {
        let clock = Clock::start().unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let spent = clock.stop().unwrap();
        assert!(spent.wall >= Duration::from_millis(30));
        assert!(spent.cpu > Duration::ZERO);
    }
}
