//! The registry of a router, over its server's HTTP API.

use crate::client::{Client, escape, is_forbidden};
use crate::wire::{Alive, GatewayGone, NewGateway, NewSubscription, SubscriptionShown};
use axum::http::Method;
use firth::{Error, ErrorKind};
use firth_edge::{Code, EdgeError, Heartbeat, SubscriptionRequest, Upstream};
use firth_router::config::Protocol;
use firth_router::{SubscriptionId, Tenant};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use std::time::Duration;

/// A server that routes.
pub(super) struct RouterApi {
    pub(super) client: Client,
    pub(super) gateway: String,
    /// Where this gateway takes batches.
    pub(super) endpoint: String,
    /// This process.
    pub(super) instance: String,
}

impl RouterApi {
    fn path(&self) -> String {
        format!("/v1/routing/gateways/{}", escape(&self.gateway))
    }

    /// A path that says which process calls.
    fn own(&self, path: &str) -> String {
        format!("{path}?instance={}", self.instance)
    }

    async fn forget(&self) -> Result<(), EdgeError> {
        let path = self.own(&self.path());
        let gone: firth::Result<GatewayGone> =
            self.client.send(Method::DELETE, &path, &serde_json::json!({})).await;
        match gone {
            Ok(_) => Ok(()),
            // A newer process has the name: there is nothing of ours.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => Ok(()),
            Err(error) => Err(of_gateway(&error)),
        }
    }
}

impl Upstream for RouterApi {
    fn gateway(&self) -> &str {
        &self.gateway
    }

    fn instance(&self) -> &str {
        &self.instance
    }

    fn announce(&self) -> BoxFuture<'_, Result<Duration, EdgeError>> {
        async move {
            let request = NewGateway {
                endpoint: Some(self.endpoint.clone()),
                protocol: Some(Protocol::Http),
                ttl_seconds: None,
            };
            let path = self.own(&self.path());
            let alive: Alive =
                self.client.send(Method::PUT, &path, &request).await.map_err(|error| of_gateway(&error))?;
            Ok(Duration::from_secs(alive.ttl_seconds.max(3)))
        }
        .boxed()
    }

    fn heartbeat(&self) -> BoxFuture<'_, Result<Heartbeat, EdgeError>> {
        async move {
            let path = self.own(&format!("{}/heartbeat", self.path()));
            let alive: firth::Result<Alive> =
                self.client.send(Method::POST, &path, &serde_json::json!({})).await;
            match alive {
                Ok(_) => Ok(Heartbeat::Alive),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Heartbeat::Unknown),
                Err(error) if error.kind() == ErrorKind::Fenced => Ok(Heartbeat::Replaced),
                Err(error) => Err(of_gateway(&error)),
            }
        }
        .boxed()
    }

    fn register<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
        request: &'a SubscriptionRequest,
    ) -> BoxFuture<'a, Result<(), EdgeError>> {
        async move {
            let request = NewSubscription {
                collection: request.collection.clone(),
                document: request.document.clone(),
                filter: request.filter.clone(),
                conditions: request.conditions.clone().unwrap_or_default(),
                gateway: Some(self.gateway.clone()),
                mode: None,
                priority: None,
                overflow: None,
                ttl_seconds: None,
            };
            let answer: firth::Result<SubscriptionShown> =
                self.client.send(Method::PUT, &subscription(tenant, id), &request).await;
            answer.map(drop).map_err(|error| told(&error))
        }
        .boxed()
    }

    fn unregister<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<(), EdgeError>> {
        async move {
            match self.client.delete(&subscription(tenant, id)).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(told(&error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn leave(&self) -> BoxFuture<'_, Result<(), EdgeError>> {
        self.forget().boxed()
    }
}

fn subscription(tenant: &Tenant, id: &SubscriptionId) -> String {
    format!("/v1/routing/subscriptions/{}/{}", escape(tenant.as_str()), escape(id.as_str()))
}

/// What a client is told of it: its own mistakes and limits, and nothing of the inside.
fn told(error: &Error) -> EdgeError {
    match error.kind() {
        ErrorKind::Invalid => EdgeError::new(Code::Invalid, error.context().to_owned()),
        ErrorKind::Overloaded => full(),
        _ if is_forbidden(error) => foreign_tenant(error),
        _ => away(error),
    }
}

/// The same for what concerns the whole gateway, which its operator is told.
fn of_gateway(error: &Error) -> EdgeError {
    if is_forbidden(error) { foreign_gateway(error.context()) } else { told(error) }
}

pub(super) fn foreign_gateway(context: &str) -> EdgeError {
    EdgeError::new(Code::Forbidden, format!("the router does not allow this gateway: {context}"))
}

pub(super) fn foreign_tenant(error: &dyn std::fmt::Display) -> EdgeError {
    tracing::warn!(%error, "the router does not allow a subscription");
    EdgeError::new(
        Code::Forbidden,
        "the router does not allow this tenant's subscriptions here: use another gateway",
    )
}

pub(super) fn full() -> EdgeError {
    EdgeError::new(Code::Limit, "the router takes no more subscriptions")
}

pub(super) fn away(error: &dyn std::fmt::Display) -> EdgeError {
    tracing::warn!(%error, "the router does not register");
    EdgeError::new(Code::Unavailable, "the router cannot be reached: try again later")
}
