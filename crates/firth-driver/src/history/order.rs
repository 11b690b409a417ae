//! The order of a key: nothing is delivered before everything acknowledged ahead of it may have
//! been settled, and no owner goes back.
//!
//! "Ahead" means: handed to the same producer earlier. Messages of two producers have no order, nor
//! have sends of unknown outcome. A first delivery is compared with the moment when the verdict on
//! its predecessor was asked for: it must be later, under any owner. A verdict that was
//! refused counts only for the owner that had asked for it, and only where a failure had to do with
//! it: that owner slept, or its server failed, and it went on in good faith. Its successor begins
//! again with both.

use super::Violation;
use super::index::{Delivered, Outcome, Send};
use super::laws::View;
use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) fn check(view: &View<'_>, found: &mut Vec<Violation>) {
    let by_id = view.by_id();
    let deliveries = |id: &str| by_id.get(id).map_or(&[][..], Vec::as_slice);
    for ((_, key), sends) in sequences(view) {
        let mut ahead: Vec<&str> = Vec::new();
        // Where the latest verdict on a message ahead was asked for.
        let mut latest = 0;
        for (id, send) in sends {
            if let Some(first) = deliveries(id).first().filter(|first| first.pos < latest)
                && let Some(before) = ahead.iter().find(|before| !in_time(view, deliveries(before), first))
            {
                found.push(overtaken(view, key, before, id));
                break;
            }
            // A dead letter's verdict may be a last failed attempt, or its owners' crashes.
            if send.outcome == Outcome::Done && !view.group.dead.contains(id) {
                let asked = deliveries(id).iter().filter_map(|one| one.may_settle_from()).min();
                latest = latest.max(asked.unwrap_or(usize::MAX));
                ahead.push(id);
            }
        }
    }
    no_owner_goes_back(view, found);
}

/// Whether one of these deliveries of a message was settled, as far as anybody knew, before the
/// next message was delivered.
fn in_time(view: &View<'_>, before: &[&Delivered<'_>], next: &Delivered<'_>) -> bool {
    before.iter().any(|one| {
        let failed = view.run.server_broken || view.run.broken.contains(one.source);
        let asked =
            if failed && one.owner() == next.owner() { one.asked_from() } else { one.may_settle_from() };
        asked.is_some_and(|asked| asked < next.pos)
    })
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
        let owner = delivery.owner();
        // A server that failed may have lost it, and then the producer has sent it, and all that
        // followed, again.
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
    let key = key.to_owned();
    let group = view.group_name();
    Violation::Order { key, first: first.to_owned(), second: second.to_owned(), group }
}
