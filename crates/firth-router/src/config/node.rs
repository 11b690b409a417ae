//! [`NodeConfig`]: the `routing:` section of a program that runs a node. Beside the options of
//! [`RoutingConfig`] it names what is read and by whom:
//!
//! ```yaml
//! routing:
//!   topic: changes            # where events are
//!   group: router             # shared by all nodes of one router
//!   node: node-1              # this node; no other has this name, so it takes over from its former life at once (else: a random one)
//!   listen: 127.0.0.1:7173    # where gateways register by gRPC
//!   tls: { cert_file: router.pem, key_file: router.key }   # for `listen`
//!   lease: 10s                # how long a crashed node keeps its partitions
//!   drain: 10s                # how long batches on their way may finish at the end
//!   stall_timeout: 1s         # how long a gateway may hold up a partition before it is parked
//!   gateways:                 # gateways that need not register
//!     edge-1: http://10.0.0.1:7272
//!     edge-2: { endpoint: "http://10.0.0.2:7272", protocol: grpc, token_file: edge-2.token }
//! ```

use super::section::Section;
use super::{Protocol, RoutingConfig};
use crate::error::{Error, Result};
use crate::name::GatewayId;
use crate::node::RouterOptions;
use crate::registry::Gateway;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A node and everything under `routing:`.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// What the node reads and how it routes.
    pub options: RouterOptions,
    /// Where gateways and subscriptions are registered by gRPC, if anywhere.
    pub listen: Option<SocketAddr>,
    /// The certificate and the key for that address, if it speaks TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Gateways that are there without registering.
    pub gateways: Vec<Gateway>,
    /// Files with the tokens that some of these get instead of the one for all.
    pub tokens: BTreeMap<GatewayId, PathBuf>,
}

/// The topic unless one is named.
const TOPIC: &str = "changes";
/// The options that are the node's.
const OWN: [&str; 10] = [
    "topic",
    "group",
    "node",
    "listen",
    "tls",
    "lease",
    "drain",
    "stall_timeout",
    FORMER_STALL_TIMEOUT,
    "gateways",
];

/// What `stall_timeout` was called before; still read.
const FORMER_STALL_TIMEOUT: &str = "patience";

impl NodeConfig {
    /// Reads the section. `value` is what stands under `routing:`.
    pub fn from_value(value: &Value) -> Result<Self> {
        let [own, shared] = own_and_shared(value)?;
        let mut config = Self {
            options: RouterOptions::new(TOPIC),
            listen: None,
            tls: None,
            gateways: Vec::new(),
            tokens: BTreeMap::new(),
        };
        config.options.routing = RoutingConfig::beside(&shared, &OWN)?;
        let mut section = Section::open("routing", &own)?;
        let options = &mut config.options;
        section.text("topic", &mut options.topic)?;
        section.text("group", &mut options.group)?;
        let mut node = None;
        section.words("node", &mut node)?;
        // Nodes that share a configuration without a name must be told apart.
        options.is_sole = node.is_some();
        options.node = node.unwrap_or_else(|| format!("{}-{:08x}", options.node, fastrand::u32(..)));
        let second = Duration::from_secs(1);
        section.duration("lease", &mut options.lease, second..=second * 300)?;
        section.duration("drain", &mut options.drain, Duration::ZERO..=second * 300)?;
        for name in [FORMER_STALL_TIMEOUT, "stall_timeout"] {
            section.duration(name, &mut options.stall_timeout, second / 10..=second * 300)?;
        }
        let mut listen = String::new();
        section.text("listen", &mut listen)?;
        if !listen.is_empty() {
            let address = listen.parse().map_err(|_| {
                Error::invalid(format!("routing.listen is {listen:?}; give an address like 127.0.0.1:7173"))
            })?;
            config.listen = Some(address);
        }
        let mut cert_file = None;
        let mut key_file = None;
        section.section("tls", |section| {
            section.file("cert_file", &mut cert_file)?;
            section.file("key_file", &mut key_file)
        })?;
        config.tls = match (cert_file, key_file) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => {
                return Err(Error::invalid(
                    "routing.tls has one of cert_file and key_file; give both or none",
                ));
            }
        };
        if config.tls.is_some() && config.listen.is_none() {
            return Err(Error::invalid("routing.tls is for routing.listen, which is not given"));
        }
        section.section("gateways", |section| {
            section.each(|name, value| {
                let (gateway, token_file) = gateway(name, value)?;
                config.tokens.extend(token_file.map(|file| (gateway.id.clone(), file)));
                config.gateways.push(gateway);
                Ok(())
            })
        })?;
        section.close()?;
        Ok(config)
    }
}

/// The options that only a node has, and those of [`RoutingConfig`].
fn own_and_shared(value: &Value) -> Result<[Value; 2]> {
    let mut own = Map::new();
    let mut shared = Map::new();
    match value {
        Value::Null => {}
        Value::Object(options) => {
            for (name, option) in options {
                let part = if OWN.contains(&name.as_str()) { &mut own } else { &mut shared };
                part.insert(name.clone(), option.clone());
            }
        }
        _ => return Err(Error::invalid("routing must hold options with names")),
    }
    Ok([Value::Object(own), Value::Object(shared)])
}

/// An endpoint, or an endpoint with a protocol and a file with the gateway's token.
fn gateway(name: &str, value: &Value) -> Result<(Gateway, Option<PathBuf>)> {
    let path = format!("routing.gateways.{name}");
    let wrong = |error: &Error| Error::invalid(format!("{path}: {}", error.context()));
    let id = GatewayId::new(name).map_err(|error| wrong(&error))?;
    let mut gateway = Gateway::new(id, "");
    gateway.ttl_seconds = 0;
    let mut token_file = None;
    match value {
        Value::String(endpoint) => gateway.endpoint = endpoint.clone(),
        other => {
            let mut section = Section::open(&path, other)?;
            section.text("endpoint", &mut gateway.endpoint)?;
            let mut protocol = None;
            let choices = [Protocol::Http, Protocol::Grpc, Protocol::Nats];
            let choices: Vec<_> = choices.iter().map(|one| (one.as_str(), Some(*one))).collect();
            section.choice("protocol", &mut protocol, &choices)?;
            gateway.protocol = protocol;
            section.file("token_file", &mut token_file)?;
            section.close()?;
        }
    }
    gateway.check().map_err(|error| wrong(&error))?;
    Ok((gateway, token_file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_documented_section_is_a_node() {
        let text = include_str!("documented.yaml");
        let tree: Value = serde_saphyr::from_str(text).unwrap();
        let config = NodeConfig::from_value(&tree["routing"]).unwrap();
        assert_eq!(config.options.routing, RoutingConfig::default());
        assert_eq!((config.options.topic.as_str(), config.options.group.as_str()), ("changes", "router"));
        let again = NodeConfig::from_value(&tree["routing"]).unwrap();
        assert_ne!(config.options.node, again.options.node, "nodes without a name are told apart");
        assert!(!config.options.is_sole);
        let named = NodeConfig::from_value(&json!({ "node": "n" })).unwrap().options;
        assert_eq!((named.node.as_str(), named.is_sole), ("n", true));
    }

    #[test]
    fn gateways_are_named_with_or_without_a_protocol() {
        let tree = json!({ "topic": "t", "listen": "127.0.0.1:1", "gateways": {
            "a": "http://h:1", "b": { "endpoint": "http://h:2", "protocol": "grpc", "token_file": "f" } } });
        let config = NodeConfig::from_value(&tree).unwrap();
        let [a, b] = &config.gateways[..] else { panic!("{config:?}") };
        assert_eq!((a.endpoint.as_str(), a.protocol, a.ttl()), ("http://h:1", None, None));
        assert_eq!((b.endpoint.as_str(), b.protocol), ("http://h:2", Some(Protocol::Grpc)));
        assert_eq!(config.tokens, BTreeMap::from([(b.id.clone(), PathBuf::from("f"))]));
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (tree, expected) in [
            (json!({ "tpic": "x" }), "routing.tpic"),
            (json!({ "colour": "x" }), "known are"),
            (json!({ "colour": "x" }), "listen"),
            (json!({ "colour": "x" }), "num_partitions"),
            (json!({ "tls": { "cert_file": "a" } }), "routing.tls"),
            (json!({ "topic": 5 }), "routing.topic"),
            (json!({ "listen": "here" }), "routing.listen"),
            (json!({ "lease": "1ms" }), "routing.lease"),
            (json!({ "gateways": { "a b": "http://h" } }), "routing.gateways.a b"),
            (json!({ "gateways": { "a": { "endpiont": "x" } } }), "routing.gateways.a.endpiont"),
            (json!({ "gateways": { "a": "ftp://h" } }), "routing.gateways.a"),
        ] {
            let error = NodeConfig::from_value(&tree).unwrap_err();
            assert!(error.to_string().contains(expected), "{tree}: {error}");
        }
    }
}
