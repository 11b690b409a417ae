//! Making room in an outbox: conflate, mark a gap, or cut.

use super::{EncodedEvent, FrameBatch, Gap, Item, Outbox, QueuedEvent, SlowPolicy, cost};
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

    /// Whether a whole run fits. It always does where no event waits: that events come together
    /// does not make a client slow.
    pub(super) fn has_room(&self, batch: &FrameBatch) -> bool {
        self.events == 0
            || (self.events + batch.events().len() <= self.room.events
                && self.bytes + batch.cost <= self.room.bytes)
    }

    /// Takes runs apart: from now on each event counts.
    fn unroll(&mut self) {
        if !self.items.iter().any(|item| matches!(item, Item::Batch(_))) {
            return;
        }
        for item in std::mem::take(&mut self.items) {
            match item {
                Item::Batch(batch) => {
                    let queued_events = batch.events().iter().cloned().map(QueuedEvent::new);
                    self.items.extend(queued_events.map(Item::Event));
                }
                other => self.items.push_back(other),
            }
        }
    }

    /// Leaves out events that a newer one of the same document, for at least the same
    /// subscriptions, makes obsolete.
    fn conflate(&mut self) {
        self.unroll();
        let mut newest: HashMap<(&str, &str), (usize, &QueuedEvent)> = HashMap::new();
        let mut replaced_by: HashMap<usize, usize> = HashMap::new();
        for (at, item) in self.items.iter().enumerate().rev() {
            let Item::Event(queued_event) = item else { continue };
            let event = queued_event.encoded.frame.event();
            match newest.entry((&*event.collection, &*event.key)) {
                Entry::Occupied(newer) => {
                    let (newer_at, newer) = *newer.get();
                    if queued_event.encoded.is_covered_by(&newer.encoded) {
                        replaced_by.insert(at, newer_at);
                    }
                }
                Entry::Vacant(free) => {
                    free.insert((at, queued_event));
                }
            }
        }
        for (old, new) in &replaced_by {
            let Item::Event(older) = &self.items[*old] else { continue };
            let count = older.replaced + 1;
            let oldest = older.oldest().clone();
            if let Item::Event(newer) = &mut self.items[*new] {
                newer.replaced += count;
                if oldest.at.offsets.order() < newer.oldest().at.offsets.order() {
                    newer.oldest = Some(oldest);
                }
            }
        }
        let mut at = 0;
        let mut events = 0;
        let mut bytes = 0;
        self.items.retain(|item| {
            let goes = replaced_by.contains_key(&at);
            at += 1;
            if let (true, Item::Event(queued_event)) = (goes, item) {
                (events, bytes) = (events + 1, bytes + cost(queued_event));
            }
            !goes
        });
        self.left_out(events, bytes);
        self.accounting.conflated += events as u64;
    }

    /// Leaves out every event that waits; one gap stands where the first was.
    fn mark_gap(&mut self) {
        self.unroll();
        let mut gap: Option<Gap> = None;
        let mut events = 0;
        let mut bytes = 0;
        let mut place = 0;
        let mut at = 0;
        self.items.retain(|item| {
            let part = match item {
                Item::Event(queued_event) => {
                    (events, bytes) = (events + 1, bytes + cost(queued_event));
                    gap_of(queued_event)
                }
                Item::Gap(older) => (**older).clone(),
                Item::Text(_) | Item::Replay(_) | Item::Batch(_) => {
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
        self.accounting.gap_marked += events as u64;
    }

    fn left_out(&mut self, events: usize, bytes: usize) {
        self.events -= events;
        self.bytes -= bytes;
        self.accounting.queued -= events as u64;
    }
}

impl EncodedEvent {
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

fn gap_of(queued_event: &QueuedEvent) -> Gap {
    let after = queued_event.oldest().before();
    let until = queued_event.encoded.frame.at.clone();
    Gap { after, until, events: 1 + u64::from(queued_event.replaced) }
}
