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
    kept: VecDeque<(Instant, Arc<Frame>)>,
    bytes: usize,
}

impl Journal {
    pub(crate) fn new(epoch: u64) -> Self {
        Self { epoch, head: 0, kept: VecDeque::new(), bytes: 0 }
    }

    /// The place behind the newest event.
    pub(crate) fn head(&self) -> Position {
        Position { epoch: self.epoch, offset: self.head }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Places the event at the end. `others` is what all other journals hold.
    pub(crate) fn append(&mut self, body: Body, window: &Window, others: usize, now: Instant) -> Arc<Frame> {
        self.head += 1;
        let frame = Arc::new(Frame::new(self.head(), body));
        self.bytes += frame.cost();
        self.kept.push_back((now, frame.clone()));
        let room = window.bytes.min(window.total_bytes.saturating_sub(others));
        while self.kept.len() > window.events || self.bytes > room {
            self.drop_oldest();
        }
        self.expire(window, now);
        frame
    }

    /// Forgets what is too old.
    pub(crate) fn expire(&mut self, window: &Window, now: Instant) {
        while self.kept.front().is_some_and(|(at, _)| now.duration_since(*at) > window.age) {
            self.drop_oldest();
        }
    }

    /// Everything behind the position, oldest first.
    pub(crate) fn after(&self, position: Position) -> Result<Vec<Arc<Frame>>, Missing> {
        if position.epoch != self.epoch || position.offset > self.head {
            return Err(Missing::UnknownEpoch);
        }
        let wanted = usize::try_from(self.head - position.offset).map_err(|_| Missing::TooOld)?;
        let skip = self.kept.len().checked_sub(wanted).ok_or(Missing::TooOld)?;
        Ok(self.kept.range(skip..).map(|(_, frame)| frame.clone()).collect())
    }

    fn drop_oldest(&mut self) {
        if let Some((_, frame)) = self.kept.pop_front() {
            self.bytes -= frame.cost();
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

    fn window(events: usize) -> Window {
        Window { events, ..Window::default() }
    }

    #[test]
    fn only_a_position_inside_the_window_can_be_resumed() {
        let (mut journal, now) = (Journal::new(7), Instant::now());
        let start = journal.head();
        for _ in 0..5 {
            journal.append(body(), &window(3), 0, now);
        }
        let at = |offset| Position { epoch: 7, offset };
        let offsets =
            |frames: Vec<Arc<Frame>>| frames.iter().map(|frame| frame.at.offset).collect::<Vec<_>>();
        assert_eq!(journal.after(start).err(), Some(Missing::TooOld));
        assert_eq!(journal.after(at(1)).err(), Some(Missing::TooOld));
        assert_eq!(offsets(journal.after(at(2)).unwrap()), [3, 4, 5]);
        assert_eq!(offsets(journal.after(at(5)).unwrap()), [0; 0]);
        assert_eq!(journal.after(at(6)).err(), Some(Missing::UnknownEpoch));
        assert_eq!(journal.after(Position { epoch: 8, offset: 5 }).err(), Some(Missing::UnknownEpoch));
    }

    #[test]
    fn age_and_bytes_bound_it_too() {
        let (mut journal, start) = (Journal::new(1), Instant::now());
        let cost = body().cost();
        let tight = Window { bytes: 2 * cost, ..window(100) };
        for _ in 0..4 {
            journal.append(body(), &tight, 0, start);
        }
        assert_eq!(journal.bytes(), 2 * cost);
        let total = Window { total_bytes: 10 * cost, ..window(100) };
        journal.append(body(), &total, 9 * cost, start);
        assert_eq!(journal.bytes(), cost, "others leave room for one");
        journal.expire(&total, start + total.age + Duration::from_millis(1));
        assert_eq!((journal.bytes(), journal.head().offset), (0, 5));
        assert!(journal.after(journal.head()).unwrap().is_empty());
    }
}
