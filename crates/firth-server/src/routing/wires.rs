//! The wires to gateways, as the configuration and the environment say.
//!
//! `FIRTH_ROUTING_TOKEN` is sent to gateways as a bearer token, and asked of those that register by gRPC; `FIRTH_ROUTING_SIGNING_KEY` signs batches.

use super::told;
use crate::wire::invalid;
use firth::Result;
use firth_router::config::{Delivery, Protocol, TlsFiles};
use firth_router::deliver::{
    Bearer, ByProtocol, Deliverer, GrpcDeliverer, GrpcOptions, HttpDeliverer, HttpOptions, NatsDeliverer,
    NatsOptions, SigningKey, Tls,
};
use firth_router::node::RouterOptions;
use std::sync::Arc;

/// The token that routers and gateways share.
pub(super) fn token() -> Option<String> {
    variable("FIRTH_ROUTING_TOKEN")
}

pub(super) fn deliverer(options: &RouterOptions) -> Result<Arc<dyn Deliverer>> {
    let delivery = &options.routing.delivery;
    let (node, timeout) = (options.node.clone(), delivery.timeout);
    let (bearer, tls) = (token().map(Bearer::new), tls(&delivery.tls)?);
    let signing = variable("FIRTH_ROUTING_SIGNING_KEY");
    let signing = signing.map(|key| SigningKey::parse(&key)).transpose().map_err(told)?;
    let nats = nats(&node, delivery, tls.clone())?;
    let mut http =
        HttpDeliverer::new(HttpOptions { node: node.clone(), timeout, bearer: bearer.clone(), signing });
    let mut grpc = GrpcDeliverer::new(GrpcOptions { node, timeout, bearer });
    if let Some(tls) = tls {
        (http, grpc) = (http.with_tls(tls.clone()), grpc.with_tls(tls));
    }
    let wires = ByProtocol::new(delivery.protocol)
        .with(Protocol::Http, http)
        .with(Protocol::Grpc, grpc)
        .with(Protocol::Nats, NatsDeliverer::new(nats));
    Ok(Arc::new(wires))
}

/// Certificates of the configuration, or the system's where it has any.
fn tls(files: &TlsFiles) -> Result<Option<Tls>> {
    match Tls::from_files(files) {
        Ok(tls) => Ok(Some(tls)),
        Err(error) if *files == TlsFiles::default() => {
            tracing::debug!(%error, "gateways with https:// cannot be reached");
            Ok(None)
        }
        Err(error) => Err(told(error)),
    }
}

fn nats(node: &str, delivery: &Delivery, tls: Option<Tls>) -> Result<NatsOptions> {
    let config = &delivery.nats;
    let token = config.token_file.as_ref().map(|file| {
        let shown = file.display();
        std::fs::read_to_string(file).map(|token| Bearer::new(token.trim())).map_err(|error| {
            invalid(format!("routing.delivery.nats.token_file: {shown} cannot be read")).with_source(error)
        })
    });
    Ok(NatsOptions {
        url: config.url.clone(),
        subject: config.subject.clone(),
        ack: config.ack,
        stream: config.stream.clone(),
        token: token.transpose()?,
        tls,
        ..NatsOptions::new(node, delivery.timeout)
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
