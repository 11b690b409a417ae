//! [`Run`]: events that go to a connection one behind the other, as one piece of bytes, shared by all connections that get the same.

use super::{Shipment, cost_of};
use std::fmt;
use std::sync::Arc;

pub(crate) struct Run {
    shipments: Box<[Arc<Shipment>]>,
    /// All frames; empty if there is one event, which has its own.
    bytes: Box<[u8]>,
    /// What it takes of an outbox's room.
    pub(super) cost: usize,
}

impl Run {
    pub(crate) fn new(shipments: Vec<Arc<Shipment>>) -> Self {
        let bytes = match &*shipments {
            [_] => Box::default(),
            many => many.iter().map(|one| one.packet.as_ref()).collect::<Vec<&[u8]>>().concat().into(),
        };
        let cost = shipments.iter().map(|shipment| cost_of(shipment)).sum();
        Self { shipments: shipments.into(), bytes, cost }
    }

    pub(crate) fn shipments(&self) -> &[Arc<Shipment>] {
        &self.shipments
    }

    /// It, as frames of the WebSocket protocol.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &*self.shipments {
            [one] => one.packet.as_ref(),
            _ => &self.bytes,
        }
    }
}

/// A run of which a part is written.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) run: Arc<Run>,
    pub(super) written: usize,
}

impl Begun {
    pub(crate) fn rest(&self) -> &[u8] {
        &self.run.bytes()[self.written..]
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.shipments).finish()
    }
}
