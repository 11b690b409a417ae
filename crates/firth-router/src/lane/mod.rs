//! The lane of one gateway: queues, batches, window, retries, pressure, breaker and books. Pure: time is a parameter, sending is the driver's.
//!
//! ```text
//! offer ─► chains per document in three priorities ─► batch (when the window and the breaker allow) ─► driver
//!            ▲ put back in order: unreachable, refused      accepted · refused · unreachable ◄──────────┘
//! ```
//! - **Order**: of one document, at most one batch is on its way; what comes back goes to the front.
//! - **Batches form naturally**: an idle gateway gets an event at once; while a batch is on its way others gather, up to `max_size` or `max_wait`.
//! - **Bounded**: at most `queue_size` events and `queue_bytes` bytes are held (one event is always taken by an empty lane). A full lane
//!   refuses, and the caller parks the gateway or pauses the source.
//! - **Nothing vanishes**: every event taken is released exactly once, with its [`Fate`]; the [`Books`] count them.

mod books;
mod breaker;
mod chains;
mod gap;
mod item;
mod pressure;
mod window;

pub use books::Books;
pub use breaker::Circuit;
pub use gap::{Gap, MAX_NAMED};
pub use item::{Fate, For, Item, Position, Released};
pub use pressure::Pressure;

use crate::config::{Retry, RoutingConfig};
use crate::event::Priority;
use crate::registry::Overflow;
use books::Ledger;
use breaker::Breaker;
use chains::Chains;
use item::Key;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;
use window::Window;

/// The number of a batch in its lane.
pub type BatchId = u64;

/// The most bytes of one batch, unless it is a single event.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Every so many batches begin with the least urgent events.
const FAIR_TURN: u64 = 16;

/// Events for a gateway, to be accepted or refused one by one.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its number.
    pub id: BatchId,
    /// The events; events of one document are in order.
    pub items: Vec<Item>,
    /// What was left out before.
    pub gap: Option<Gap>,
}

/// What the gateway said to one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done with it.
    Accepted,
    /// It does not want it, or not now.
    Refused(String),
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All accepted.
    Accepted,
    /// One answer per event, in order. Missing answers count as refused.
    Answered(Vec<Answer>),
    /// It is unknown whether it arrived: unreachable, timed out, cut off. It is sent again with the same numbers.
    Unreached,
    /// The gateway is alive and asks for a pause.
    Busy(Option<Duration>),
}

/// The answer to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It is in the lane.
    Taken,
    /// The lane is full; the event was not taken.
    Full,
}

/// Events for one gateway, on their way.
pub struct Lane {
    config: RoutingConfig,
    chains: Chains,
    out: BTreeMap<BatchId, Batch>,
    gap: Gap,
    window: Window,
    breaker: Breaker,
    pressure: Pressure,
    ledger: Ledger,
    events: usize,
    bytes: usize,
    batches: BatchId,
    waiting_since: Option<Instant>,
    pause_until: Option<Instant>,
}

impl Lane {
    /// An empty lane.
    pub fn new(config: RoutingConfig) -> Self {
        Self {
            chains: Chains::default(),
            out: BTreeMap::new(),
            gap: Gap::default(),
            window: Window::new(config.delivery.max_in_flight),
            breaker: Breaker::new(config.delivery.breaker.clone()),
            pressure: Pressure::None,
            ledger: Ledger::default(),
            events: 0,
            bytes: 0,
            batches: 0,
            waiting_since: None,
            pause_until: None,
            config,
        }
    }

    /// Puts an event into the lane. Under pressure, one of low priority may be left out instead, or take the place of an older one; a gap
    /// marker tells the gateway.
    pub fn offer(&mut self, item: Item, now: Instant) -> Offer {
        let limits = &self.config.backpressure;
        let is_full = self.events >= limits.queue_size || self.bytes + item.bytes > limits.queue_bytes;
        if is_full && self.events > 0 {
            return Offer::Full;
        }
        self.ledger.take(item.position.partition);
        self.events += 1;
        let policy =
            (self.pressure >= Pressure::Soft && item.priority == Priority::Low).then_some(item.overflow);
        match policy {
            Some(Overflow::Shed) => self.gap.add(&item),
            Some(Overflow::Conflate) => {
                self.bytes += item.bytes;
                match self.chains.conflate(item) {
                    Ok(older) => {
                        self.bytes -= older.bytes;
                        self.gap.add(&older);
                    }
                    Err(item) => self.chains.push(item),
                }
            }
            Some(Overflow::Keep) | None => {
                self.bytes += item.bytes;
                self.chains.push(item);
            }
        }
        self.waiting_since.get_or_insert(now);
        self.weigh();
        Offer::Taken
    }

    /// The next batch to send, if one should go out now.
    pub fn poll(&mut self, now: Instant) -> Option<Batch> {
        self.chains.wake(now);
        if self.pause_until.is_some_and(|until| until > now) {
            return None;
        }
        self.pause_until = None;
        let ready = self.chains.ready();
        if ready == 0 && self.gap.is_empty() {
            return None;
        }
        if self.out.len() >= self.window.size() || !self.breaker.allows(now) {
            return None;
        }
        let max = self.config.batch.max_size;
        let waited = self.waiting_since.is_none_or(|since| now >= since + self.config.batch.max_wait);
        if !self.out.is_empty() && ready < max && !waited {
            return None;
        }
        self.batches += 1;
        let items = self.chains.take(max, MAX_BATCH_BYTES, self.batches.is_multiple_of(FAIR_TURN));
        let gap = (!self.gap.is_empty()).then(|| std::mem::take(&mut self.gap));
        self.waiting_since = (self.chains.ready() > 0).then_some(now);
        let batch = Batch { id: self.batches, items, gap };
        self.breaker.sent();
        self.out.insert(batch.id, batch.clone());
        Some(batch)
    }

    /// When [`poll`](Self::poll) is worth another call if nothing else happens.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        let is_waiting = self.chains.ready() > 0 || !self.gap.is_empty();
        let full_wait = self.waiting_since.map(|since| since + self.config.batch.max_wait);
        let is_held_up = self.breaker.wake().or(self.pause_until).is_some_and(|until| until > now);
        let has_room = self.out.len() < self.window.size() && !is_held_up;
        let wakes = [
            self.chains.next_wake(),
            self.breaker.wake().filter(|_| is_waiting),
            self.pause_until.filter(|_| is_waiting),
            full_wait.filter(|wake| is_waiting && has_room && *wake > now),
        ];
        wakes.into_iter().flatten().min()
    }

    /// Takes note of what became of a batch; answers the events that left the lane. `jitter` is random, 0 to 1.
    pub fn settle(&mut self, id: BatchId, outcome: Outcome, now: Instant, jitter: f64) -> Vec<Released> {
        // A batch that was settled before, by a timeout say, is not settled again.
        let Some(batch) = self.out.remove(&id) else { return Vec::new() };
        let answers = match outcome {
            Outcome::Accepted => None,
            Outcome::Answered(answers) => Some(answers),
            Outcome::Unreached => {
                self.breaker.unreached(now);
                self.return_all(batch, now);
                return Vec::new();
            }
            Outcome::Busy(after) => {
                self.breaker.reached();
                self.pause_until = Some(now + after.unwrap_or(self.config.delivery.retry.initial_delay));
                self.return_all(batch, now);
                return Vec::new();
            }
        };
        self.breaker.reached();
        self.window.acked();
        let mut released = Vec::new();
        for position in batch.gap.into_iter().flat_map(|gap| gap.positions) {
            self.release(position, 0, Fate::Gapped, &mut released);
        }
        self.judge(batch.items, answers, now, jitter, &mut released);
        self.weigh();
        released
    }

    /// Takes everything of a partition that is not on its way out of the lane, to be read from the topic later.
    pub fn park(&mut self, partition: u32) -> Vec<Released> {
        let mut released = Vec::new();
        for item in self.chains.drain(|item| item.position.partition == partition) {
            self.release(item.position, item.bytes, Fate::Parked, &mut released);
        }
        self.weigh();
        released
    }

    /// How full it is.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Whether its gateway counts as reachable.
    pub fn circuit(&self) -> Circuit {
        self.breaker.state()
    }

    /// How many events it holds.
    pub fn held(&self) -> usize {
        self.events
    }

    /// How many batches are on their way, and how many may be.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.out.len(), self.window.size())
    }

    /// The books of one partition.
    pub fn books(&self, partition: u32) -> Books {
        self.ledger.of(partition)
    }

    /// The books of all partitions that it has seen.
    pub fn all_books(&self) -> impl Iterator<Item = (u32, Books)> {
        self.ledger.all()
    }

    /// Everything comes back to the front, in order, as if it had not been sent.
    fn return_all(&mut self, batch: Batch, now: Instant) {
        self.window.trouble();
        if let Some(gap) = batch.gap {
            self.gap.merge(gap);
        }
        for (key, items) in by_document(batch.items).into_iter().rev() {
            self.chains.put_back(&key, items, None);
        }
        self.waiting_since.get_or_insert(now);
        self.weigh();
    }

    fn judge(
        &mut self,
        items: Vec<Item>,
        answers: Option<Vec<Answer>>,
        now: Instant,
        jitter: f64,
        released: &mut Vec<Released>,
    ) {
        let places: HashSet<Position> = match &answers {
            None => HashSet::new(),
            Some(answers) => refused(&items, answers),
        };
        let mut reasons: BTreeMap<Position, String> = BTreeMap::new();
        for (item, answer) in items.iter().zip(answers.into_iter().flatten()) {
            if let Answer::Refused(reason) = answer {
                reasons.insert(item.position, reason);
            }
        }
        for (key, items) in by_document(items) {
            let (back, accepted): (Vec<_>, Vec<_>) =
                items.into_iter().partition(|item| places.contains(&item.position));
            for item in accepted {
                self.release(item.position, item.bytes, Fate::Delivered, released);
            }
            self.again(&key, back, &mut reasons, (now, jitter), released);
        }
        self.waiting_since = self.waiting_since.or((self.chains.ready() > 0).then_some(now));
    }

    /// The first refused event of a document is tried again later, or given up; those behind it wait for it.
    fn again(
        &mut self,
        key: &Key,
        mut back: Vec<Item>,
        reasons: &mut BTreeMap<Position, String>,
        (now, jitter): (Instant, f64),
        released: &mut Vec<Released>,
    ) {
        let Some(first) = back.first_mut() else {
            self.chains.settled(key, false);
            return;
        };
        first.refusals += 1;
        let retry = &self.config.delivery.retry;
        if first.refusals < retry.max_attempts {
            let rest = now + backoff(retry, first.refusals, jitter);
            self.chains.put_back(key, back, Some(rest));
            return;
        }
        let given_up = back.remove(0);
        let reason = reasons
            .remove(&given_up.position)
            .unwrap_or_else(|| "the gateway gave no answer to this event".to_owned());
        self.release(given_up.position, given_up.bytes, Fate::Dead(reason), released);
        self.chains.put_back(key, back, None);
    }

    fn release(&mut self, position: Position, bytes: usize, fate: Fate, released: &mut Vec<Released>) {
        self.ledger.release(position.partition, &fate);
        self.events -= 1;
        self.bytes -= bytes;
        released.push(Released { position, fate });
    }

    fn weigh(&mut self) {
        self.pressure = self.pressure.after(&self.config.backpressure, self.events, self.bytes);
    }
}

/// The positions that were refused, and those behind a refused one of the same document: accepted or not, they must come after it.
fn refused(items: &[Item], answers: &[Answer]) -> HashSet<Position> {
    let (mut positions, mut documents) = (HashSet::new(), HashSet::new());
    for (place, item) in items.iter().enumerate() {
        let is_refused = !matches!(answers.get(place), Some(Answer::Accepted));
        if is_refused || documents.contains(&item.key()) {
            positions.insert(item.position);
            documents.insert(item.key());
        }
    }
    positions
}

/// Events by document, each document's in order; documents in the order of their first events.
fn by_document(items: Vec<Item>) -> Vec<(Key, Vec<Item>)> {
    let mut documents: Vec<(Key, Vec<Item>)> = Vec::new();
    let mut places: std::collections::HashMap<Key, usize> = std::collections::HashMap::new();
    for item in items {
        let key = item.key();
        let place = *places.entry(key.clone()).or_insert_with(|| {
            documents.push((key, Vec::new()));
            documents.len() - 1
        });
        documents[place].1.push(item);
    }
    documents
}

/// The wait before the next attempt: growing, capped, and shortened by up to a half at random.
fn backoff(retry: &Retry, refusals: u32, jitter: f64) -> Duration {
    let exponent = i32::try_from(refusals.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = retry.initial_delay.as_secs_f64() * retry.multiplier.powi(exponent);
    let capped = grown.min(retry.max_delay.as_secs_f64());
    Duration::from_secs_f64(capped * (1.0 - jitter.clamp(0.0, 1.0) / 2.0))
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({} held, {} batches out, {:?})", self.events, self.out.len(), self.pressure)
    }
}

#[cfg(test)]
mod tests;
