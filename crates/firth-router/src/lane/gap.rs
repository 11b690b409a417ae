//! Gap markers: what a gateway is told instead of the events that were left out.

use super::Lane;
use super::item::{Item, Position, RecordNumber};
use crate::name::SubscriptionId;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The most subscriptions that a marker names; beyond that it stands for all of low priority, or
/// for all if some have moved.
pub const MAX_NAMED: usize = 1000;

/// An event that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) position: Position,
    pub(super) record_number: RecordNumber,
    pub(super) live: bool,
}

/// Events that were left out under pressure. The receiver passes it on to those who missed
/// something, so that they read anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    pub(super) places: Vec<Left>,
    subscriptions: BTreeSet<SubscriptionId>,
    all: bool,
    /// Some that it names may have missed events which never were in this lane.
    moved: bool,
    /// Events that were removed from the topic before they were routed, by partition: anyone may
    /// have missed them.
    lost: BTreeMap<u32, u64>,
    /// Tells markers apart that say the same; 0 until it says something.
    mark: u64,
}

impl Gap {
    /// Which events, by place.
    pub fn positions(&self) -> impl Iterator<Item = Position> {
        self.places.iter().map(|left| left.position)
    }

    /// Whether any subscription, of any priority, may have missed events.
    pub fn concerns_all(&self) -> bool {
        !self.lost.is_empty() || (self.all && self.moved)
    }

    /// Whose events; `None`: any low-priority subscription may have missed some, or [any at
    /// all](Self::concerns_all).
    pub fn subscriptions(&self) -> Option<&BTreeSet<SubscriptionId>> {
        (!self.all && self.lost.is_empty()).then_some(&self.subscriptions)
    }

    /// Number of events that were removed from the topic before the router routed them. The router
    /// cannot tell which subscriptions they were for.
    pub fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Tells it apart from every other marker.
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    fn set_mark(&mut self) {
        if self.mark == 0 {
            self.mark = fastrand::u64(1..);
        }
    }

    fn lose(&mut self, partition: u32, count: u64) {
        self.set_mark();
        *self.lost.entry(partition).or_default() += count;
    }

    pub(super) fn add(&mut self, item: &Item) {
        self.set_mark();
        self.places.push(Left {
            position: item.position,
            record_number: item.record_number,
            live: item.live,
        });
        let names = item.wanted.iter().map(|one| one.subscription.clone());
        self.name(names);
    }

    /// These subscriptions have come from another gateway, which may not have got all of their
    /// events.
    pub(super) fn move_in(&mut self, subscriptions: impl IntoIterator<Item = SubscriptionId>) {
        self.set_mark();
        self.moved = true;
        self.name(subscriptions.into_iter());
    }

    /// Takes events out that are read from the topic again; the marker goes with the last of them.
    pub(super) fn take_out(&mut self, leaves: impl FnMut(&Left) -> bool) -> Vec<Left> {
        let (out, stay): (Vec<_>, Vec<_>) = self.places.drain(..).partition(leaves);
        self.places = stay;
        if self.is_empty() {
            *self = Self::default();
        }
        out
    }

    /// Adds what another marker says. An empty one becomes the other, which is sent again.
    pub(super) fn merge(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.mark = fastrand::u64(1..);
        self.places.extend(other.places);
        self.all |= other.all;
        self.moved |= other.moved;
        other.lost.iter().for_each(|(partition, count)| self.lose(*partition, *count));
        self.name(other.subscriptions.into_iter());
    }

    fn name(&mut self, names: impl Iterator<Item = SubscriptionId>) {
        if self.all {
            return;
        }
        self.subscriptions.extend(names);
        if self.subscriptions.len() > MAX_NAMED {
            self.all = true;
            self.subscriptions.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty() && !self.moved && self.lost.is_empty()
    }
}

impl Lane {
    /// `count` events of a partition were removed from the topic before they were routed: a marker
    /// says that anyone may have missed some.
    pub fn lose(&mut self, partition: u32, count: u64, now: Instant) {
        self.partitions.lose(partition, count);
        self.gap.lose(partition, count);
        self.waiting_since.get_or_insert(now);
    }

    /// The gateway has this marker.
    pub(super) fn told_lost(&mut self, gap: Option<&Gap>) {
        for (partition, count) in gap.iter().flat_map(|gap| &gap.lost) {
            self.partitions.told(*partition, *count);
            self.counters.lost += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<SubscriptionId> {
        (0..count).map(|n| SubscriptionId::new(format!("s{n}")).unwrap()).collect()
    }

    #[test]
    fn r09_a_marker_of_too_many_moved_subscriptions_concerns_all() {
        let mut gap = Gap::default();
        gap.move_in(names(MAX_NAMED));
        assert_eq!(gap.subscriptions().unwrap().len(), MAX_NAMED);
        assert!(!gap.concerns_all());
        gap.move_in(names(MAX_NAMED + 1));
        assert!(gap.subscriptions().is_none() && gap.concerns_all());
    }

    #[test]
    fn r09_one_moved_behind_too_many_of_low_priority_is_not_forgotten() {
        let mut gap = Gap::default();
        gap.name(names(MAX_NAMED + 1).into_iter());
        assert!(gap.subscriptions().is_none() && !gap.concerns_all(), "they are of low priority");
        gap.move_in(names(1));
        assert!(gap.concerns_all());
    }
}
