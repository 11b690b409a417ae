//! The wires to gateways, as the configuration and the environment say.
//!
//! `FIRTH_GATEWAY_TOKEN` is sent to gateways as a bearer token, to hosts of a private network or
//! those of `routing.delivery.token_hosts`. A gateway with `token_file` gets its own token instead.
//! gRPC callers register with `FIRTH_ROUTER_TOKEN`, or with a token of the server that has the
//! scope `route`. On a server without tokens, `FIRTH_GATEWAY_TOKEN` stands in for the first.
//! `FIRTH_ROUTING_SIGNING_KEY` signs batches.

use super::told;
use crate::config::variable;
use crate::wire::invalid;
use firth::Result;
use firth_router::GatewayId;
use firth_router::config::NodeConfig;
use firth_router::deliver::{Bearer, ByProtocol, Deliverer, Secrets, SigningKey, TokenHosts, host};
use firth_router::registry::Gateway;
use std::sync::Arc;

/// The token for callers that register by gRPC, without limits. Every gateway knows
/// `FIRTH_GATEWAY_TOKEN`, so it is no such token where the server's tokens may have limits.
pub(super) fn registry_token(has_tokens: bool) -> Option<String> {
    let own = variable("FIRTH_ROUTER_TOKEN");
    if has_tokens { own } else { own.or_else(|| variable("FIRTH_GATEWAY_TOKEN")) }
}

pub(super) fn deliverer(config: &NodeConfig) -> Result<Arc<dyn Deliverer>> {
    let options = &config.options;
    let delivery = &config.options.routing.delivery;
    let signing = variable("FIRTH_ROUTING_SIGNING_KEY");
    let signing = signing.map(|key| SigningKey::parse(&key)).transpose().map_err(told)?;
    let configured = config.gateways.iter().filter_map(|gateway| host(&gateway.endpoint)).collect();
    let hosts = TokenHosts { patterns: delivery.token_hosts.clone(), configured };
    let shared = variable("FIRTH_GATEWAY_TOKEN").map(|token| Bearer::new(token).only_for(hosts));
    let bearer = match own_tokens(config)? {
        own if own.is_empty() => shared,
        own => Some(shared.unwrap_or_default().with_own(own)),
    };
    let wires = ByProtocol::configured(&options.node, delivery, Secrets { bearer, signing }).map_err(told)?;
    Ok(Arc::new(wires))
}

/// The tokens of single gateways, each with the endpoint that it is for.
fn own_tokens(config: &NodeConfig) -> Result<Vec<(GatewayId, String, String)>> {
    let read = |gateway: &Gateway| {
        let file = config.tokens.get(&gateway.id)?;
        Some(match std::fs::read_to_string(file) {
            Ok(token) => Ok((gateway.id.clone(), gateway.endpoint.clone(), token.trim().to_owned())),
            Err(error) => {
                let context = format!("routing.gateways.{}.token_file cannot be read", gateway.id);
                Err(invalid(context).with_source(error))
            }
        })
    };
    config.gateways.iter().filter_map(read).collect()
}
