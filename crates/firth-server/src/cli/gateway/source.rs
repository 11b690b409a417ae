//! Where a gateway's events come from: a topic that it reads itself, or a router with which it registers what clients ask for.

use super::grpc::RouterByGrpc;
use super::upstream::RouterApi;
use super::{GatewayArgs, refused};
use crate::client::Client;
use crate::wire::invalid;
use firth::{Broker, Error, ErrorKind, Result};
use firth_edge::{Hub, Registrar, TopicFeed};

pub(super) enum Source {
    Topic { feed: Box<TopicFeed>, broker: Broker },
    Router(Registrar),
}

impl Source {
    pub(super) async fn open(args: &GatewayArgs, id: &str, hub: &Hub) -> Result<Self> {
        if let Some(router) = &args.router {
            let internal = args.internal.ok_or_else(|| {
                invalid("--router needs --internal: an address at which this gateway takes batches")
            })?;
            if std::env::var("FIRTH_TOKEN").unwrap_or_default().is_empty() {
                return Err(invalid("--router needs FIRTH_TOKEN: the token with which the router comes"));
            }
            let token = std::env::var("FIRTH_ROUTER_TOKEN").ok().filter(|token| !token.is_empty());
            let scheme = if args.internal_cert.is_some() { "https" } else { "http" };
            let endpoint = args.endpoint.clone().unwrap_or_else(|| format!("{scheme}://{internal}"));
            if token.is_some() && is_plain(router) {
                tracing::warn!(router, "FIRTH_ROUTER_TOKEN is sent without TLS: use https:// or grpcs://");
            }
            let instance = format!("{:016x}", fastrand::u64(..));
            if let Some(api) = RouterByGrpc::at(router, token.clone(), id, endpoint.clone(), instance.clone())
            {
                let api = api.map_err(|error| invalid(error.context().to_owned()))?;
                return Registrar::start(hub, api).await.map(Self::Router).map_err(refused);
            }
            let client = Client::remote(router, token)?;
            let api = RouterApi { client, gateway: id.to_owned(), endpoint, instance };
            return Registrar::start(hub, api).await.map(Self::Router).map_err(refused);
        }
        let (Some(engine), Some(topic)) = (&args.engine, &args.topic) else {
            return Err(invalid("give --engine and --topic, or --router"));
        };
        let broker = Broker::connect(engine).await?;
        let group = format!("{}{id}", TopicFeed::GROUPS);
        let feed = TopicFeed::start(hub.clone(), &broker, topic, &group).await?;
        Ok(Self::Topic { feed: Box::new(feed), broker })
    }

    /// Resolves when no more events can come.
    pub(super) async fn ended(&mut self) -> Result<()> {
        match self {
            Self::Topic { feed, .. } => feed.ended().await,
            Self::Router(registrar) => {
                registrar.replaced().await;
                let context =
                    "another process has registered under this gateway's name: give each its own --id";
                Err(Error::new(ErrorKind::Fenced, context))
            }
        }
    }

    pub(super) async fn close(self) -> Result<()> {
        match self {
            Self::Topic { feed, broker } => {
                let closed = feed.close().await;
                closed.and(broker.close().await)
            }
            Self::Router(registrar) => registrar.close().await.map_err(refused),
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
