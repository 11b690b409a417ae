//! [`Note`]: what a holder writes on its lease, and what members conclude from the notes. Pure.

use crate::failure_detector::FailureDetector;
use firth_engine::{HolderName, LeaseInfo, LeaseName};
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
    /// What kind of program the member is, and where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
}

/// The longest name of a host that goes on a note.
const MAX_HOST: usize = 255;

/// The name of this machine, if it tells one.
pub(crate) fn host() -> Option<String> {
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = told.or_else(|| std::env::var("HOSTNAME").ok())?.trim().to_owned();
    (1..=MAX_HOST).contains(&name.len()).then_some(name)
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

/// Notes the beats of a lease; true if it has a holder that is stalled.
pub(crate) fn is_stalled(detector: &mut FailureDetector<LeaseName>, lease: &LeaseInfo, now: Instant) -> bool {
    let ttl = Duration::from_millis(Note::of(lease).ttl_ms);
    let is_stalled = detector.is_stalled(lease.name.clone(), (lease.epoch, lease.beats), ttl, now);
    lease.holder.is_some() && is_stalled
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::{Epoch, MemberName, PoolName};

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
    fn a_lease_is_stalled_by_the_ttl_of_its_note_only_while_it_is_held() {
        let mut detector = FailureDetector::default();
        let start = Instant::now();
        let later = start + Duration::from_millis(1600);
        assert!(!is_stalled(&mut detector, &lease(1), start));
        assert!(is_stalled(&mut detector, &lease(1), later));
        assert!(!is_stalled(&mut detector, &LeaseInfo { holder: None, ..lease(1) }, later));
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
