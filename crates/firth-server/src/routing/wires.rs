//! The wires to gateways, as the configuration and the environment say.
//!
//! `FIRTH_ROUTING_TOKEN` is sent to gateways as a bearer token, to hosts of a private network or those of `routing.delivery.token_hosts`.
//! `FIRTH_ROUTING_REGISTRY_TOKEN` is asked of those that register by gRPC; without it, `FIRTH_ROUTING_TOKEN` is. `FIRTH_ROUTING_SIGNING_KEY` signs
//! batches.

use super::told;
use firth::Result;
use firth_router::config::NodeConfig;
use firth_router::deliver::{Bearer, ByProtocol, Deliverer, Secrets, SigningKey, TokenHosts, host};
use std::sync::Arc;

/// The token for those that register by gRPC.
pub(super) fn registry_token() -> Option<String> {
    variable("FIRTH_ROUTING_REGISTRY_TOKEN").or_else(|| variable("FIRTH_ROUTING_TOKEN"))
}

pub(super) fn deliverer(config: &NodeConfig) -> Result<Arc<dyn Deliverer>> {
    let (options, delivery) = (&config.options, &config.options.routing.delivery);
    let signing = variable("FIRTH_ROUTING_SIGNING_KEY");
    let signing = signing.map(|key| SigningKey::parse(&key)).transpose().map_err(told)?;
    let configured = config.gateways.iter().filter_map(|gateway| host(&gateway.endpoint)).collect();
    let hosts = TokenHosts { patterns: delivery.token_hosts.clone(), configured };
    let bearer = variable("FIRTH_ROUTING_TOKEN").map(|token| Bearer::new(token).only_for(hosts));
    let wires = ByProtocol::configured(&options.node, delivery, Secrets { bearer, signing }).map_err(told)?;
    Ok(Arc::new(wires))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
