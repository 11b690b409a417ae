//! Whether a lease stands still although the engine's clock says that it runs (that clock may have gone back). Pure.
//!
//! Every renewal changes the lease's beats. Whoever sees the same beats for one and a half times the holder's own TTL, on its own
//! monotonic clock, may take over; fencing keeps that safe even if it is wrong.

use firth_engine::{Epoch, HolderName, LeaseInfo, LeaseName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;

/// What a holder writes on its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Note {
    /// How long the holder's renewals last.
    pub(crate) ttl_ms: u64,
    /// The partitions that a member pinned.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) pins: BTreeSet<u32>,
    /// The most partitions that a member takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most: Option<u32>,
    /// The name that a member claims for itself alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sole: Option<String>,
}

impl Note {
    pub(crate) fn of(lease: &LeaseInfo) -> Self {
        serde_json::from_slice(&lease.note).unwrap_or_default()
    }

    pub(crate) fn to_bytes(&self) -> bytes::Bytes {
        serde_json::to_vec(self).expect("plain data can be written as JSON").into()
    }
}

/// The members whose name a newer member claims for itself: their processes are gone, or should be.
pub(crate) fn succeeded(members: &[LeaseInfo]) -> HashSet<HolderName> {
    let mut newest: HashMap<String, &LeaseInfo> = HashMap::new();
    let mut gone = HashSet::new();
    for lease in members.iter().filter(|lease| lease.is_held()) {
        let Some(name) = Note::of(lease).sole else { continue };
        let former = match newest.get(&name) {
            Some(other) if other.epoch > lease.epoch => Some(lease),
            _ => newest.insert(name, lease),
        };
        gone.extend(former.and_then(|former| former.holder.clone()));
    }
    gone
}

/// What was seen of leases so far.
#[derive(Default)]
pub(crate) struct Pulse(HashMap<LeaseName, (Epoch, u64, Instant)>);

impl Pulse {
    /// Looks at a lease; true if it stands still.
    pub(crate) fn is_still(&mut self, lease: &LeaseInfo, now: Instant) -> bool {
        let seen = self.0.entry(lease.name.clone()).or_insert((lease.epoch, lease.beats, now));
        if (seen.0, seen.1) != (lease.epoch, lease.beats) {
            *seen = (lease.epoch, lease.beats, now);
        }
        let ttl = Duration::from_millis(Note::of(lease).ttl_ms);
        lease.holder.is_some() && !ttl.is_zero() && now.duration_since(seen.2) > ttl + ttl / 2
    }

    /// Forgets leases that are gone.
    pub(crate) fn keep(&mut self, leases: &[LeaseInfo]) {
        self.0.retain(|name, _| leases.iter().any(|lease| lease.name == *name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::{MemberName, PoolName};

    fn lease(beats: u64) -> LeaseInfo {
        LeaseInfo {
            name: LeaseName::pool(&PoolName::new("p").unwrap(), &MemberName::new("m").unwrap()),
            holder: Some(HolderName::new("h").unwrap()),
            epoch: Epoch(1),
            remaining: Duration::from_secs(9999),
            beats,
            note: Note { ttl_ms: 1000, ..Note::default() }.to_bytes(),
        }
    }

    #[test]
    fn a_lease_whose_beats_stand_still_longer_than_its_ttl_is_found_whatever_the_engines_clock_says() {
        let (mut pulse, start) = (Pulse::default(), Instant::now());
        assert!(!pulse.is_still(&lease(1), start));
        assert!(!pulse.is_still(&lease(1), start + Duration::from_millis(1400)));
        assert!(pulse.is_still(&lease(1), start + Duration::from_millis(1600)));
        assert!(!pulse.is_still(&lease(2), start + Duration::from_millis(1700)));
        let free = LeaseInfo { holder: None, ..lease(2) };
        assert!(!pulse.is_still(&free, start + Duration::from_secs(60)));
    }

    #[test]
    fn of_those_who_claim_a_name_for_themselves_the_newest_counts() {
        let member = |holder: &str, sole: Option<&str>, epoch| LeaseInfo {
            holder: Some(HolderName::new(holder).unwrap()),
            epoch: Epoch(epoch),
            note: Note { sole: sole.map(str::to_owned), ..Note::default() }.to_bytes(),
            ..lease(1)
        };
        let mut members = vec![
            member("a1", Some("a"), 5),
            member("b1", Some("b"), 1),
            member("a2", Some("a"), 9),
            member("a3", Some("a"), 7),
            member("a4", None, 8),
        ];
        let gone = HashSet::from(["a1", "a3"].map(|name| HolderName::new(name).unwrap()));
        assert_eq!(succeeded(&members), gone);
        members.reverse();
        assert_eq!(succeeded(&members), gone);
        members.iter_mut().for_each(|lease| lease.remaining = Duration::ZERO);
        assert!(succeeded(&members).is_empty(), "what has run out needs no successor");
    }
}
