//! The books of a lane: every event that came in is in exactly one place.

use super::item::Fate;
use std::collections::BTreeMap;

/// Where the events of one partition are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
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
    /// In the lane: waiting, on their way, to be tried again, or left out without the gateway knowing yet.
    pub held: u64,
}

impl Books {
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

/// The books of all partitions that a lane has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(BTreeMap<u32, Books>);

impl Ledger {
    pub(super) fn take(&mut self, partition: u32) {
        let books = self.0.entry(partition).or_default();
        books.taken += 1;
        books.held += 1;
    }

    pub(super) fn release(&mut self, partition: u32, fate: &Fate) {
        let books = self.0.entry(partition).or_default();
        books.held -= 1;
        match fate {
            Fate::Delivered => books.delivered += 1,
            Fate::Dead(_) => books.dead += 1,
            Fate::Gapped => books.gapped += 1,
            Fate::Parked => books.parked += 1,
        }
    }

    /// So many events are gone that nobody knows: they are held until the gateway knows.
    pub(super) fn lose(&mut self, partition: u32, count: u64) {
        let books = self.0.entry(partition).or_default();
        books.taken += count;
        books.held += count;
    }

    /// The gateway knows.
    pub(super) fn told(&mut self, partition: u32, count: u64) {
        let books = self.0.entry(partition).or_default();
        books.held -= count;
        books.gapped += count;
    }

    pub(super) fn of(&self, partition: u32) -> Books {
        self.0.get(&partition).copied().unwrap_or_default()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, Books)> {
        self.0.iter().map(|(partition, books)| (*partition, *books))
    }
}
