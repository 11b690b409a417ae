//! [`RegistryClient`]: calls a router's registry by gRPC, as a gateway does that registers itself
//! and what its clients want.

use super::messages::{
    GatewayMessage, GatewayName, Registered, Removed, SubscriptionMessage, SubscriptionName,
};
use super::{MAX_TIME, PREFIX};
use crate::deliver::connect::{Connections, MAX_ANSWER};
use crate::deliver::grpc::{frame, only, status};
use crate::deliver::{Bearer, Tls};
use crate::error::{Error, ErrorKind, Result};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::registry::subscription::{Gateway, Subscription};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use prost::Message;
use std::time::Duration;

/// A router's registry somewhere else: the service of `proto/registry.proto`. One connection, made
/// when needed and made anew when it broke.
#[derive(Debug)]
pub struct RegistryClient {
    /// The router, as connections know their peers.
    router: Gateway,
    bearer: Option<Bearer>,
    connections: Connections,
}

impl RegistryClient {
    /// Calls the registry at `http://host:port` or `https://host:port`, with this token if it asks
    /// for one.
    pub fn new(endpoint: impl Into<String>, bearer: Option<Bearer>) -> Result<Self> {
        let router = Gateway::new(GatewayId::new("router")?, endpoint);
        Ok(Self { router, bearer, connections: Connections::default() })
    }

    /// With these settings for an `https://` address; without, the system's authorities are
    /// trusted.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.connections = Connections::with_tls(tls);
        self
    }

    /// Adds a gateway, or gives a sign of life of it; answers how long it lives without a
    /// heartbeat.
    pub async fn register_gateway(&self, gateway: &Gateway) -> Result<Duration> {
        self.call("RegisterGateway", &GatewayMessage::of(gateway)).await.map(lives)
    }

    /// A sign of life of a gateway, which keeps its direct subscriptions alive, too; `NotFound` if
    /// it must register again.
    pub async fn heartbeat_gateway(&self, gateway: &GatewayId) -> Result<Duration> {
        self.heartbeat_instance(gateway, None).await
    }

    /// A sign of life of one process of a gateway; `Fenced` if another process has registered
    /// since.
    pub async fn heartbeat_instance(&self, gateway: &GatewayId, instance: Option<&str>) -> Result<Duration> {
        self.call("HeartbeatGateway", &GatewayName::of(gateway, instance)).await.map(lives)
    }

    /// Removes a gateway and all subscriptions that name it; answers how many.
    pub async fn unregister_gateway(&self, gateway: &GatewayId) -> Result<usize> {
        self.unregister_instance(gateway, None).await
    }

    /// The same for one process of a gateway; `Fenced`, and nothing is removed, if another process
    /// has registered since.
    pub async fn unregister_instance(&self, gateway: &GatewayId, instance: Option<&str>) -> Result<usize> {
        let removed: Removed = self.call("UnregisterGateway", &GatewayName::of(gateway, instance)).await?;
        Ok(removed.subscriptions as usize)
    }

    /// Adds a subscription, or replaces the tenant's one with this id.
    pub async fn register(&self, subscription: &Subscription) -> Result<Duration> {
        self.call("Register", &SubscriptionMessage::of(subscription)).await.map(lives)
    }

    /// Removes a subscription; false if there was none.
    pub async fn unregister(&self, tenant: &Tenant, id: &SubscriptionId) -> Result<bool> {
        let removed: Removed = self.call("Unregister", &SubscriptionName::of(tenant, id)).await?;
        Ok(removed.subscriptions > 0)
    }

    async fn call<M: Message + Default>(&self, call: &str, message: &impl Message) -> Result<M> {
        let address = format!("{}{PREFIX}{call}", self.router.endpoint.trim_end_matches('/'));
        let mut request =
            Request::post(address).header(CONTENT_TYPE, "application/grpc").header(TE, "trailers");
        if let Some(bearer) = &self.bearer {
            request = bearer.add(request)?;
        }
        let wrong = |error| Error::invalid("the router's address is not one").with_source(error);
        let request = request.body(Full::new(frame(message)).boxed_unsync()).map_err(wrong)?;
        let answer = async {
            let response = self.connections.send(&self.router, request, MAX_TIME).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|error| unavailable("the answer broke off").with_source(error))?;
            let trailers = body.trailers().cloned().unwrap_or_default();
            let said = if status(&trailers).is_some() { &trailers } else { &head.headers };
            match status(said) {
                Some(0) => only(body.to_bytes()),
                Some(code) => Err(Error::new(kind(code), reason(said))),
                None => Err(unavailable("the answer has no gRPC status: is this a router's registry?")),
            }
        };
        match tokio::time::timeout(MAX_TIME, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                self.connections.forget(&self.router.id);
                Err(unavailable("the router does not answer"))
            }
        }
    }
}

fn lives(registered: Registered) -> Duration {
    Duration::from_secs(u64::from(registered.ttl_seconds))
}

fn unavailable(context: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, context)
}

/// The other way round than the service: see [`super::status`].
fn kind(code: u32) -> ErrorKind {
    match code {
        3 => ErrorKind::Invalid,
        5 => ErrorKind::NotFound,
        7 => ErrorKind::Forbidden,
        8 => ErrorKind::Quota,
        9 => ErrorKind::Fenced,
        15 => ErrorKind::Corrupt,
        _ => ErrorKind::Unavailable,
    }
}

/// What the router says of it, percent-decoded.
fn reason(headers: &HeaderMap) -> String {
    let text = headers.get("grpc-message").map(hyper::header::HeaderValue::as_bytes).unwrap_or_default();
    let mut read = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                read.push(byte);
                rest = &behind[2..];
            }
            _ => {
                read.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::messages::Usual;
    use super::*;
    use crate::config::Mode;
    use crate::config::{Protocol, RoutingConfig};
    use crate::filter::Condition;
    use crate::registry::{Overflow, Registry, RegistryService};
    use crate::routing::Target;
    use firth::Broker;
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    fn names() -> (GatewayId, Tenant, SubscriptionId) {
        (GatewayId::new("edge").unwrap(), Tenant::new("acme").unwrap(), SubscriptionId::new("s").unwrap())
    }

    #[tokio::test]
    async fn what_is_registered_by_grpc_is_what_the_registry_holds() {
        let quotas = RoutingConfig::default().subscriptions;
        let registry = Registry::open(&Broker::memory(), quotas).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let service = RegistryService::new(registry.clone(), Some("secret"));
        let serving = tokio::spawn(service.serve(listener, stop.clone()));
        let (edge, tenant, id) = names();
        let client = RegistryClient::new(&endpoint, Some(Bearer::new("secret"))).unwrap();
        assert_eq!(client.heartbeat_gateway(&edge).await.unwrap_err().kind(), ErrorKind::NotFound);

        let mut gateway = Gateway::new(edge.clone(), "http://127.0.0.1:1");
        gateway.protocol = Some(Protocol::Http);
        assert_eq!(
            client.register_gateway(&gateway).await.unwrap(),
            Duration::from_secs(gateway.ttl_seconds)
        );
        client.heartbeat_gateway(&edge).await.unwrap();
        gateway.instance = Some("new".to_owned());
        client.register_gateway(&gateway).await.unwrap();
        for (instance, outcome) in [(Some("old"), Some(ErrorKind::Fenced)), (Some("new"), None), (None, None)]
        {
            let heard = client.heartbeat_instance(&edge, instance).await.err();
            assert_eq!(heard.map(|error| error.kind()), outcome, "{instance:?}");
        }
        let left = client.unregister_instance(&edge, Some("old")).await.unwrap_err();
        assert_eq!(left.kind(), ErrorKind::Fenced, "an old process leaves its successor alone");
        let of_old = Subscription::new(id.clone(), tenant.clone(), "orders", Target::Direct(edge.clone()));
        client.register(&of_old).await.unwrap();
        for (instance, stays) in [("new", true), ("newer", false)] {
            gateway.instance = Some(instance.to_owned());
            client.register_gateway(&gateway).await.unwrap();
            assert_eq!(registry.subscription(&tenant, &id).is_some(), stays, "{instance} takes over");
        }
        let mut wanted =
            Subscription::new(id.clone(), tenant.clone(), "orders", Target::Direct(edge.clone()));
        let condition: Condition =
            serde_json::from_str(r#"{"field":"total","op":">=","value":{"a":[1]}}"#).unwrap();
        (wanted.document, wanted.overflow) = (Some("42".into()), Overflow::Keep);
        client.register(&wanted).await.unwrap();
        assert_eq!(registry.subscription(&tenant, &id).as_deref(), Some(&wanted));
        let usual = Usual { mode: Mode::Direct, ttl: std::time::Duration::from_secs(300) };
        let message =
            SubscriptionMessage::of(&Subscription { conditions: vec![condition], ..wanted.clone() });
        assert_eq!(SubscriptionMessage::of(&message.clone().read(&usual).unwrap()), message);

        wanted.filter = Some("doc.total >".to_owned());
        let refused = client.register(&wanted).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.context().contains("CEL"), "{refused}");
        assert!(client.unregister(&tenant, &id).await.unwrap());
        assert!(!client.unregister(&tenant, &id).await.unwrap());
        assert_eq!(client.unregister_gateway(&edge).await.unwrap(), 0);
        let stranger = RegistryClient::new(&endpoint, None).unwrap();
        let refused = stranger.register_gateway(&gateway).await.unwrap_err();
        assert!(refused.context().contains("authorization"), "{refused}");

        drop((client, stranger));
        stop.cancel();
        serving.await.unwrap();
        registry.close().await;
    }

    #[test]
    fn a_reason_is_decoded_whatever_stands_in_it() {
        let said = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-message", hyper::header::HeaderValue::from_static(text));
            reason(&headers)
        };
        assert_eq!(said("5%25 of %C3%A4"), "5% of ä");
        assert_eq!(said("%"), "%");
        assert_eq!(said("%zz %4"), "%zz %4");
    }
}
