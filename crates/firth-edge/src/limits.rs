//! Limits: connections by address, messages by time.

use crate::config::Limits;
use crate::protocol::{Code, EdgeError};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counts connections, in all and from each address.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimiter(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    limits: Limits,
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One connection; given back when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    address: Option<IpAddr>,
}

impl ConnectionLimiter {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Counts { limits, all: 0, by_address: HashMap::new() })))
    }

    /// Lets a connection in, or names the limit.
    pub(crate) fn enter(&self, address: Option<IpAddr>) -> Result<ConnectionPermit, EdgeError> {
        let address = address.map(|address| address.to_canonical());
        let mut counts = self.counts();
        let Limits { connections, per_address, .. } = counts.limits;
        if counts.all >= connections {
            let message = "this gateway has as many connections as it may: try again later";
            return Err(EdgeError::limit("connections", connections as u64, message));
        }
        if let Some(address) = address {
            let here = counts.by_address.entry(address).or_default();
            if *here >= per_address {
                let message = "too many connections from this address: close some";
                return Err(EdgeError::limit("connections", per_address as u64, message));
            }
            *here += 1;
        }
        counts.all += 1;
        Ok(ConnectionPermit { limiter: self.clone(), address })
    }

    /// How many are inside.
    pub(crate) fn inside(&self) -> usize {
        self.counts().all
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        counts.all -= 1;
        if let Some(address) = self.address
            && let Some(here) = counts.by_address.get_mut(&address)
        {
            *here -= 1;
            if *here == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

/// How fast a bucket fills, per second, and how much it holds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Tokens per second.
    pub rate: f64,
    /// The most tokens.
    pub burst: f64,
}

impl Pace {
    /// A rate with ten seconds' worth at once.
    pub(crate) fn per_second(rate: u32) -> Self {
        Self { rate: rate.into(), burst: f64::from(rate) * 10.0 }
    }
}

/// A bucket of tokens that fills with time. Pure.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub fn full(pace: Pace, now: Instant) -> Self {
        Self { left: pace.burst, at: now }
    }

    /// Whether it is full by now.
    pub fn is_full(&self, pace: Pace, now: Instant) -> bool {
        self.filled(pace, now) >= pace.burst
    }

    /// Takes a token, or says how long until there is one: at most an hour.
    pub fn take(&mut self, pace: Pace, now: Instant) -> Result<(), Duration> {
        *self = Self { left: self.filled(pace, now), at: now };
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64(((1.0 - self.left) / pace.rate.max(1e-6)).min(3600.0)))
    }

    fn filled(&self, pace: Pace, now: Instant) -> f64 {
        let waited = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left + waited * pace.rate).min(pace.burst)
    }
}

/// Lets messages through at a rate. Pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageRate {
    rate: u32,
    bucket: TokenBucket,
}

impl MessageRate {
    pub(crate) fn new(rate: u32, now: Instant) -> Self {
        Self { rate, bucket: TokenBucket::full(Pace::per_second(rate), now) }
    }

    pub(crate) fn pass(&mut self, now: Instant) -> Result<(), EdgeError> {
        self.bucket.take(Pace::per_second(self.rate), now).map_err(|_| {
            let message = format!("more than {} messages per second: send fewer", self.rate);
            let limit = Some(u64::from(self.rate));
            EdgeError { limit, ..EdgeError::new(Code::Rate, message) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn connections_are_counted_and_given_back() {
        let limiter = ConnectionLimiter::new(Limits { connections: 3, per_address: 2, ..Limits::default() });
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mapped = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        let first = limiter.enter(Some(one)).unwrap();
        let _second = limiter.enter(Some(mapped)).unwrap();
        assert_eq!(
            limiter.enter(Some(one)).unwrap_err().limit,
            Some(2),
            "a mapped address is the same address"
        );
        let _third = limiter.enter(Some(two)).unwrap();
        assert_eq!(limiter.enter(Some(two)).unwrap_err().limit, Some(3));
        drop(first);
        assert!(limiter.enter(Some(one)).is_ok());
        assert_eq!(limiter.counts().by_address.len(), 2);
    }

    #[test]
    fn a_bucket_fills_with_time() {
        let start = Instant::now();
        let mut bucket = MessageRate::new(2, start);
        assert_eq!((0..100).take_while(|_| bucket.pass(start).is_ok()).count(), 20);
        let later = start + Duration::from_secs(3);
        assert_eq!((0..100).take_while(|_| bucket.pass(later).is_ok()).count(), 6);
    }
}
