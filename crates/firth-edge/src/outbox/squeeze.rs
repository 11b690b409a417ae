//! Making room in an outbox: conflate, mark a gap, or cut.

use super::{Gap, Item, Outbox, Parcel, Run, Shipment, SlowPolicy, cost};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

impl Outbox {
    /// Makes room for an event of this size, by the policy. A single event always fits.
    pub(super) fn make_room(&mut self, cost: usize) {
        if self.fits(cost, 1) {
            return;
        }
        match self.room.policy {
            SlowPolicy::Conflate => {
                self.conflate();
                // Half must be free then, or the next event would come here again.
                if !self.fits(cost, 2) {
                    self.mark_gap();
                }
            }
            SlowPolicy::Gap => self.mark_gap(),
            SlowPolicy::Cut => self.cut(),
        }
    }

    /// Whether an event of this size fits into this fraction of the room.
    fn fits(&self, cost: usize, part: usize) -> bool {
        self.events == 0
            || (self.events < self.room.events.div_ceil(part) && self.bytes + cost <= self.room.bytes / part)
    }

    /// Whether a whole run fits. It always does where no event waits: that events come together does not make a client slow.
    pub(super) fn has_room(&self, run: &Run) -> bool {
        self.events == 0
            || (self.events + run.shipments().len() <= self.room.events
                && self.bytes + run.cost <= self.room.bytes)
    }

    /// Takes runs apart: from now on each event counts.
    fn unroll(&mut self) {
        if !self.items.iter().any(|item| matches!(item, Item::Run(_))) {
            return;
        }
        for item in std::mem::take(&mut self.items) {
            match item {
                Item::Run(run) => {
                    let parcels = run.shipments().iter().cloned().map(Parcel::new);
                    self.items.extend(parcels.map(Item::Event));
                }
                other => self.items.push_back(other),
            }
        }
    }

    /// Leaves out events that a newer one of the same document, for at least the same subscriptions, makes obsolete.
    fn conflate(&mut self) {
        self.unroll();
        let mut newest: HashMap<(&str, &str), (usize, &Parcel)> = HashMap::new();
        let mut replaced_by: HashMap<usize, usize> = HashMap::new();
        for (at, item) in self.items.iter().enumerate().rev() {
            let Item::Event(parcel) = item else { continue };
            let event = parcel.shipment.frame.event();
            match newest.entry((&*event.collection, &*event.key)) {
                Entry::Occupied(newer) => {
                    let (newer_at, newer) = *newer.get();
                    if parcel.shipment.is_covered_by(&newer.shipment) {
                        replaced_by.insert(at, newer_at);
                    }
                }
                Entry::Vacant(free) => {
                    free.insert((at, parcel));
                }
            }
        }
        for (old, new) in &replaced_by {
            let Item::Event(older) = &self.items[*old] else { continue };
            let (count, oldest) = (older.replaced + 1, older.oldest().clone());
            if let Item::Event(newer) = &mut self.items[*new] {
                newer.replaced += count;
                if oldest.at.offsets.order() < newer.oldest().at.offsets.order() {
                    newer.oldest = Some(oldest);
                }
            }
        }
        let mut at = 0;
        let (mut events, mut bytes) = (0, 0);
        self.items.retain(|item| {
            let goes = replaced_by.contains_key(&at);
            at += 1;
            if let (true, Item::Event(parcel)) = (goes, item) {
                (events, bytes) = (events + 1, bytes + cost(parcel));
            }
            !goes
        });
        self.left_out(events, bytes);
        self.books.conflated += events as u64;
    }

    /// Leaves out every event that waits; one gap stands where the first was.
    fn mark_gap(&mut self) {
        self.unroll();
        let mut gap: Option<Gap> = None;
        let (mut events, mut bytes, mut place, mut at) = (0, 0, 0, 0);
        self.items.retain(|item| {
            let part = match item {
                Item::Event(parcel) => {
                    (events, bytes) = (events + 1, bytes + cost(parcel));
                    gap_of(parcel)
                }
                Item::Gap(older) => (**older).clone(),
                Item::Text(_) | Item::Replay(_) | Item::Run(_) => {
                    at += 1;
                    return true;
                }
            };
            match &mut gap {
                Some(gap) => gap.join(part),
                None => (gap, place) = (Some(part), at),
            }
            false
        });
        if let Some(gap) = gap {
            self.items.insert(place, Item::Gap(Box::new(gap)));
        }
        self.left_out(events, bytes);
        self.books.gap_marked += events as u64;
    }

    fn left_out(&mut self, events: usize, bytes: usize) {
        self.events -= events;
        self.bytes -= bytes;
        self.books.queued -= events as u64;
    }
}

impl Shipment {
    /// Whether the other is for at least the same subscriptions.
    fn is_covered_by(&self, other: &Self) -> bool {
        self.marks.iter().all(|mark| other.marks.iter().any(|known| known.name == mark.name))
    }
}

impl Gap {
    /// Covers what the other covers as well.
    fn join(&mut self, other: Self) {
        if other.after.offsets.order() < self.after.offsets.order() {
            self.after = other.after;
        }
        if other.until.offsets.order() > self.until.offsets.order() {
            self.until = other.until;
        }
        self.events += other.events;
    }
}

fn gap_of(parcel: &Parcel) -> Gap {
    let (after, until) = (parcel.oldest().before(), parcel.shipment.frame.at.clone());
    Gap { after, until, events: 1 + u64::from(parcel.replaced) }
}
