//! Counting who is there: connections by address, messages by time.

use crate::config::Limits;
use crate::protocol::{Code, Refusal};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Counts connections, in all and from each address.
#[derive(Clone, Debug)]
pub(crate) struct Door(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    limits: Limits,
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One connection; given back when dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    door: Door,
    address: Option<IpAddr>,
}

impl Door {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Mutex::new(Counts { limits, all: 0, by_address: HashMap::new() })))
    }

    /// Lets a connection in, or names the limit.
    pub(crate) fn enter(&self, address: Option<IpAddr>) -> Result<Pass, Refusal> {
        let address = address.map(|address| address.to_canonical());
        let mut counts = self.counts();
        let Limits { connections, per_address, .. } = counts.limits;
        if counts.all >= connections {
            let message = "this gateway has as many connections as it may: try again later";
            return Err(Refusal::limit("connections", connections as u64, message));
        }
        if let Some(address) = address {
            let here = counts.by_address.entry(address).or_default();
            if *here >= per_address {
                let message = "too many connections from this address: close some";
                return Err(Refusal::limit("connections", per_address as u64, message));
            }
            *here += 1;
        }
        counts.all += 1;
        Ok(Pass { door: self.clone(), address })
    }

    /// How many are inside.
    pub(crate) fn inside(&self) -> usize {
        self.counts().all
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut counts = self.door.counts();
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

/// Lets messages through at a rate, ten seconds' worth at once. Pure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    rate: u32,
    left: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: u32, now: Instant) -> Self {
        Self { rate, left: f64::from(rate) * 10.0, at: now }
    }

    pub(crate) fn pass(&mut self, now: Instant) -> Result<(), Refusal> {
        let rate = f64::from(self.rate);
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        (self.left, self.at) = ((self.left + gained).min(rate * 10.0), now);
        if self.left < 1.0 {
            let message = format!("more than {} messages per second: send fewer", self.rate);
            let limit = Some(u64::from(self.rate));
            return Err(Refusal { limit, ..Refusal::new(Code::Rate, message) });
        }
        self.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    #[test]
    fn connections_are_counted_and_given_back() {
        let door = Door::new(Limits { connections: 3, per_address: 2, ..Limits::default() });
        let [one, two] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mapped = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        let first = door.enter(Some(one)).unwrap();
        let _second = door.enter(Some(mapped)).unwrap();
        assert_eq!(
            door.enter(Some(one)).unwrap_err().limit,
            Some(2),
            "the same address in other clothes counts"
        );
        let _third = door.enter(Some(two)).unwrap();
        assert_eq!(door.enter(Some(two)).unwrap_err().limit, Some(3));
        drop(first);
        assert!(door.enter(Some(one)).is_ok());
        assert_eq!(door.counts().by_address.len(), 2);
    }

    #[test]
    fn a_bucket_fills_with_time() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2, start);
        assert_eq!((0..100).take_while(|_| bucket.pass(start).is_ok()).count(), 20);
        let later = start + Duration::from_secs(3);
        assert_eq!((0..100).take_while(|_| bucket.pass(later).is_ok()).count(), 6);
    }
}
