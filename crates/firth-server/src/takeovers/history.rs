//! Who had which unit when, from one look at a service to the next (pure: offers and the time come
//! in, changes come out).
//!
//! The engine keeps the owner of a unit and the number of its grants, not who was before. So a
//! change between two looks is told with its exact time; of several in between, only the last is.
//! `missed` counts the others.
//!
//! Bounded: [`MAX_CHANGES`] changes are kept, the oldest go first, and [`MAX_UNITS`] units are
//! followed.

use crate::wire::{ClaimChange, ClaimChangeKind, millis};
use firth::claims::{OfferInfo, OfferOwner};
use std::collections::{HashMap, VecDeque};

/// The most changes that are kept, over all services.
pub(super) const MAX_CHANGES: usize = 2000;
/// The most units that are followed, over all services.
pub(super) const MAX_UNITS: usize = 10_000;

#[derive(Default)]
pub(super) struct History {
    services: HashMap<String, HashMap<String, KnownClaim>>,
    changes: VecDeque<(String, ClaimChange)>,
}

/// A unit as it was seen last.
struct KnownClaim {
    owner: OfferOwner,
    epoch: u64,
    /// The number of the look that saw it.
    look: u64,
}

impl History {
    /// Takes in one look at a service, which saw `offers`; `is_whole`: it saw all of them.
    pub(super) fn note(
        &mut self,
        service: &str,
        (now_ms, look): (u64, u64),
        offers: &[OfferInfo],
        is_whole: bool,
    ) {
        let room = MAX_UNITS.saturating_sub(self.services.values().map(HashMap::len).sum());
        let is_new = !self.services.contains_key(service);
        let units = self.services.entry(service.to_owned()).or_default();
        let mut found = Vec::new();
        let mut added = 0;
        for offer in offers {
            let now = KnownClaim { owner: offer.owner.clone(), epoch: offer.epoch.0, look };
            if let Some(before) = units.get_mut(&offer.name) {
                found.extend(change(offer, Some(before), now_ms));
                *before = now;
            } else if added < room {
                // What was there before this server looked first is no news, but who has it is.
                let is_news = !is_new || matches!(offer.owner, OfferOwner::Worker(_));
                found.extend(change(offer, None, now_ms).filter(|_| is_news));
                units.insert(offer.name.clone(), now);
                added += 1;
            }
        }
        if is_whole {
            let gone = units.extract_if(|_, known| known.look != look);
            found.extend(gone.map(|(unit, known)| ended(unit, &known, now_ms)));
        }
        found.sort_by(|a, b| (a.time_ms, &a.unit).cmp(&(b.time_ms, &b.unit)));
        self.changes.extend(found.into_iter().map(|change| (service.to_owned(), change)));
        let over = self.changes.len().saturating_sub(MAX_CHANGES);
        self.changes.drain(..over);
    }

    /// Forgets services that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.services.retain(|service, _| is_there(service));
    }

    /// The newest changes of a service, the newest first.
    pub(super) fn newest(&self, service: &str, max: usize) -> Vec<ClaimChange> {
        let own = self.changes.iter().rev().filter(|(of, _)| of == service);
        own.take(max).map(|(_, change)| change.clone()).collect()
    }
}

fn last_owner(owner: &OfferOwner) -> Option<&str> {
    match owner {
        OfferOwner::Free { last } => last.as_deref(),
        OfferOwner::Worker(name) | OfferOwner::Orphaned { last: name } => Some(name),
    }
}

/// What happened to a unit since it was seen, if anything did.
fn change(offer: &OfferInfo, before: Option<&KnownClaim>, now_ms: u64) -> Option<ClaimChange> {
    let epoch = offer.epoch.0;
    if before.is_some_and(|before| before.epoch == epoch && before.owner == offer.owner) {
        return None;
    }
    let had = before.and_then(|before| last_owner(&before.owner)).map(str::to_owned);
    let was_left = before.is_some_and(|before| !matches!(before.owner, OfferOwner::Free { .. }));
    let (kind, from, to) = match &offer.owner {
        OfferOwner::Worker(to) if was_left && had.as_ref() != Some(to) => {
            (ClaimChangeKind::TakenOver, had, Some(to.clone()))
        }
        OfferOwner::Worker(to) => (ClaimChangeKind::Granted, had, Some(to.clone())),
        OfferOwner::Orphaned { last } => (ClaimChangeKind::Orphaned, Some(last.clone()), None),
        OfferOwner::Free { last: Some(last) } if before.is_some() => {
            (ClaimChangeKind::Released, Some(last.clone()), None)
        }
        OfferOwner::Free { .. } => (ClaimChangeKind::Offered, None, None),
    };
    let granted = u64::from(matches!(offer.owner, OfferOwner::Worker(_)));
    // Grants are counted one by one on some engines, and by the clock on others.
    let missed = before.map_or(0, |before| epoch.saturating_sub(before.epoch + granted));
    let missed = if missed > MAX_UNITS as u64 { 0 } else { missed };
    let time_ms = now_ms.saturating_sub(millis(offer.since));
    Some(ClaimChange { time_ms, unit: offer.name.clone(), kind, from, to, epoch, missed })
}

fn ended(unit: String, known: &KnownClaim, now_ms: u64) -> ClaimChange {
    let from = last_owner(&known.owner).map(str::to_owned);
    ClaimChange {
        time_ms: now_ms,
        unit,
        kind: ClaimChangeKind::Ended,
        from,
        to: None,
        epoch: known.epoch,
        missed: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth::Epoch;
    use std::time::Duration;

    fn offer(name: &str, owner: OfferOwner, epoch: u64, since: u64) -> OfferInfo {
        let since = Duration::from_millis(since);
        let age = Duration::from_secs(99);
        OfferInfo { name: name.to_owned(), owner, epoch: Epoch(epoch), since, age }
    }

    fn by(name: &str) -> OfferOwner {
        OfferOwner::Worker(name.to_owned())
    }

    fn told(history: &History) -> Vec<(u64, ClaimChangeKind, Option<String>, Option<String>)> {
        let newest = history.newest("calls", 9).into_iter();
        newest.map(|change| (change.time_ms, change.kind, change.from, change.to)).collect()
    }

    #[test]
    fn a_vanished_worker_and_the_takeover_are_told_with_their_times() {
        let mut history = History::default();
        history.note("calls", (10_000, 1), &[offer("a", by("one"), 1, 4000)], true);
        history.note("calls", (11_000, 2), &[offer("a", by("one"), 1, 5000)], true);
        let orphaned = OfferOwner::Orphaned { last: "one".to_owned() };
        history.note("calls", (12_000, 3), &[offer("a", orphaned, 1, 500)], true);
        history.note("calls", (13_000, 4), &[offer("a", by("two"), 2, 100)], true);
        history.note("calls", (14_000, 5), &[], true);
        let one = Some("one".to_owned());
        let two = Some("two".to_owned());
        let wanted = [
            (14_000, ClaimChangeKind::Ended, two.clone(), None),
            (12_900, ClaimChangeKind::TakenOver, one.clone(), two),
            (11_500, ClaimChangeKind::Orphaned, one.clone(), None),
            (6000, ClaimChangeKind::Granted, None, one),
        ];
        assert_eq!(told(&history), wanted);
        assert!(history.newest("others", 9).is_empty());
    }

    #[test]
    fn a_takeover_between_two_looks_is_told_and_what_was_missed_is_counted() {
        let mut history = History::default();
        let free = || OfferOwner::Free { last: None };
        history.note("calls", (10_000, 1), &[offer("a", by("one"), 1, 0), offer("b", free(), 0, 0)], true);
        history.note(
            "calls",
            (11_000, 2),
            &[offer("a", by("two"), 4, 200), offer("b", by("two"), 1, 100)],
            true,
        );
        let newest = history.newest("calls", 2);
        assert_eq!((newest[0].kind, newest[0].missed), (ClaimChangeKind::Granted, 0));
        assert_eq!((newest[1].kind, newest[1].missed), (ClaimChangeKind::TakenOver, 2));
    }

    #[test]
    fn as_much_is_kept_as_the_bounds_say() {
        let mut history = History::default();
        let units = |epoch: u64| -> Vec<_> {
            (0..MAX_UNITS + 10).map(|at| offer(&format!("u{at}"), by("w"), epoch, 0)).collect()
        };
        history.note("calls", (1, 1), &units(1), false);
        history.note("calls", (2, 2), &units(2), false);
        assert_eq!(history.services["calls"].len(), MAX_UNITS);
        assert_eq!(history.newest("calls", usize::MAX).len(), MAX_CHANGES);
        history.retain(|_| false);
        assert!(history.services.is_empty());
    }
}
