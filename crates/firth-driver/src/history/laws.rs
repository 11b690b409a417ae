//! The laws about single messages and owners, on one group's view of a run.

use super::Violation;
use super::index::{Delivered, Group, Outcome, Run};
use std::collections::{BTreeMap, HashMap};

pub(super) struct View<'r> {
    pub(super) name: &'r str,
    pub(super) group: &'r Group<'r>,
    pub(super) run: &'r Run<'r>,
}

impl<'r> View<'r> {
    pub(super) fn group_name(&self) -> String {
        self.name.to_owned()
    }

    /// Deliveries per message, in the order in which they were seen.
    pub(super) fn by_id(&self) -> BTreeMap<&'r str, Vec<&'r Delivered<'r>>> {
        let mut by_id = BTreeMap::<_, Vec<_>>::new();
        for delivery in &self.group.deliveries {
            by_id.entry(delivery.id).or_default().push(delivery);
        }
        by_id
    }

    /// What is acknowledged is delivered and settled.
    pub(super) fn losses(&self, found: &mut Vec<Violation>) {
        let group = self.group_name();
        if self.group.lag != Some(0) {
            found.push(Violation::Unfinished { group, lag: self.group.lag });
            return;
        }
        let by_id = self.by_id();
        let mut acknowledged: Vec<&str> = self
            .run
            .sends
            .iter()
            .filter(|(_, send)| send.outcome == Outcome::Done)
            .map(|(id, _)| *id)
            .collect();
        acknowledged.sort_unstable();
        for id in acknowledged.into_iter().filter(|id| !self.group.dead.contains(id)) {
            let group = group.clone();
            match by_id.get(id) {
                None => found.push(Violation::Lost { id: id.to_owned(), group }),
                Some(deliveries)
                    if deliveries.iter().all(|delivery| delivery.may_settle_from().is_none()) =>
                {
                    found.push(Violation::Unsettled { id: id.to_owned(), group });
                }
                Some(_) => {}
            }
        }
    }

    /// What arrives was sent, and is what was sent.
    pub(super) fn arrivals(&self, found: &mut Vec<Violation>) {
        for delivery in &self.group.deliveries {
            let id = delivery.id.to_owned();
            let group = self.group_name();
            match self.run.sends.get(delivery.id) {
                None => found.push(Violation::Ghost { id, group }),
                Some(send) if send.outcome == Outcome::Refused => found.push(Violation::Ghost { id, group }),
                Some(send) if send.sha != delivery.sha || send.key != delivery.key => {
                    found.push(Violation::Altered { id, group });
                }
                Some(_) => {}
            }
        }
    }

    /// Nothing comes twice unless a verdict or a failure says so.
    pub(super) fn duplicates(&self, found: &mut Vec<Violation>) {
        for (id, mut deliveries) in self.by_id() {
            deliveries.retain(|delivery| !self.is_late_line(delivery));
            let verdict = deliveries.windows(2).zip(1..).find_map(|(pair, count)| {
                let again = pair[1];
                // An older owner's line may be seen late.
                let settled = deliveries[..count].iter().any(|before| {
                    again.epoch >= before.epoch && before.settled_at().is_some_and(|at| at < again.pos)
                });
                (settled || !self.may_come_again(pair[0])).then_some(settled)
            });
            if let Some(settled) = verdict {
                found.push(Violation::Duplicate { id: id.to_owned(), group: self.group_name(), settled });
            }
        }
    }

    /// Whether a process that slept told late of a delivery that was no longer its own: others had
    /// it under the same ownership, and nothing that it asked for came of it.
    fn is_late_line(&self, delivery: &Delivered<'_>) -> bool {
        let shared = self
            .group
            .epochs
            .get(&(delivery.partition, delivery.epoch))
            .is_some_and(|epoch| epoch.owners.len() > 1);
        let in_vain = |verdict: &super::index::Verdict| verdict.outcome != Outcome::Done;
        shared && self.run.broken.contains(delivery.source) && delivery.verdicts.iter().all(in_vain)
    }

    /// Whether there is a reason to deliver a message again after this delivery of it.
    fn may_come_again(&self, delivery: &Delivered<'_>) -> bool {
        let failed =
            |verdict: &super::index::Verdict| !verdict.settles || verdict.outcome == Outcome::Refused;
        let refused = delivery.verdicts.iter().any(failed);
        let given_back = delivery.verdicts.is_empty()
            && self.group.revoked.contains(&(delivery.source, delivery.partition, delivery.epoch));
        refused || given_back || self.run.server_broken || self.run.broken.contains(delivery.source)
    }

    /// A replaced owner settles nothing; if owners are `exclusive`, an epoch has one owner.
    pub(super) fn fencing(&self, exclusive: bool, found: &mut Vec<Violation>) {
        let mut newest = HashMap::<u32, Vec<(usize, u64)>>::new();
        for ((partition, epoch), owned) in &self.group.epochs {
            if exclusive && owned.owners.len() > 1 {
                let partition = *partition;
                let epoch = *epoch;
                found.push(Violation::TwoOwners { partition, group: self.group_name(), epoch });
            }
            newest.entry(*partition).or_default().push((owned.seen, *epoch));
        }
        for delivery in &self.group.deliveries {
            let epochs = newest.get(&delivery.partition).map_or(&[][..], Vec::as_slice);
            for verdict in delivery.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Done) {
                let newer =
                    epochs.iter().find(|(seen, epoch)| *epoch > delivery.epoch && *seen < verdict.pos);
                if let Some((_, newer)) = newer {
                    let id = delivery.id.to_owned();
                    let group = self.group_name();
                    found.push(Violation::Fenced { id, group, epoch: delivery.epoch, newer: *newer });
                }
            }
        }
    }
}
