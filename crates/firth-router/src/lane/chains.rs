//! The events of a lane by document: at most the first ones of a document are ever ready, so that retries never change its order.
//!
//! A document's events form a chain. A chain is *ready* (it has a ticket in the queue of its most urgent event), *out* (some of its events are on
//! their way) or *resting* (its first event waits for another attempt). Only a ready chain gives events, from its front, and
//! then it is out until they are settled.

use super::item::{Item, Key};
use crate::event::Priority;
use crate::registry::Overflow;
use foldhash::fast::RandomState;
use std::collections::{BTreeSet, HashMap, VecDeque};
use tokio::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Has the ticket with this number.
    Ready(u64),
    Out,
    Resting(Instant),
}

struct Chain {
    items: VecDeque<Item>,
    mode: Mode,
    level: Priority,
}

struct Ticket {
    key: Key,
    number: u64,
}

#[derive(Default)]
pub(super) struct Chains {
    chains: HashMap<Key, Chain, RandomState>,
    queues: [VecDeque<Ticket>; 3],
    resting: BTreeSet<(Instant, Key)>,
    tickets: u64,
    ready: usize,
}

impl Chains {
    /// Adds an event behind the others of its document.
    pub(super) fn push(&mut self, item: Item) {
        let key = item.key();
        let level = item.priority;
        match self.chains.get_mut(&key) {
            None => {
                let items = VecDeque::from([item]);
                self.chains.insert(key.clone(), Chain { items, mode: Mode::Out, level });
                self.ready += 1;
                self.ticket(key, false);
            }
            Some(chain) => {
                chain.items.push_back(item);
                let is_ready = matches!(chain.mode, Mode::Ready(_));
                self.ready += usize::from(is_ready);
                if level < chain.level {
                    chain.level = level;
                    // An urgent event takes those before it along.
                    if is_ready {
                        self.ticket(key, false);
                    }
                }
            }
        }
    }

    /// Replaces the last waiting event of the document by a newer one, if both may be conflated; answers the older one.
    pub(super) fn conflate(&mut self, item: Item) -> Result<Item, Item> {
        let Some(chain) = self.chains.get_mut(&item.key()) else { return Err(item) };
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

    /// Takes up to `max` events, the most urgent first; or the least urgent first, so that nobody starves.
    pub(super) fn take(&mut self, max: usize, max_bytes: usize, least_first: bool) -> Vec<Item> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let mut order = [0, 1, 2];
        if least_first {
            order.reverse();
        }
        for level in order {
            while taken.len() < max && (bytes < max_bytes || taken.is_empty()) {
                let Some(ticket) = self.queues[level].pop_front() else { break };
                let Some(chain) = self.chains.get_mut(&ticket.key) else { continue };
                if chain.mode != Mode::Ready(ticket.number) {
                    continue;
                }
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

    /// Events of one document come back to the front of it, in order; the chain is ready at once, or rests until then.
    pub(super) fn put_back(&mut self, key: &Key, items: Vec<Item>, rest: Option<Instant>) {
        let chain = self.chains.get_mut(key).expect("a chain that is out stays until it is settled");
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

    /// Something that was out of a document is delivered, and so is all that was out of it: the rest may go on.
    pub(super) fn landed(&mut self, key: &Key) {
        if self.chains.get(key).is_some_and(|chain| chain.mode == Mode::Out) {
            self.settled(key, false);
        }
    }

    /// What was out of a document is settled: the rest of it may go on.
    pub(super) fn settled(&mut self, key: &Key, first: bool) {
        let Some(chain) = self.chains.get_mut(key) else { return };
        if chain.items.is_empty() {
            self.chains.remove(key);
            return;
        }
        chain.level = chain.items.iter().map(|item| item.priority).min().unwrap_or_default();
        self.ready += chain.items.len();
        self.ticket(key.clone(), first);
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
        self.chains.values().flat_map(|chain| &chain.items)
    }

    /// How many events could be taken now.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// Takes every waiting and resting event out, whatever its turn. What is on its way stays.
    pub(super) fn drain(&mut self, mut leaves: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let mut drained = Vec::new();
        let keys: Vec<Key> = self.chains.keys().cloned().collect();
        for key in keys {
            let Some(chain) = self.chains.get_mut(&key) else { continue };
            let before = chain.items.len();
            let (out, stay): (Vec<_>, Vec<_>) = chain.items.drain(..).partition(&mut leaves);
            chain.items = stay.into();
            drained.extend(out);
            if matches!(chain.mode, Mode::Ready(_)) {
                self.ready -= before - chain.items.len();
            }
            if chain.items.is_empty() && chain.mode != Mode::Out {
                if let Mode::Resting(until) = chain.mode {
                    self.resting.remove(&(until, key.clone()));
                }
                self.chains.remove(&key);
            }
        }
        drained
    }

    fn ticket(&mut self, key: Key, first: bool) {
        let chain = self.chains.get_mut(&key).expect("only chains that are there get tickets");
        self.tickets += 1;
        chain.mode = Mode::Ready(self.tickets);
        let (queue, ticket) = (&mut self.queues[chain.level.index()], Ticket { key, number: self.tickets });
        match first {
            true => queue.push_front(ticket),
            false => queue.push_back(ticket),
        }
    }
}
