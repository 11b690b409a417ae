//! Counts messages inside a measuring process and takes the time between the end of the warm-up and
//! the end.

use super::place::Place;
use super::workload::PAYLOAD;
use crate::measure::{Clock, Samples, Spent, percentiles};
use anyhow::{Context, Result};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A share of the messages is not measured: connections, leases, caches.
const WARM_UP: u64 = 10;
const SAMPLES: usize = 1 << 16;

pub(crate) struct Meter {
    place: Arc<Place>,
    goal: u64,
    warm: u64,
    seen: AtomicU64,
    begun: Mutex<Option<(Clock, Duration, u64)>>,
    samples: Mutex<Samples>,
    birth: Instant,
}

/// What was measured.
pub(crate) struct Measured {
    pub(crate) messages: u64,
    pub(crate) spent: Spent,
    pub(crate) server: Duration,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Meter {
    /// Counts to `goal`.
    pub(crate) fn new(place: &Arc<Place>, goal: u64) -> Arc<Self> {
        let samples = Mutex::new(Samples::with_capacity(SAMPLES));
        let seen = AtomicU64::new(0);
        let begun = Mutex::new(None);
        let birth = Instant::now();
        let place = place.clone();
        Arc::new(Self { place, goal, warm: goal / WARM_UP, seen, begun, samples, birth })
    }

    pub(crate) fn goal(&self) -> u64 {
        self.goal
    }

    /// `count` more are done; true when that was the last one.
    pub(crate) fn add(&self, count: u64) -> bool {
        let before = self.seen.fetch_add(count, Relaxed);
        let now = before + count;
        if before < self.warm.max(1) && now >= self.warm.max(1) {
            self.begin(now).expect("the clocks of this machine can be read");
        }
        before < self.goal && now >= self.goal
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    fn begin(&self, seen: u64) -> Result<()> {
        let server = self.place.cpu()?;
        let clock = Clock::start()?;
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some((clock, server, seen));
        Ok(())
    }

    /// To be called once everything is settled.
    pub(crate) fn end(&self) -> Result<Measured> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let (clock, server, seen) = begun.as_ref().context("not even the warm-up was done")?;
        let spent = clock.stop()?;
        let server = self.place.cpu()?.saturating_sub(*server);
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (p50_us, p99_us) = percentiles(std::slice::from_ref(&samples))?;
        Ok(Measured { messages: self.seen() - seen, spent, server, p50_us, p99_us })
    }

    /// A payload that says when it was sent.
    pub(crate) fn stamped(&self) -> Vec<u8> {
        let mut payload = vec![b'x'; PAYLOAD];
        let now = u64::try_from(self.birth.elapsed().as_nanos()).unwrap_or(u64::MAX);
        payload[..8].copy_from_slice(&now.to_be_bytes());
        payload
    }

    /// Takes the latency of a stamped payload.
    pub(crate) fn sample(&self, payload: &[u8]) {
        let Some(stamp) = payload.first_chunk() else { return };
        let latency = self.birth.elapsed().saturating_sub(Duration::from_nanos(u64::from_be_bytes(*stamp)));
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
    }
}
