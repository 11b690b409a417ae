//! [`FrameBatch`]: events that go to a connection one behind the other, encoded as one buffer,
//! shared by all connections that get the same.

use super::{EncodedEvent, cost_of};
use std::fmt;
use std::sync::Arc;

pub(crate) struct FrameBatch {
    events: Box<[Arc<EncodedEvent>]>,
    /// All frames; empty if there is one event, which has its own.
    bytes: Box<[u8]>,
    /// What it takes of an outbox's room.
    pub(super) cost: usize,
}

impl FrameBatch {
    pub(crate) fn new(events: Vec<Arc<EncodedEvent>>) -> Self {
        let bytes = match &*events {
            [_] => Box::default(),
            many => many.iter().map(|one| one.packet.as_ref()).collect::<Vec<&[u8]>>().concat().into(),
        };
        let cost = events.iter().map(|encoded| cost_of(encoded)).sum();
        Self { events: events.into(), bytes, cost }
    }

    pub(crate) fn events(&self) -> &[Arc<EncodedEvent>] {
        &self.events
    }

    /// It, as frames of the WebSocket protocol.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &*self.events {
            [one] => one.packet.as_ref(),
            _ => &self.bytes,
        }
    }
}

/// A batch of which a part is written.
#[derive(Debug)]
pub(crate) struct PartialWrite {
    pub(crate) batch: Arc<FrameBatch>,
    pub(super) written: usize,
}

impl PartialWrite {
    pub(crate) fn rest(&self) -> &[u8] {
        &self.batch.bytes()[self.written..]
    }
}

impl fmt::Debug for FrameBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.events).finish()
    }
}
