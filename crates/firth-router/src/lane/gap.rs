//! Gap markers: what a gateway is told instead of the events that were left out.

use super::item::{Item, Position, Ticket};
use crate::name::SubscriptionId;
use std::collections::BTreeSet;

/// The most subscriptions that a marker names; beyond that it stands for all low-priority ones.
pub const MAX_NAMED: usize = 1000;

/// An event that was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) position: Position,
    pub(super) ticket: Ticket,
    pub(super) live: bool,
}

/// Events that were left out under pressure. The receiver passes it on to those who missed something, so that they read anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    pub(super) places: Vec<Left>,
    subscriptions: BTreeSet<SubscriptionId>,
    all: bool,
    /// Some that it names may have missed events which never were in this lane.
    moved: bool,
}

impl Gap {
    /// Which events, by place.
    pub fn positions(&self) -> impl Iterator<Item = Position> {
        self.places.iter().map(|left| left.position)
    }

    /// Whose events; `None`: any low-priority subscription may have missed some.
    pub fn subscriptions(&self) -> Option<&BTreeSet<SubscriptionId>> {
        (!self.all).then_some(&self.subscriptions)
    }

    pub(super) fn add(&mut self, item: &Item) {
        self.places.push(Left { position: item.position, ticket: item.ticket, live: item.live });
        let names = item.wanted.iter().map(|one| one.subscription.clone());
        self.name(names);
    }

    /// These subscriptions have come from another gateway, which may not have got all of their events.
    pub(super) fn move_in(&mut self, subscriptions: impl IntoIterator<Item = SubscriptionId>) {
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

    pub(super) fn merge(&mut self, other: Self) {
        self.places.extend(other.places);
        self.all |= other.all;
        self.moved |= other.moved;
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
        self.places.is_empty() && !self.moved
    }
}
