//! Where a gateway's events come from: a topic that it reads itself, or a router with which it
//! registers what clients ask for.

use super::grpc::RouterByGrpc;
use super::internal::router_token;
use super::report::Servers;
use super::upstream::RouterApi;
use super::{GatewayArgs, refused};
use crate::client::Client;
use crate::config::variable;
use crate::wire::invalid;
use firth::{Broker, Error, ErrorKind, Result};
use firth_edge::{Hub, Registrar, TopicFeed};

pub(super) enum Source {
    Topic {
        feed: Box<TopicFeed>,
        broker: Broker,
    },
    /// With the server's API, if it is not reached by gRPC.
    Router(Registrar, Option<Client>),
}

impl Source {
    pub(super) async fn open(args: &GatewayArgs, id: &str, hub: &Hub) -> Result<Self> {
        if let Some(router) = &args.router {
            let internal = args.internal.ok_or_else(|| {
                invalid("--router needs --internal: an address at which this gateway takes batches")
            })?;
            if router_token().is_none() {
                return Err(invalid(
                    "--router needs FIRTH_GATEWAY_TOKEN: the token with which the router brings batches",
                ));
            }
            let token = variable("FIRTH_ROUTER_TOKEN");
            let scheme = if args.internal_cert.is_some() { "https" } else { "http" };
            let endpoint = args.endpoint.clone().unwrap_or_else(|| format!("{scheme}://{internal}"));
            if token.is_some() && is_plain(router) {
                tracing::warn!(router, "FIRTH_ROUTER_TOKEN is sent without TLS: use https:// or grpcs://");
            }
            let instance = format!("{:016x}", fastrand::u64(..));
            if let Some(api) = RouterByGrpc::at(router, token.clone(), id, endpoint.clone(), instance.clone())
            {
                let api = api.map_err(|error| invalid(error.context().to_owned()))?;
                let registrar = Registrar::start(hub, api).await.map_err(refused)?;
                return Ok(Self::Router(registrar, None));
            }
            let client = Client::remote(router, token)?;
            let api = RouterApi { client: client.clone(), gateway: id.to_owned(), endpoint, instance };
            let registrar = Registrar::start(hub, api).await.map_err(refused)?;
            return Ok(Self::Router(registrar, Some(client)));
        }
        let (Some(engine), Some(topic)) = (&args.engine, &args.topic) else {
            return Err(invalid("give --engine and --topic, or --router"));
        };
        let broker = Broker::connect(engine).await?;
        let group = format!("{}{id}", TopicFeed::GROUPS);
        let feed = TopicFeed::start(hub.clone(), &broker, topic, &group).await?;
        Ok(Self::Topic { feed: Box::new(feed), broker })
    }

    /// Where servers are told who is connected here.
    pub(super) fn servers(&self) -> Option<Servers> {
        match self {
            Self::Topic { broker, .. } => Some(Servers::Bus(broker.bus())),
            Self::Router(_, client) => client.clone().map(|client| Servers::Router(Box::new(client))),
        }
    }

    /// Resolves when no more events can come.
    pub(super) async fn ended(&mut self) -> Result<()> {
        match self {
            Self::Topic { feed, .. } => feed.ended().await,
            Self::Router(registrar, _) => {
                let context =
                    "another process has registered under this gateway's name: give each its own --id";
                tokio::select! {
                    () = registrar.replaced() => Err(Error::new(ErrorKind::Fenced, context)),
                    forbidden = registrar.forbidden() => Err(refused(forbidden)),
                }
            }
        }
    }

    pub(super) async fn close(self) -> Result<()> {
        match self {
            Self::Topic { feed, broker } => {
                let closed = feed.close().await;
                closed.and(broker.close().await)
            }
            Self::Router(registrar, _) => registrar.close().await.map_err(refused),
        }
    }
}

/// Whether others on the way to the router can read along.
fn is_plain(router: &str) -> bool {
    let Ok(uri) = router.parse::<axum::http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    matches!(uri.scheme_str(), Some("http" | "grpc")) && !is_here
}
