//! The accounting of a lane: every event that came in is in exactly one place.

use super::item::ReleaseCause;
use std::collections::BTreeMap;

/// Where the events of one partition are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneAccounting {
    /// Came in.
    pub taken: u64,
    /// Accepted by the gateway.
    pub delivered: u64,
    /// Given up.
    pub dead: u64,
    /// Left out, and the gateway knows.
    pub gapped: u64,
    /// To be read from the topic later.
    pub parked: u64,
    /// In the lane: waiting, on their way, to be tried again, or left out without the gateway
    /// knowing yet.
    pub held: u64,
}

impl LaneAccounting {
    /// in = delivered + parked + dead + gap-marked + in flight.
    pub fn balance(&self) -> bool {
        self.taken == self.delivered + self.dead + self.gapped + self.parked + self.held
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            taken: self.taken + other.taken,
            delivered: self.delivered + other.delivered,
            dead: self.dead + other.dead,
            gapped: self.gapped + other.gapped,
            parked: self.parked + other.parked,
            held: self.held + other.held,
        }
    }
}

/// The accounting of all partitions that a lane has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct PartitionAccounting(BTreeMap<u32, LaneAccounting>);

impl PartitionAccounting {
    pub(super) fn take(&mut self, partition: u32) {
        let accounting = self.0.entry(partition).or_default();
        accounting.taken += 1;
        accounting.held += 1;
    }

    pub(super) fn release(&mut self, partition: u32, cause: &ReleaseCause) {
        let accounting = self.0.entry(partition).or_default();
        accounting.held -= 1;
        match cause {
            ReleaseCause::Delivered => accounting.delivered += 1,
            ReleaseCause::Dead(_) => accounting.dead += 1,
            ReleaseCause::Gapped => accounting.gapped += 1,
            ReleaseCause::Parked => accounting.parked += 1,
        }
    }

    /// Counts events that were removed from the topic before the node routed them. They count as
    /// held until the gateway has the gap marker.
    pub(super) fn lose(&mut self, partition: u32, count: u64) {
        let accounting = self.0.entry(partition).or_default();
        accounting.taken += count;
        accounting.held += count;
    }

    /// Counts lost events as gapped: the gateway has the gap marker.
    pub(super) fn told(&mut self, partition: u32, count: u64) {
        let accounting = self.0.entry(partition).or_default();
        accounting.held -= count;
        accounting.gapped += count;
    }

    pub(super) fn of(&self, partition: u32) -> LaneAccounting {
        self.0.get(&partition).copied().unwrap_or_default()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, LaneAccounting)> {
        self.0.iter().map(|(partition, accounting)| (*partition, *accounting))
    }
}
