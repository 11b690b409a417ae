//! [`Outbox`]: what one connection is still to be sent, bounded in events and bytes. Pure.
//!
//! Full means: the client is slow, and its [`SlowPolicy`] decides. Answers keep their place between
//! events, so that a position that an answer names never overtakes an event before it.
//!
//! What waits is [taken](Outbox::take) by the connection's task, which then is the only one to
//! write until it [lets go](Outbox::let_go); in between, events [pass](Outbox::pass) it.

mod direct_write;
mod frame_batch;
mod squeeze;

pub(crate) use frame_batch::{FrameBatch, PartialWrite};

use crate::accounting::Accounting;
use crate::frame::Frame;
use crate::packet::Packet;
use crate::position::Position;
use crate::protocol::server;
use crate::replay::Replay;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What happens to a client that reads more slowly than its events come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlowPolicy {
    /// Of each document only the newest event is kept, with the number of those it replaced; if
    /// that is not enough, a gap.
    Conflate,
    /// Everything that waits is left out, and a gap message says what.
    #[default]
    Gap,
    /// The connection is closed; the client comes back and resumes.
    Cut,
}

/// One subscription of the client that an event is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The client's name for it, as JSON text.
    pub(crate) name: Arc<str>,
    /// The document does not match any more.
    pub(crate) leaves: bool,
}

/// An event for every connection whose subscriptions have the same names: one message, made once.
#[derive(Debug)]
pub(crate) struct EncodedEvent {
    pub(crate) frame: Arc<Frame>,
    pub(crate) marks: Marks,
    pub(crate) packet: Packet,
}

/// The subscriptions of one connection that an event is for.
pub(crate) type Marks = SmallVec<[Mark; 1]>;

impl EncodedEvent {
    pub(crate) fn new(frame: Arc<Frame>, marks: Marks) -> Self {
        let packet = server::event(&frame, &frame.at, &marks, 0);
        Self { frame, marks, packet }
    }
}

/// An event on its way to one connection.
#[derive(Clone, Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) encoded: Arc<EncodedEvent>,
    /// How many older events of the document it stands for as well.
    pub(crate) replaced: u32,
    /// The oldest event that it stands for, unless that is itself.
    pub(crate) oldest: Option<Arc<Frame>>,
}

impl QueuedEvent {
    pub(crate) fn new(encoded: Arc<EncodedEvent>) -> Self {
        Self { encoded, replaced: 0, oldest: None }
    }

    fn oldest(&self) -> &Arc<Frame> {
        self.oldest.as_ref().unwrap_or(&self.encoded.frame)
    }
}

/// Events left out: all that matched behind `after`, up to and with `until`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) after: Position,
    pub(crate) until: Position,
    pub(crate) events: u64,
}

/// A finished message, and where the client stands once it has it, if that is said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) text: Arc<str>,
    pub(crate) at: Option<Box<Position>>,
}

/// One thing to send.
#[derive(Debug)]
pub(crate) enum Item {
    Event(QueuedEvent),
    Batch(Arc<FrameBatch>),
    Gap(Box<Gap>),
    Text(Said),
    /// History, to be read before anything behind it is sent.
    Replay(Box<Replay>),
}

/// Why and how a connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloseReason {
    /// The close code of the WebSocket protocol.
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    /// When to come back.
    pub(crate) retry: Option<Duration>,
}

/// When the connection's task must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    /// It knows already.
    No,
    /// With the next tick: it has just written.
    Later,
    /// At once: it has been idle, or much waits.
    Now,
}

/// How much may wait for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    pub(crate) tick: Duration,
    pub(crate) policy: SlowPolicy,
}

/// The queue of one connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    room: Room,
    items: VecDeque<Item>,
    events: usize,
    bytes: usize,
    /// Bytes of answers; they have as much room again as events.
    said: usize,
    /// The state of rooms, newest only; at most one for each subscription.
    presence: Vec<(Arc<str>, Arc<str>)>,
    heartbeat: bool,
    /// What it was told last.
    scheduled: Wake,
    written_at: Option<Instant>,
    /// The task has taken something, and it is not written yet.
    is_held: bool,
    /// Went past the task in part: comes before everything else.
    partial: Option<Box<PartialWrite>>,
    close_reason: Option<CloseReason>,
    accounting: Accounting,
}

/// Beyond this, an empty queue gives back its memory.
const KEEP: usize = 32;

impl Outbox {
    pub(crate) fn new(room: Room) -> Self {
        Self {
            room,
            items: VecDeque::new(),
            events: 0,
            bytes: 0,
            said: 0,
            presence: Vec::new(),
            heartbeat: false,
            scheduled: Wake::No,
            written_at: None,
            is_held: false,
            partial: None,
            close_reason: None,
            accounting: Accounting::default(),
        }
    }

    /// Takes an event in, making room by the policy.
    pub(crate) fn push(&mut self, queued_event: QueuedEvent, now: Instant) -> Wake {
        if self.is_cut() {
            return Wake::No;
        }
        self.accounting.taken += 1;
        self.accounting.queued += 1;
        let cost = cost(&queued_event);
        self.make_room(cost);
        if self.is_cut() {
            return self.wake_now();
        }
        self.events += 1;
        self.bytes += cost;
        self.items.push_back(Item::Event(queued_event));
        self.schedule(now)
    }

    /// Takes in events that come together.
    pub(crate) fn push_batch(&mut self, batch: &Arc<FrameBatch>, now: Instant) -> Wake {
        let count = batch.events().len();
        if self.is_cut() || !self.has_room(batch) {
            let each = batch.events().iter().map(|encoded| self.push(QueuedEvent::new(encoded.clone()), now));
            return each.max().unwrap_or(Wake::No);
        }
        self.accounting.taken += count as u64;
        self.accounting.queued += count as u64;
        self.events += count;
        self.bytes += batch.cost;
        self.items.push_back(Item::Batch(batch.clone()));
        self.schedule(now)
    }

    /// Takes an answer in. Answers are never left out: a client that lets them pile up is cut.
    pub(crate) fn say(&mut self, text: Arc<str>) -> Wake {
        self.answer(Said { text, at: None })
    }

    /// As [`say`](Self::say), of a message that says where the client stands.
    pub(crate) fn say_at(&mut self, text: Arc<str>, at: Position) -> Wake {
        self.answer(Said { text, at: Some(Box::new(at)) })
    }

    fn answer(&mut self, said: Said) -> Wake {
        if self.is_cut() {
            return Wake::No;
        }
        self.said += said.text.len();
        if self.said > self.room.bytes {
            self.cut();
        } else {
            self.items.push_back(Item::Text(said));
        }
        self.wake_now()
    }

    /// Says that the gateway is there, and where the client stands; unless that is waiting already.
    pub(crate) fn heartbeat(&mut self, at: Position) -> Wake {
        if std::mem::replace(&mut self.heartbeat, true) {
            return Wake::No;
        }
        self.say_at(server::heartbeat(&at), at)
    }

    /// Replaces the state of a room.
    pub(crate) fn presence(&mut self, name: &Arc<str>, text: Arc<str>) -> Wake {
        match self.presence.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = text,
            None => self.presence.push((name.clone(), text)),
        }
        self.wake_now()
    }

    /// Forgets the state of a room that the client left.
    pub(crate) fn forget_presence(&mut self, name: &Arc<str>) {
        self.presence.retain(|(known, _)| known != name);
    }

    /// History comes before what is pushed from now on.
    pub(crate) fn replay(&mut self, replay: Box<Replay>) {
        self.items.push_back(Item::Replay(replay));
    }

    /// Sends what waits, then ends.
    pub(crate) fn end(&mut self, close_reason: CloseReason) -> Wake {
        self.close_reason.get_or_insert(close_reason);
        self.wake_now()
    }

    /// Takes what fits into `bytes`, at least one thing; nothing behind a replay. Nothing passes
    /// until the taker lets go.
    pub(crate) fn take(&mut self, bytes: usize, now: Instant) -> Taken {
        self.is_held = true;
        let partial = self.partial.take();
        let presence = std::mem::take(&mut self.presence);
        let mut taken = Taken { partial, presence, ..Taken::default() };
        let mut size = 0;
        while size < bytes
            && let Some(item) = self.items.pop_front()
        {
            match &item {
                Item::Event(queued_event) => {
                    let cost = cost(queued_event);
                    (self.events, self.bytes, size) = (self.events - 1, self.bytes - cost, size + cost);
                }
                Item::Batch(batch) => {
                    self.forget_batch(batch);
                    size += batch.cost;
                }
                Item::Text(Said { text, .. }) => {
                    (self.said, size) = (self.said - text.len(), size + text.len());
                }
                Item::Gap(_) | Item::Replay(_) => {}
            }
            let is_replay = matches!(item, Item::Replay(_));
            taken.items.push(item);
            if is_replay {
                break;
            }
        }
        if self.items.is_empty() {
            self.emptied();
            taken.close_reason.clone_from(&self.close_reason);
        }
        taken.has_more = self.has_more();
        self.scheduled = Wake::No;
        self.written_at = Some(now);
        taken
    }

    fn emptied(&mut self) {
        self.heartbeat = false;
        if self.items.capacity() > KEEP {
            self.items = VecDeque::new();
        }
    }

    /// A run does not wait any more.
    fn forget_batch(&mut self, batch: &FrameBatch) {
        self.events -= batch.events().len();
        self.bytes -= batch.cost;
    }

    /// What was taken is written: events may pass again.
    pub(crate) fn let_go(&mut self) {
        self.is_held = false;
    }

    /// A replay found events in the history.
    pub(crate) fn replayed(&mut self, events: u64) {
        self.accounting.taken += events;
        self.accounting.queued += events;
    }

    /// Notes that these events are written. Those of a connection that was cut since count as
    /// left behind.
    pub(crate) fn sent(&mut self, events: u64) {
        if !self.is_cut() {
            self.accounting.queued -= events;
            self.accounting.sent += events;
        }
    }

    pub(crate) fn has_more(&self) -> bool {
        let has_begun = self.partial.is_some();
        has_begun || !self.items.is_empty() || !self.presence.is_empty() || self.close_reason.is_some()
    }

    pub(crate) fn accounting(&self) -> Accounting {
        self.accounting
    }

    /// The connection is gone; what was not sent is left behind.
    pub(crate) fn close(&mut self) -> Accounting {
        (self.items, self.partial) = (VecDeque::new(), None);
        self.accounting.left_behind += std::mem::take(&mut self.accounting.queued);
        self.accounting
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.close_reason.as_ref().is_some_and(|close_reason| close_reason.code == TRY_LATER)
    }

    fn cut(&mut self) {
        self.items = VecDeque::new();
        (self.events, self.bytes, self.said) = (0, 0, 0);
        self.accounting.left_behind += std::mem::take(&mut self.accounting.queued);
        self.close_reason = Some(CloseReason { code: TRY_LATER, reason: "too slow", retry: None });
    }

    /// When the tick of its last write is over.
    pub(crate) fn tick_ends(&self) -> Option<Instant> {
        self.written_at.map(|at| at + self.room.tick)
    }

    fn schedule(&mut self, now: Instant) -> Wake {
        let has_just_written =
            self.written_at.is_some_and(|at| now.saturating_duration_since(at) < self.room.tick);
        let is_pressing = 2 * self.events > self.room.events || 2 * self.bytes > self.room.bytes;
        let wake = if has_just_written && !is_pressing { Wake::Later } else { Wake::Now };
        if wake <= self.scheduled {
            return Wake::No;
        }
        self.scheduled = wake;
        wake
    }

    fn wake_now(&mut self) -> Wake {
        self.scheduled = Wake::Now;
        Wake::Now
    }
}

/// Try again later: the close code for a client that was too slow.
pub(crate) const TRY_LATER: u16 = 1013;

/// What [`Outbox::take`] gives out.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// To be ended before anything else is said.
    pub(crate) partial: Option<Box<PartialWrite>>,
    pub(crate) items: SmallVec<[Item; 2]>,
    pub(crate) presence: Vec<(Arc<str>, Arc<str>)>,
    /// Nothing comes any more.
    pub(crate) close_reason: Option<CloseReason>,
    /// Something was left, or the end is still to be told.
    pub(crate) has_more: bool,
}

fn cost(queued_event: &QueuedEvent) -> usize {
    cost_of(&queued_event.encoded)
}

fn cost_of(encoded: &EncodedEvent) -> usize {
    size_of::<Item>() + encoded.frame.text().len()
}

#[cfg(test)]
mod tests;
