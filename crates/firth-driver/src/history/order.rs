//! The order of a key: nothing is delivered before everything acknowledged ahead of it may have been settled, and no owner goes back.
//!
//! "Ahead" means: handed to the same producer earlier. Messages of two producers have no order, nor have sends of unknown outcome. A first
//! delivery is compared with the moment when the verdict on its predecessor was asked for: it must be later, whoever owned the partition. A verdict that a
//! failure made void counts, as that of a killed owner does: its message comes again, and so does everything after it.

use super::Violation;
use super::index::{Delivered, Outcome, Send};
use super::laws::View;
use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) fn check(view: &View<'_>, found: &mut Vec<Violation>) {
    let by_id = view.by_id();
    for ((_, key), sends) in sequences(view) {
        // The latest verdict so far, and the message that it was about.
        let mut latest: Option<(usize, &str)> = None;
        for (id, send) in sends {
            let deliveries = by_id.get(id).map_or(&[][..], Vec::as_slice);
            if let (Some(first), Some((asked, before))) = (deliveries.first(), latest)
                && first.pos < asked
            {
                found.push(overtaken(view, key, before, id));
                break;
            }
            // A dead letter's verdict may be a last failed attempt, or its owners' crashes.
            if send.outcome != Outcome::Done || view.group.dead.contains(id) {
                continue;
            }
            let asked = deliveries
                .iter()
                .filter_map(|one| settled_in_good_faith(view, one))
                .min()
                .unwrap_or(usize::MAX);
            if latest.is_none_or(|(until, _)| asked > until) {
                latest = Some((asked, id));
            }
        }
    }
    no_owner_goes_back(view, found);
}

/// Where its owner could take it for settled. A verdict that was noted and then refused counts if a failure came between: whatever that owner
/// delivered next it delivered in order, and its successor begins again with both.
fn settled_in_good_faith(view: &View<'_>, delivery: &Delivered<'_>) -> Option<usize> {
    let failed = view.run.server_broken || view.run.broken.contains(delivery.source);
    if failed { delivery.asked_from() } else { delivery.may_settle_from() }
}

type Sequence<'r> = Vec<(&'r str, &'r Send<'r>)>;

/// What each producer was handed, per key, in order.
fn sequences<'r>(view: &View<'r>) -> BTreeMap<(&'r str, &'r str), Sequence<'r>> {
    let mut sequences = BTreeMap::<_, Sequence<'r>>::new();
    for (id, send) in &view.run.sends {
        if let Some(key) = send.key {
            sequences.entry((send.source, key)).or_default().push((*id, send));
        }
    }
    for sends in sequences.values_mut() {
        sends.sort_by_key(|(_, send)| send.pos);
    }
    sequences
}

fn no_owner_goes_back(view: &View<'_>, found: &mut Vec<Violation>) {
    let mut furthest = HashMap::<_, (&Delivered<'_>, usize)>::new();
    // What each owner was given before anybody had promised to keep it.
    let mut unpromised = HashSet::new();
    for delivery in &view.group.deliveries {
        let Some(send) = view.run.sends.get(delivery.id) else { continue };
        let (Some(key), Outcome::Done) = (send.key, send.outcome) else { continue };
        let owner = (delivery.source, delivery.partition, delivery.epoch);
        // A server that failed may have lost it, and then the producer has sent it, and all that followed, again.
        let again = view.run.server_broken && unpromised.contains(&(owner, delivery.id));
        if send.answered.is_some_and(|at| delivery.pos < at) {
            unpromised.insert((owner, delivery.id));
        }
        let (before, pos) = furthest.entry((owner, send.source, key)).or_insert((delivery, send.pos));
        if send.pos < *pos && !again {
            found.push(overtaken(view, key, delivery.id, before.id));
        } else {
            (*before, *pos) = (delivery, send.pos);
        }
    }
}

fn overtaken(view: &View<'_>, key: &str, first: &str, second: &str) -> Violation {
    let (key, group) = (key.to_owned(), view.group_name());
    Violation::Order { key, first: first.to_owned(), second: second.to_owned(), group }
}
