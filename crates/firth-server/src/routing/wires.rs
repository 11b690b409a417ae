//! The wires to gateways, as the configuration and the environment say.
//!
//! `FIRTH_ROUTING_TOKEN` is sent to gateways as a bearer token, and asked of those that register by gRPC; `FIRTH_ROUTING_SIGNING_KEY` signs batches.

use super::told;
use firth::Result;
use firth_router::deliver::{Bearer, ByProtocol, Deliverer, Secrets, SigningKey};
use firth_router::node::RouterOptions;
use std::sync::Arc;

/// The token that routers and gateways share.
pub(super) fn token() -> Option<String> {
    variable("FIRTH_ROUTING_TOKEN")
}

pub(super) fn deliverer(options: &RouterOptions) -> Result<Arc<dyn Deliverer>> {
    let signing = variable("FIRTH_ROUTING_SIGNING_KEY");
    let signing = signing.map(|key| SigningKey::parse(&key)).transpose().map_err(told)?;
    let secrets = Secrets { bearer: token().map(Bearer::new), signing };
    let wires = ByProtocol::configured(&options.node, &options.routing.delivery, secrets).map_err(told)?;
    Ok(Arc::new(wires))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
