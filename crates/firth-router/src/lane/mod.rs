//! The lane of one gateway: queues, batches, window, retries, pressure, breaker and accounting.
//! Pure: time is a parameter, sending is the driver's.
//!
//! ```text
//! offer ─► chains per document in three priorities ─► batch (when the window and the breaker allow) ─► driver
//!            ▲ put back in order: unreachable, refused      accepted · refused · unreachable ◄──────────┘
//! ```
//! - **Order**: of one document, at most one batch is on its way; what comes back goes to the
//!   front. A control is alone on its way among the events of its collection (`barrier`).
//! - **Batches form naturally**: an idle gateway gets an event at once; while a batch is on its way
//!   others gather, up to `max_size` or `max_wait`.
//! - **Bounded**: at most `queue_size` events and `queue_bytes` bytes are held (one event is always
//!   taken by an empty lane). A full lane refuses, and the caller parks the gateway or pauses the
//!   source.
//! - **Nothing vanishes**: every event taken is released exactly once, with its [`ReleaseCause`];
//!   [`LaneAccounting`] counts them.

mod accounting;
mod backoff;
mod barrier;
mod breaker;
mod chains;
mod counters;
mod documents;
mod ejection;
mod gap;
mod identity;
mod item;
mod pressure;
mod take_out;
mod waiting;
mod window;

pub use accounting::LaneAccounting;
pub use breaker::Circuit;
pub use counters::LaneCounters;
pub use ejection::Ejections;
pub use gap::{Gap, MAX_NAMED};
#[cfg(feature = "nats")]
pub(crate) use identity::name_of;
pub use item::{For, Item, Position, RecordNumber, ReleaseCause, Released};
pub use pressure::Pressure;

use crate::config::{Delivery, RoutingConfig};
use crate::event::Priority;
use crate::name::SubscriptionId;
use crate::registry::Overflow;
use accounting::PartitionAccounting;
use backoff::{ejection_backoff, retry_delay};
use barrier::Barrier;
use breaker::Breaker;
use chains::Chains;
use documents::{by_document, refused};
use item::Key;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use window::Window;

/// The number of a batch in its lane.
pub type BatchId = u64;

/// The most bytes of one batch, unless it is a single event.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// One batch in this many begins with the least urgent events.
const FAIR_TURN: u64 = 16;

/// Events for a gateway, to be accepted or refused one by one.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its number.
    pub id: BatchId,
    /// The topic that the events were read from.
    pub topic: Arc<str>,
    /// The events; events of one document are in order. The lane shares them with the sending task.
    pub items: Arc<Vec<Item>>,
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

/// Outcome of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All accepted.
    Accepted,
    /// One answer per event, in order. Missing answers count as refused.
    Answered(Vec<Answer>),
    /// It is unknown whether it arrived: unreachable, timed out, cut off. It is sent again with the
    /// same numbers.
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
    topic: Arc<str>,
    /// The gateway is not registered now: its events wait, and that is no failure.
    is_absent: bool,
    /// The most events that its readers can put in.
    reach: usize,
    chains: Chains,
    barrier: Barrier,
    out: BTreeMap<BatchId, Batch>,
    /// When each of them was sent.
    sent: BTreeMap<BatchId, Instant>,
    gap: Gap,
    window: Window,
    breaker: Breaker,
    pressure: Pressure,
    partitions: PartitionAccounting,
    counters: LaneCounters,
    events: usize,
    bytes: usize,
    batches: BatchId,
    waiting_since: Option<Instant>,
    pause_until: Option<Instant>,
    /// `None` until the driver passes the epochs to `own`.
    epochs: Option<BTreeMap<u32, u64>>,
    /// The partitions whose live events are read from the topic again, and from where on.
    exempt: BTreeMap<u32, u64>,
}

impl Lane {
    /// An empty lane, alone in the world.
    pub fn new(config: RoutingConfig) -> Self {
        Self::among(config, Ejections::default())
    }

    /// An empty lane that shares with others how many gateways may be ejected.
    pub fn among(config: RoutingConfig, ejections: Ejections) -> Self {
        let Delivery { retry, breaker, .. } = &config.delivery;
        Self {
            chains: Chains::default(),
            barrier: Barrier::default(),
            out: BTreeMap::new(),
            sent: BTreeMap::new(),
            gap: Gap::default(),
            window: Window::new(config.delivery.max_in_flight),
            breaker: Breaker::new(breaker.failures, ejection_backoff(retry, breaker), ejections),
            pressure: Pressure::None,
            partitions: PartitionAccounting::default(),
            counters: LaneCounters::default(),
            events: 0,
            bytes: 0,
            batches: 0,
            waiting_since: None,
            pause_until: None,
            epochs: None,
            exempt: BTreeMap::new(),
            config,
            topic: "".into(),
            is_absent: false,
            reach: usize::MAX,
        }
    }

    /// A lane for events of this topic.
    #[must_use]
    pub fn of_topic(self, topic: Arc<str>) -> Self {
        Self { topic, ..self }
    }

    /// Says whether the gateway is registered now. While it is not, nothing is sent and nothing
    /// counts as a failure.
    pub fn set_absent(&mut self, is_absent: bool) {
        self.is_absent = is_absent;
    }

    /// Pressure is measured by what the lane can hold at most: the configured queue, or less if its
    /// readers cannot fill that.
    pub fn set_reach(&mut self, events: usize) {
        self.reach = events.max(1);
    }

    /// The gateway gave a sign of life: what was held back because it did not answer may be tried
    /// at once.
    pub fn sign_of_life(&mut self) {
        self.breaker.sign_of_life();
    }

    /// Whether a sign of life would change something.
    pub fn awaits_sign(&self) -> bool {
        self.is_absent || self.breaker.holds_back()
    }

    /// Whether a gap marker waits.
    pub fn has_marker(&self) -> bool {
        !self.gap.is_empty()
    }

    /// The epochs under which this node owns partitions now. Events are sent under them, though
    /// they may have been read under earlier ones; and what was refused under an epoch that is over
    /// is not counted against an event, for the epoch may be all that was wrong. Nor is what was
    /// refused of a partition that is another node's now.
    pub fn own(&mut self, epochs: BTreeMap<u32, u64>) {
        self.epochs = Some(epochs);
    }

    /// From this place of a partition on, live events are read from the topic again: one that comes
    /// back refused is not given up here, for it gets all its attempts there. `None`: that is over.
    pub fn exempt_from(&mut self, partition: u32, from: Option<u64>) {
        match from {
            Some(from) => drop(self.exempt.insert(partition, from)),
            None => drop(self.exempt.remove(&partition)),
        }
    }

    /// Puts an event into the lane. Under pressure, one of low priority may be left out instead, or
    /// take the place of an older one; a gap marker tells the gateway.
    pub fn offer(&mut self, item: Item, now: Instant) -> Offer {
        if self.is_full(&item) {
            return Offer::Full;
        }
        self.partitions.take(item.position.partition);
        self.events += 1;
        let policy =
            (self.pressure >= Pressure::Soft && item.priority == Priority::Low).then_some(item.overflow);
        match policy {
            Some(Overflow::Shed) => self.gap.add(&item),
            Some(Overflow::Conflate) => {
                self.bytes += item.bytes;
                let conflated = if self.must_wait(&item) { Err(item) } else { self.chains.conflate(item) };
                match conflated {
                    Ok(older) => {
                        self.bytes -= older.bytes;
                        self.gap.add(&older);
                    }
                    Err(item) => self.enqueue(item),
                }
            }
            Some(Overflow::Keep) | None => {
                self.bytes += item.bytes;
                self.enqueue(item);
            }
        }
        self.waiting_since.get_or_insert(now);
        self.weigh();
        Offer::Taken
    }

    /// Whether there is no room for an event. An empty lane takes any.
    pub fn is_full(&self, item: &Item) -> bool {
        let limits = &self.config.backpressure;
        let is_full = self.events >= limits.queue_size || self.bytes + item.bytes > limits.queue_bytes;
        is_full && self.events > 0
    }

    /// The next batch to send, if one should go out now.
    pub fn poll(&mut self, now: Instant) -> Option<Batch> {
        self.chains.wake(now);
        self.lift_barrier();
        if self.is_absent {
            return None;
        }
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
        let mut items = self.chains.take(max, MAX_BATCH_BYTES, self.batches.is_multiple_of(FAIR_TURN));
        for item in &mut items {
            item.epoch = item.epoch.max(self.epoch(item.position.partition));
        }
        let gap = (!self.gap.is_empty()).then(|| std::mem::take(&mut self.gap));
        self.waiting_since = (self.chains.ready() > 0).then_some(now);
        let batch = Batch { id: self.batches, topic: Arc::clone(&self.topic), items: Arc::new(items), gap };
        self.breaker.sent();
        self.sent.insert(batch.id, now);
        self.out.insert(batch.id, batch.clone());
        Some(batch)
    }

    /// When [`poll`](Self::poll) is worth another call if nothing else happens. It was called at
    /// `now` and has nothing more to send.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        if self.is_absent {
            return None;
        }
        let is_waiting = self.chains.ready() > 0 || !self.gap.is_empty();
        let full_wait = self.waiting_since.map(|since| since + self.config.batch.max_wait);
        // A rest that is over holds back nothing, and must not hide a pause that is not.
        let held_until = self.breaker.wake().max(self.pause_until).filter(|until| *until > now);
        let has_room = self.out.len() < self.window.size() && held_until.is_none();
        let wakes = [
            self.chains.next_wake(),
            held_until.filter(|_| is_waiting),
            full_wait.filter(|wake| is_waiting && has_room && *wake > now),
        ];
        wakes.into_iter().flatten().min()
    }

    /// Notes the outcome of a batch, and returns the events that left the lane. `jitter` is
    /// random, 0 to 1.
    pub fn settle(&mut self, id: BatchId, outcome: Outcome, now: Instant, jitter: f64) -> Vec<Released> {
        // A batch that was settled before, by a timeout say, is not settled again.
        let Some(batch) = self.out.remove(&id) else { return Vec::new() };
        self.sent.remove(&id);
        let answers = match outcome {
            Outcome::Accepted => None,
            Outcome::Answered(answers) => Some(answers),
            Outcome::Unreached => {
                let retry = &self.config.delivery.retry;
                self.breaker.unreached(now, |times| retry_delay(retry, times, jitter));
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
        let mut round = Round { now, jitter, reasons: BTreeMap::new(), released: Vec::new() };
        self.told_lost(batch.gap.as_ref());
        for left in batch.gap.into_iter().flat_map(|gap| gap.places) {
            self.release((left.position, left.record_number, 0), ReleaseCause::Gapped, &mut round.released);
        }
        match answers {
            None => self.accept(&batch.items, &mut round),
            Some(answers) => self.judge(Arc::unwrap_or_clone(batch.items), &answers, &mut round),
        }
        self.waiting_since = self.waiting_since.or((self.chains.ready() > 0).then_some(now));
        self.weigh();
        round.released
    }

    /// Subscriptions have come from another gateway: a marker says that they may have missed
    /// events.
    pub fn move_in(&mut self, subscriptions: impl IntoIterator<Item = SubscriptionId>, now: Instant) {
        self.gap.move_in(subscriptions);
        self.waiting_since.get_or_insert(now);
    }

    /// All of a partition that is not on its way.
    pub fn waiting(&self, partition: u32) -> impl Iterator<Item = &Item> {
        let all = self.chains.items().chain(self.barrier.items());
        all.filter(move |item| item.position.partition == partition)
    }

    /// An event that comes to this without ever being in the lane: only the accounting knows.
    pub fn pass(&mut self, partition: u32, cause: &ReleaseCause) {
        self.partitions.take(partition);
        self.partitions.release(partition, cause);
    }

    /// The lowest place of a live event of a partition that it holds.
    pub fn lowest(&self, partition: u32) -> Option<u64> {
        let waiting = self.chains.items().chain(self.barrier.items());
        let out = self.out.values().flat_map(|batch| batch.items.iter());
        let items = waiting.chain(out).filter(|item| item.live).map(|item| item.position);
        let gaps = self.out.values().filter_map(|batch| batch.gap.as_ref()).chain([&self.gap]);
        let left = gaps.flat_map(|gap| &gap.places).filter(|left| left.live).map(|left| left.position);
        items
            .chain(left)
            .filter(|position| position.partition == partition)
            .map(|position| position.seq)
            .min()
    }

    /// Whether events that were just taken are worth a look of the driver, if `before` were ready
    /// before them: the first ones that wait, some that may go at once, or some that make a batch
    /// full. The others ride along.
    pub fn is_due(&self, before: usize) -> bool {
        let max = self.config.batch.max_size.max(1);
        let ready = self.chains.ready();
        before == 0 || self.out.is_empty() || before / max != ready / max
    }

    /// How many events could go out now.
    pub fn ready(&self) -> usize {
        self.chains.ready()
    }

    /// Whether the gateway is ejected or not registered, or has not answered a batch for so long.
    pub fn is_silent(&self, now: Instant, stall_timeout: Duration) -> bool {
        let is_old = self.sent.values().next().is_some_and(|sent| *sent + stall_timeout <= now);
        is_old || self.is_absent || self.breaker.state() != Circuit::Closed
    }

    /// Whether more events would only lie here: the gateway is silent, and some wait already.
    pub fn is_stuck(&self, now: Instant, stall_timeout: Duration) -> bool {
        self.chains.ready() > 0 && self.is_silent(now, stall_timeout)
    }

    /// How full it is.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Whether its gateway counts as reachable.
    pub fn circuit(&self) -> Circuit {
        self.breaker.state()
    }

    /// What happened since this was last asked.
    pub fn take_counters(&mut self) -> LaneCounters {
        std::mem::take(&mut self.counters)
    }

    /// How many events it holds.
    pub fn held(&self) -> usize {
        self.events
    }

    /// How many batches are on their way, and how many may be.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.out.len(), self.window.size())
    }

    /// The accounting of one partition.
    pub fn accounting(&self, partition: u32) -> LaneAccounting {
        self.partitions.of(partition)
    }

    /// The accounting of all partitions that it has seen.
    pub fn all_accounting(&self) -> impl Iterator<Item = (u32, LaneAccounting)> {
        self.partitions.all()
    }

    /// Everything comes back to the front, in order, as if it had not been sent.
    fn return_all(&mut self, batch: Batch, now: Instant) {
        self.window.trouble();
        self.counters.retries += batch.items.len() as u64;
        if let Some(gap) = batch.gap {
            self.gap.merge(gap);
        }
        for (key, items) in by_document(Arc::unwrap_or_clone(batch.items)).into_iter().rev() {
            self.chains.put_back(&key, items, None);
        }
        self.waiting_since.get_or_insert(now);
        self.weigh();
    }

    /// All of a batch is delivered.
    fn accept(&mut self, items: &[Item], round: &mut Round) {
        round.released.reserve(items.len());
        for item in items {
            self.release(
                (item.position, item.record_number, item.bytes),
                ReleaseCause::Delivered,
                &mut round.released,
            );
        }
        items.iter().for_each(|item| self.chains.landed(item));
    }

    fn judge(&mut self, items: Vec<Item>, answers: &[Answer], round: &mut Round) {
        let back = refused(&items, answers);
        for (item, answer) in items.iter().zip(answers) {
            if let Answer::Refused(reason) = answer {
                round.reasons.insert(item.record_number, reason.clone());
            }
        }
        let mut places = 0..items.len();
        let marked = items.into_iter().map(|item| (back.contains(&places.next().unwrap_or_default()), item));
        for (key, items) in by_document(marked) {
            let mut again = Vec::new();
            for (is_refused, item) in items {
                match is_refused {
                    true => again.push(item),
                    false => {
                        let place = (item.position, item.record_number, item.bytes);
                        self.release(place, ReleaseCause::Delivered, &mut round.released);
                    }
                }
            }
            self.again(&key, again, round);
        }
    }

    /// The first refused event of a document is tried again later, or given up; those behind it
    /// wait for it.
    fn again(&mut self, key: &Key, mut back: Vec<Item>, round: &mut Round) {
        self.counters.retries += back.len() as u64;
        let Some(first) = back.first_mut() else {
            self.chains.settled(key, false);
            return;
        };
        let retry = &self.config.delivery.retry;
        if self.is_foreign(first.position.partition) {
            let rest = round.now + retry_delay(retry, 1, round.jitter);
            self.chains.put_back(key, back, Some(rest));
            return;
        }
        let Position { partition, seq } = first.position;
        if first.live && self.exempt.get(&partition).is_some_and(|from| *from <= seq) {
            let rest = round.now + retry_delay(retry, 1, round.jitter);
            self.chains.put_back(key, back, Some(rest));
            return;
        }
        if first.epoch < self.epoch(partition) {
            self.chains.put_back(key, back, None);
            return;
        }
        first.refusals += 1;
        if first.refusals < retry.max_attempts {
            let rest = round.now + retry_delay(retry, first.refusals, round.jitter);
            self.chains.put_back(key, back, Some(rest));
            return;
        }
        let given_up = back.remove(0);
        self.counters.retries -= 1;
        let reason = round.reasons.remove(&given_up.record_number);
        let reason = reason.unwrap_or_else(|| "the gateway gave no answer to this event".to_owned());
        let place = (given_up.position, given_up.record_number, given_up.bytes);
        let why = format!("{reason} (attempts: {})", given_up.refusals);
        self.release(place, ReleaseCause::Dead(why), &mut round.released);
        self.chains.put_back(key, back, None);
    }

    /// The epoch of a partition, 0 if it is not this node's.
    fn epoch(&self, partition: u32) -> u64 {
        self.epochs.as_ref().and_then(|epochs| epochs.get(&partition)).copied().unwrap_or_default()
    }

    /// Whether a partition is another node's.
    fn is_foreign(&self, partition: u32) -> bool {
        self.epochs.as_ref().is_some_and(|epochs| !epochs.contains_key(&partition))
    }

    /// The partitions of other nodes that it still holds events of.
    pub fn foreign(&self) -> Vec<u32> {
        let held = self.partitions.all().filter(|(_, one)| one.held > 0).map(|(partition, _)| partition);
        held.filter(|partition| self.is_foreign(*partition)).collect()
    }

    fn release(
        &mut self,
        (position, record_number, bytes): (Position, RecordNumber, usize),
        cause: ReleaseCause,
        released: &mut Vec<Released>,
    ) {
        self.partitions.release(position.partition, &cause);
        self.events -= 1;
        self.bytes -= bytes;
        released.push(Released { position, record_number, cause });
    }

    fn weigh(&mut self) {
        let after = self.pressure.after(&self.config.backpressure, (self.events, self.reach), self.bytes);
        self.counters.note(self.pressure, after);
        self.pressure = after;
    }
}

/// The settling of one batch.
struct Round {
    now: Instant,
    jitter: f64,
    reasons: BTreeMap<RecordNumber, String>,
    released: Vec<Released>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({} held, {} batches out, {:?})", self.events, self.out.len(), self.pressure)
    }
}

#[cfg(test)]
mod tests;
