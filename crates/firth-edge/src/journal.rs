//! [`Journal`]: the last events of one tenant, so that a client that was away for a moment misses
//! nothing. Pure.
//!
//! Bounded in events, bytes and age ([`Window`]). A position that is too old, or of another epoch,
//! is answered with the reason, and the client must fetch its state anew.

use crate::frame::{Body, Frame};
use crate::position::{Offsets, Position};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much is kept for clients that come back, per tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// At most this many events.
    pub events: usize,
    /// At most this many bytes.
    pub bytes: usize,
    /// None older than this. A tenant without clients is forgotten after this time.
    pub age: Duration,
    /// At most this many bytes for all tenants together. The tenant whose event finds no room gives
    /// up its own oldest.
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
    head: Offsets,
    /// Of each partition, everything behind this offset is kept.
    base: Offsets,
    kept: VecDeque<(Instant, Arc<Frame>)>,
    bytes: usize,
}

impl Journal {
    /// Empty; it has nothing up to `base`.
    pub(crate) fn new(epoch: u64, base: Offsets) -> Self {
        Self { epoch, head: base.clone(), base, kept: VecDeque::new(), bytes: 0 }
    }

    /// The place behind the newest event.
    pub(crate) fn head(&self) -> Position {
        Position::new(self.epoch, self.head.clone())
    }

    /// The place up to which nothing is kept.
    pub(crate) fn base(&self) -> &Offsets {
        &self.base
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Places the event at the end: at its record, with how far all partitions have come, or simply
    /// as the next.
    pub(crate) fn append(&mut self, body: Body, record: Option<(u32, &Offsets)>, now: Instant) -> Arc<Frame> {
        let partition = match record {
            Some((partition, offsets)) => {
                self.head.clone_from(offsets);
                partition
            }
            None => {
                self.head.raise(0, self.head.get(0) + 1);
                0
            }
        };
        let frame = Arc::new(Frame::new(self.head(), partition, body));
        self.bytes += frame.cost();
        self.kept.push_back((now, frame.clone()));
        frame
    }

    /// Gives up the oldest events that the window has no room for. `others` is what all other
    /// journals hold.
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
    ///
    /// The position may come from a gateway that read the partitions in another order, so that it
    /// is further in one and less far in another: each event counts by its own partition.
    pub(crate) fn after(&self, position: &Position, head: &Offsets) -> Result<Vec<Arc<Frame>>, Missing> {
        let Position { epoch, offsets } = position;
        if *epoch != self.epoch || !head.covers(offsets) {
            return Err(Missing::UnknownEpoch);
        }
        if !offsets.covers(&self.base) {
            return Err(Missing::TooOld);
        }
        let skip = self.kept.partition_point(|(_, frame)| offsets.covers(&frame.at.offsets));
        let is_new = |frame: &Frame| frame.offset() > offsets.get(frame.partition);
        let behind = self.kept.range(skip..).filter(|(_, frame)| is_new(frame));
        Ok(behind.map(|(_, frame)| frame.clone()).collect())
    }

    fn drop_oldest(&mut self) {
        if let Some((_, frame)) = self.kept.pop_front() {
            self.bytes -= frame.cost();
            self.base.raise(frame.partition, frame.offset());
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
        journal.after(&position, &journal.head().offsets)
    }

    fn window(events: usize) -> Window {
        Window { events, ..Window::default() }
    }

    #[test]
    fn only_a_position_inside_the_window_can_be_resumed() {
        let mut journal = Journal::new(7, Offsets::default());
        let now = Instant::now();
        let start = journal.head();
        for _ in 0..5 {
            journal.append(body(), None, now);
            journal.fit(&window(3), 0, now);
        }
        let at = |offset| Position::new(7, Offsets::single(offset));
        let offsets = |frames: Vec<Arc<Frame>>| frames.iter().map(|frame| frame.offset()).collect::<Vec<_>>();
        assert_eq!(after(&journal, start).err(), Some(Missing::TooOld));
        assert_eq!(after(&journal, at(1)).err(), Some(Missing::TooOld));
        assert_eq!(offsets(after(&journal, at(2)).unwrap()), [3, 4, 5]);
        assert_eq!(offsets(after(&journal, at(5)).unwrap()), [0; 0]);
        assert_eq!(after(&journal, at(6)).err(), Some(Missing::UnknownEpoch));
        assert_eq!(after(&journal, Position::new(8, Offsets::single(5))).err(), Some(Missing::UnknownEpoch));
    }

    #[test]
    fn age_and_bytes_bound_it_too() {
        let mut journal = Journal::new(1, Offsets::default());
        let start = Instant::now();
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
        assert_eq!((journal.bytes(), journal.head().offsets.get(0)), (0, 5));
        assert!(after(&journal, journal.head()).unwrap().is_empty());
    }
}
