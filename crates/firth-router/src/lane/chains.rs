//! The events of a lane by document: at most the first ones of a document are ever ready, so that
//! retries never change its order.
//!
//! A document's events form a chain. A chain is *ready* (it has an entry in the queue of its most
//! urgent event), *out* (some of its events are on their way) or *resting* (its first event waits
//! for another attempt). Only a ready chain gives events, from its front, and then it is out until
//! they are settled.

use super::item::{Item, Key};
use super::waiting::Waiting;
use crate::event::Priority;
use crate::registry::Overflow;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::collections::{BTreeSet, VecDeque};
use tokio::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Has the entry with this number.
    Ready(u64),
    Out,
    Resting(Instant),
}

struct Chain {
    key: Key,
    items: Waiting,
    mode: Mode,
    level: Priority,
}

/// The right of a chain to give events. Numbers are never used twice, so that one which is out of
/// date finds nothing.
struct QueueEntry {
    hash: u64,
    number: u64,
}

#[derive(Default)]
pub(super) struct Chains {
    chains: HashTable<Chain>,
    queues: [VecDeque<QueueEntry>; 3],
    resting: BTreeSet<(Instant, Key)>,
    entries: u64,
    ready: usize,
}

impl Chains {
    /// Adds an event behind the others of its document.
    pub(super) fn push(&mut self, item: Item) {
        let hash = item.hash();
        let level = item.priority;
        match self.chains.entry(hash, |chain| chain.key.is_of(&item), |chain| chain.key.hash()) {
            Entry::Vacant(vacant) => {
                let key = item.key();
                let mut items = Waiting::default();
                items.push_back(item);
                self.entries += 1;
                let number = self.entries;
                vacant.insert(Chain { key, items, mode: Mode::Ready(number), level });
                self.ready += 1;
                self.queues[level.index()].push_back(QueueEntry { hash, number });
            }
            Entry::Occupied(mut chain) => {
                let chain = chain.get_mut();
                chain.items.push_back(item);
                let is_ready = matches!(chain.mode, Mode::Ready(_));
                self.ready += usize::from(is_ready);
                if level < chain.level {
                    chain.level = level;
                    // An urgent event takes those before it along.
                    if is_ready {
                        self.entries += 1;
                        self.queues[level.index()].push_back(chain.entry(self.entries));
                    }
                }
            }
        }
    }

    /// Replaces the last waiting event of the document by a newer one, if both may be conflated;
    /// answers the older one.
    #[expect(clippy::result_large_err, reason = "either way an event is given back")]
    pub(super) fn conflate(&mut self, item: Item) -> Result<Item, Item> {
        let Some(chain) = self.chains.find_mut(item.hash(), |chain| chain.key.is_of(&item)) else {
            return Err(item);
        };
        match chain.items.back_mut() {
            // One that was refused before is about to be tried again: it keeps its place.
            Some(last)
                if last.overflow == Overflow::Conflate
                    && last.priority == Priority::Low
                    && last.refusals == 0 =>
            {
                Ok(std::mem::replace(last, item))
            }
            _ => Err(item),
        }
    }

    /// Takes up to `max` events, the most urgent first. With `least_first` it takes the least
    /// urgent first, so that low priorities do not starve.
    pub(super) fn take(&mut self, max: usize, max_bytes: usize, least_first: bool) -> Vec<Item> {
        let mut taken = Vec::with_capacity(max.min(self.ready));
        let mut bytes = 0;
        let mut order = [0, 1, 2];
        if least_first {
            order.reverse();
        }
        for level in order {
            while taken.len() < max && (bytes < max_bytes || taken.is_empty()) {
                let Some(entry) = self.queues[level].pop_front() else { break };
                let holds = |chain: &Chain| chain.mode == Mode::Ready(entry.number);
                let Some(chain) = self.chains.find_mut(entry.hash, holds) else { continue };
                self.ready -= chain.items.len();
                chain.mode = Mode::Out;
                while taken.len() < max
                    && (bytes < max_bytes || taken.is_empty())
                    && let Some(item) = chain.items.pop_front()
                {
                    bytes += item.bytes;
                    taken.push(item);
                }
            }
        }
        taken
    }

    /// Events of one document come back to the front of it, in order; the chain is ready at once,
    /// or rests until then.
    pub(super) fn put_back(&mut self, key: &Key, items: Vec<Item>, rest: Option<Instant>) {
        let chain = self.chain(key).expect("a chain that is out stays until it is settled");
        for item in items.into_iter().rev() {
            chain.level = chain.level.min(item.priority);
            chain.items.push_front(item);
        }
        match rest {
            Some(until) => {
                chain.mode = Mode::Resting(until);
                self.resting.insert((until, key.clone()));
            }
            None => self.settled(key, true),
        }
    }

    /// An event is delivered, and so is all that was out of its document: the rest of it may go on.
    pub(super) fn landed(&mut self, item: &Item) {
        let is_out = |chain: &Chain| chain.key.is_of(item) && chain.mode == Mode::Out;
        self.go_on(item.hash(), is_out, false);
    }

    /// What was out of a document is settled: the rest of it may go on.
    pub(super) fn settled(&mut self, key: &Key, first: bool) {
        self.go_on(key.hash(), |chain| chain.key == *key, first);
    }

    fn go_on(&mut self, hash: u64, is_it: impl FnMut(&Chain) -> bool, first: bool) {
        let Ok(mut chain) = self.chains.find_entry(hash, is_it) else { return };
        if chain.get().items.is_empty() {
            chain.remove();
            return;
        }
        let chain = chain.get_mut();
        chain.level = chain.items.iter().map(|item| item.priority).min().unwrap_or_default();
        self.ready += chain.items.len();
        self.entries += 1;
        let queue = &mut self.queues[chain.level.index()];
        let entry = chain.entry(self.entries);
        match first {
            true => queue.push_front(entry),
            false => queue.push_back(entry),
        }
    }

    /// Wakes the chains whose rest is over.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some((until, _)) = self.resting.first()
            && *until <= now
        {
            let (_, key) = self.resting.pop_first().expect("there is a first one");
            self.settled(&key, true);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| *until)
    }

    /// All that wait or rest.
    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.chains.iter().flat_map(|chain| chain.items.iter())
    }

    /// How many events could be taken now.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// Removes the waiting and resting events that `leaves` selects, whether or not their turn has
    /// come. Events in flight stay.
    pub(super) fn drain(&mut self, mut leaves: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let mut drained = Vec::new();
        let Self { chains, resting, ready, .. } = self;
        chains.retain(|chain| {
            let before = chain.items.len();
            chain.items.take_out(&mut leaves, &mut drained);
            if matches!(chain.mode, Mode::Ready(_)) {
                *ready -= before - chain.items.len();
            }
            let stays = !chain.items.is_empty() || chain.mode == Mode::Out;
            if let (false, Mode::Resting(until)) = (stays, chain.mode) {
                resting.remove(&(until, chain.key.clone()));
            }
            stays
        });
        drained
    }

    fn chain(&mut self, key: &Key) -> Option<&mut Chain> {
        self.chains.find_mut(key.hash(), |chain| chain.key == *key)
    }
}

impl Chain {
    /// Makes it ready, under the entry with this number.
    fn entry(&mut self, number: u64) -> QueueEntry {
        self.mode = Mode::Ready(number);
        QueueEntry { hash: self.key.hash(), number }
    }
}
