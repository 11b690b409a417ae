//! The wire of each gateway: its own if it registered with one, otherwise the configured one.

use super::{Deliverer, Delivering};
use crate::config::Protocol;
use crate::lane::{Batch, Outcome};
use crate::registry::Gateway;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Several deliverers as one.
pub struct ByProtocol {
    wires: HashMap<Protocol, Arc<dyn Deliverer>>,
    usual: Protocol,
}

impl ByProtocol {
    /// None yet; `usual` is for gateways that name no protocol.
    pub fn new(usual: Protocol) -> Self {
        Self { wires: HashMap::new(), usual }
    }

    /// With a deliverer for one protocol.
    #[must_use]
    pub fn with(mut self, protocol: Protocol, deliverer: impl Deliverer) -> Self {
        self.wires.insert(protocol, Arc::new(deliverer));
        self
    }
}

impl Deliverer for ByProtocol {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        let protocol = to.protocol.unwrap_or(self.usual);
        match self.wires.get(&protocol) {
            Some(wire) => wire.deliver(to, batch),
            None => {
                tracing::warn!(gateway = %to.id, ?protocol, "this node has no such wire; the gateway's events wait");
                Box::pin(std::future::ready(Outcome::Unreached))
            }
        }
    }
}

impl fmt::Debug for ByProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByProtocol({:?})", self.wires.keys())
    }
}
