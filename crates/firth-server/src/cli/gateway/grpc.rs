//! The registry of a router, over gRPC: `--router grpc://HOST:PORT`, or `grpcs://` with TLS.

use firth_edge::{Code, EdgeError, Heartbeat, SubscriptionRequest, Upstream};
use firth_router::config::{Protocol, TlsFiles};
use firth_router::deliver::{Bearer, Tls};
use firth_router::registry::{Gateway, RegistryClient, Subscription};
use firth_router::routing::Target;
use firth_router::{Error, ErrorKind, GatewayId, Result, SubscriptionId, Tenant};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use std::time::Duration;

pub(super) struct RouterByGrpc {
    client: RegistryClient,
    gateway: Gateway,
}

impl RouterByGrpc {
    /// `None` if the address is none of gRPC.
    pub(super) fn at(
        router: &str,
        token: Option<String>,
        id: &str,
        endpoint: String,
        instance: String,
    ) -> Option<Result<Self>> {
        let (scheme, rest) = router.split_once("://")?;
        let address = match scheme {
            "grpc" => format!("http://{rest}"),
            "grpcs" => format!("https://{rest}"),
            _ => return None,
        };
        let open = || {
            let mut client = RegistryClient::new(address, token.map(Bearer::new))?;
            if let Some(ca_file) = std::env::var_os("FIRTH_CA_FILE").map(Into::into) {
                let trusted = TlsFiles { ca_file: Some(ca_file), ..TlsFiles::default() };
                client = client.with_tls(Tls::from_files(&trusted)?);
            }
            let mut gateway = Gateway::new(GatewayId::new(id)?, endpoint);
            gateway.protocol = Some(Protocol::Http);
            gateway.instance = Some(instance);
            Ok(Self { client, gateway })
        };
        Some(open())
    }
}

impl Upstream for RouterByGrpc {
    fn gateway(&self) -> &str {
        self.gateway.id.as_str()
    }

    fn instance(&self) -> &str {
        self.gateway.instance.as_deref().unwrap_or_default()
    }

    fn announce(&self) -> BoxFuture<'_, std::result::Result<Duration, EdgeError>> {
        async move {
            let ttl =
                self.client.register_gateway(&self.gateway).await.map_err(|error| of_gateway(&error))?;
            Ok(ttl.max(Duration::from_secs(3)))
        }
        .boxed()
    }

    fn heartbeat(&self) -> BoxFuture<'_, std::result::Result<Heartbeat, EdgeError>> {
        async move {
            match self.client.heartbeat_instance(&self.gateway.id, Some(self.instance())).await {
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
    ) -> BoxFuture<'a, std::result::Result<(), EdgeError>> {
        async move {
            let target = Target::Direct(self.gateway.id.clone());
            let mut wanted =
                Subscription::new(id.clone(), tenant.clone(), request.collection.as_str(), target);
            wanted.document = request.document.as_deref().map(Into::into);
            wanted.filter.clone_from(&request.filter);
            wanted.conditions = request.conditions.clone().unwrap_or_default();
            self.client.register(&wanted).await.map(drop).map_err(|error| told(&error))
        }
        .boxed()
    }

    fn unregister<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, std::result::Result<(), EdgeError>> {
        async move { self.client.unregister(tenant, id).await.map(drop).map_err(|error| told(&error)) }
            .boxed()
    }

    fn leave(&self) -> BoxFuture<'_, std::result::Result<(), EdgeError>> {
        async move {
            match self.client.unregister_instance(&self.gateway.id, Some(self.instance())).await {
                // A newer process has the name: there is nothing of ours.
                Err(error) if error.kind() != ErrorKind::Fenced => Err(of_gateway(&error)),
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

/// What a client is told of it, as over HTTP.
fn told(error: &Error) -> EdgeError {
    match error.kind() {
        ErrorKind::Invalid => EdgeError::new(Code::Invalid, error.context().to_owned()),
        ErrorKind::Quota => super::upstream::full(),
        ErrorKind::Forbidden => super::upstream::foreign_tenant(error),
        _ => super::upstream::away(error),
    }
}

/// The same for what concerns the whole gateway, which its operator is told.
fn of_gateway(error: &Error) -> EdgeError {
    match error.kind() {
        ErrorKind::Forbidden => super::upstream::foreign_gateway(error.context()),
        _ => told(error),
    }
}
