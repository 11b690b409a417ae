//! [`Replay`]: the history that a client asked for, matched part by part in the connection's own
//! task, not under the hub's lock.
//!
//! It was cut off in the same step in which the subscriptions became live, so that history and live
//! events meet without a hole and without an overlap.

use crate::frame::Frame;
use crate::outbox::{Mark, Marks};
use crate::position::Position;
use firth_router::matching::{Hit, Index};
use std::fmt;
use std::sync::Arc;

pub(crate) struct Replay {
    /// Where the client stands.
    at: Position,
    history: std::vec::IntoIter<Arc<Frame>>,
    requests: Index<Arc<str>>,
    hits: Vec<Hit>,
}

impl Replay {
    pub(crate) fn new(at: Position, history: Vec<Arc<Frame>>, requests: Index<Arc<str>>) -> Self {
        Self { at, history: history.into_iter(), requests, hits: Vec::new() }
    }

    /// Looks through the next `count` events; false when it is through.
    pub(crate) fn read(&mut self, count: usize, mut found: impl FnMut(&Frame, Position, Marks)) -> bool {
        for frame in self.history.by_ref().take(count) {
            // What the client saw elsewhere may be further than this place here.
            self.at.offsets.raise_all(&frame.at.offsets);
            if self.requests.matches_into(frame.event(), &mut self.hits).is_err() || self.hits.is_empty() {
                continue;
            }
            let mark = |hit: &Hit| {
                let name = self.requests.get(hit.number)?.1.clone();
                Some(Mark { name, leaves: hit.leaves })
            };
            found(&frame, self.at.clone(), self.hits.iter().filter_map(mark).collect());
        }
        self.history.len() > 0
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay({} events)", self.history.len())
    }
}
