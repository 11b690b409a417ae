//! [`Journal`]: the last events of one tenant, so that a client that was away for a moment misses nothing. Pure.
//!
//! Bounded in events, bytes and age ([`Window`]). A position that is too old, or of another epoch, is answered with the reason, and
//! the client must fetch its state anew.

use crate::frame::{Body, Frame};
use crate::position::Position;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much is kept for clients that come back, per tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// At most so many events.
    pub events: usize,
    /// At most so many bytes.
    pub bytes: usize,
    /// None older than this. A tenant without clients is forgotten after this time.
    pub age: Duration,
    /// At most so many bytes for all tenants together. The tenant whose event finds no room gives up its own oldest.
    pub total_bytes: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { events: 10_000, bytes: 32 << 20, age: Duration::from_secs(180), total_bytes: 512 << 20 }
    }
}

/// Why a client cannot resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The position is of another epoch, or was never given.
    UnknownEpoch,
    /// What came next is not kept any more.
    TooOld,
    /// The source has left events out.
    SourceGap,
}

impl Missing {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownEpoch => "unknown-epoch",
            Self::TooOld => "too-old",
            Self::SourceGap => "source-gap",
        }
    }
}

/// The last events of a tenant.
pub(crate) struct Journal {
    epoch: u64,
    head: u64,
    /// Everything behind this offset is kept.
    base: u64,
    kept: VecDeque<(Instant, Arc<Frame>)>,
    bytes: usize,
}

impl Journal {
    /// Empty; whatever was up to `base` is not in it.
    pub(crate) fn new(epoch: u64, base: u64) -> Self {
        Self { epoch, head: base, base, kept: VecDeque::new(), bytes: 0 }
    }

    /// The place behind the newest event.
    pub(crate) fn head(&self) -> Position {
        Position { epoch: self.epoch, offset: self.head }
    }

    /// The place up to which nothing is kept.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Places the event at the end, at this offset or the next.
    pub(crate) fn append(&mut self, body: Body, offset: Option<u64>, now: Instant) -> Arc<Frame> {
        self.head = offset.unwrap_or(self.head + 1);
        let frame = Arc::new(Frame::new(self.head(), body));
        self.bytes += frame.cost();
        self.kept.push_back((now, frame.clone()));
        frame
    }

    /// Gives up the oldest events that the window has no room for. `others` is what all other journals hold.
    pub(crate) fn fit(&mut self, window: &Window, others: usize, now: Instant) {
        let room = window.bytes.min(window.total_bytes.saturating_sub(others));
        while self.kept.len() > window.events || self.bytes > room {
            self.drop_oldest();
        }
        self.expire(window, now);
    }

    /// Forgets what is too old.
    pub(crate) fn expire(&mut self, window: &Window, now: Instant) {
        while self.kept.front().is_some_and(|(at, _)| now.duration_since(*at) > window.age) {
            self.drop_oldest();
        }
    }

    /// Everything behind the position, oldest first. `head` is how far the hub has come.
    pub(crate) fn after(&self, position: Position, head: u64) -> Result<Vec<Arc<Frame>>, Missing> {
        if position.epoch != self.epoch || position.offset > head {
            return Err(Missing::UnknownEpoch);
        }
        if position.offset < self.base {
            return Err(Missing::TooOld);
        }
        let skip = self.kept.partition_point(|(_, frame)| frame.at.offset <= position.offset);
        Ok(self.kept.range(skip..).map(|(_, frame)| frame.clone()).collect())
    }

    fn drop_oldest(&mut self) {
        if let Some((_, frame)) = self.kept.pop_front() {
            self.bytes -= frame.cost();
            self.base = frame.at.offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_router::Tenant;
    use firth_router::event::{Event, Operation};

    fn body() -> Body {
        Body::new(Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", "k")).unwrap()
    }

    fn after(journal: &Journal, position: Position) -> Result<Vec<Arc<Frame>>, Missing> {
        journal.after(position, journal.head().offset)
    }

    fn window(events: usize) -> Window {
        Window { events, ..Window::default() }
    }

    #[test]
    fn only_a_position_inside_the_window_can_be_resumed() {
        let (mut journal, now) = (Journal::new(7, 0), Instant::now());
        let start = journal.head();
        for _ in 0..5 {
            journal.append(body(), None, now);
            journal.fit(&window(3), 0, now);
        }
        let at = |offset| Position { epoch: 7, offset };
        let offsets =
            |frames: Vec<Arc<Frame>>| frames.iter().map(|frame| frame.at.offset).collect::<Vec<_>>();
        assert_eq!(after(&journal, start).err(), Some(Missing::TooOld));
        assert_eq!(after(&journal, at(1)).err(), Some(Missing::TooOld));
        assert_eq!(offsets(after(&journal, at(2)).unwrap()), [3, 4, 5]);
        assert_eq!(offsets(after(&journal, at(5)).unwrap()), [0; 0]);
        assert_eq!(after(&journal, at(6)).err(), Some(Missing::UnknownEpoch));
        assert_eq!(after(&journal, Position { epoch: 8, offset: 5 }).err(), Some(Missing::UnknownEpoch));
    }

    #[test]
    fn age_and_bytes_bound_it_too() {
        let (mut journal, start) = (Journal::new(1, 0), Instant::now());
        let cost = body().cost();
        let tight = Window { bytes: 2 * cost, ..window(100) };
        for _ in 0..4 {
            journal.append(body(), None, start);
            journal.fit(&tight, 0, start);
        }
        assert_eq!(journal.bytes(), 2 * cost);
        let total = Window { total_bytes: 10 * cost, ..window(100) };
        journal.append(body(), None, start);
        journal.fit(&total, 9 * cost, start);
        assert_eq!(journal.bytes(), cost, "others leave room for one");
        journal.expire(&total, start + total.age + Duration::from_millis(1));
        assert_eq!((journal.bytes(), journal.head().offset), (0, 5));
        assert!(after(&journal, journal.head()).unwrap().is_empty());
    }
}
