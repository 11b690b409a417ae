//! The wire of each gateway: its own if it registered with one, otherwise the configured one.

use super::{
    Bearer, Deliverer, Delivering, GrpcDeliverer, GrpcOptions, HttpDeliverer, HttpOptions, SigningKey, Tls,
};
use crate::config::{Delivery, Protocol, TlsFiles};
use crate::error::Result;
use crate::lane::{Batch, Outcome};
use crate::name::GatewayId;
use crate::registry::Gateway;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Several deliverers as one.
pub struct ByProtocol {
    wires: HashMap<Protocol, Arc<dyn Deliverer>>,
    usual: Protocol,
}

/// What no configuration file should hold.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// The token for gateways.
    pub bearer: Option<Bearer>,
    /// Signs what goes by HTTP.
    pub signing: Option<SigningKey>,
}

impl ByProtocol {
    /// Every wire that this build has, as `routing.delivery` says. Reads the files that it names.
    pub fn configured(node: &str, delivery: &Delivery, secrets: Secrets) -> Result<Self> {
        let timeout = delivery.timeout;
        let Secrets { bearer, signing } = secrets;
        let has_tls = delivery.tls != TlsFiles::default();
        let tls = has_tls.then(|| Tls::from_files(&delivery.tls)).transpose()?;
        let http = HttpOptions { node: node.to_owned(), timeout, bearer: bearer.clone(), signing };
        let http = tls.iter().cloned().fold(HttpDeliverer::new(http), HttpDeliverer::with_tls);
        let grpc = GrpcOptions { node: node.to_owned(), timeout, bearer };
        let grpc = tls.iter().cloned().fold(GrpcDeliverer::new(grpc), GrpcDeliverer::with_tls);
        let grpc = if delivery.grpc_stream { grpc } else { grpc.unary() };
        let wires = Self::new(delivery.protocol).with(Protocol::Http, http).with(Protocol::Grpc, grpc);
        #[cfg(feature = "nats")]
        let wires = wires.with(Protocol::Nats, super::NatsDeliverer::configured(node, delivery, tls)?);
        Ok(wires)
    }

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

    fn forget(&self, gateway: &GatewayId) {
        self.wires.values().for_each(|wire| wire.forget(gateway));
    }
}

impl fmt::Debug for ByProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByProtocol({:?})", self.wires.keys())
    }
}
