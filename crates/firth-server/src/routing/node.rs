//! A node of the router inside the server: its topic, its gateways, its gRPC address, and the end
//! of them all.

use super::registrants::Registrants;
use super::{metrics, told, wires};
use crate::app::App;
use firth::{Broker, Error, ErrorKind, Result};
use firth_router::config::NodeConfig;
use firth_router::node::Router;
use firth_router::registry::{Registry, RegistryService, ServerTls};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(super) struct Node {
    router: Arc<Router>,
    address: Option<SocketAddr>,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Node {
    pub(super) async fn start(
        broker: &Broker,
        registry: Registry,
        config: &NodeConfig,
        app: &App,
    ) -> Result<Self> {
        let options = &config.options;
        let stop = CancellationToken::new();
        prepare(broker, config).await?;
        for gateway in &config.gateways {
            registry.register_gateway(gateway.clone()).await.map_err(told)?;
        }
        let deliverer = wires::deliverer(config)?;
        let router =
            Router::start(broker, registry.clone(), deliverer, options.clone()).await.map_err(told)?;
        let router = Arc::new(router);
        let mut tasks = vec![tokio::spawn(metrics::keep(
            broker.clone(),
            registry.clone(),
            Arc::clone(&router),
            options.clone(),
            stop.clone(),
        ))];
        let mut address = None;
        if let Some(listen) = config.listen {
            let listener = TcpListener::bind(listen).await.map_err(|error| {
                let context = format!("cannot listen on {listen}: choose another routing.listen");
                Error::new(ErrorKind::Unavailable, context).with_source(error)
            })?;
            address = listener.local_addr().ok();
            let has_tokens = app.guard().has_tokens();
            let token = wires::registry_token(has_tokens);
            let is_guarded = token.is_some() || has_tokens;
            if !is_guarded && !listen.ip().is_loopback() {
                return Err(crate::wire::invalid(format!(
                    "routing.listen: {listen} can be reached from other machines, so it needs a token: set FIRTH_ROUTER_TOKEN, or serve with --token-file"
                )));
            }
            if config.tls.is_none() && !listen.ip().is_loopback() {
                tracing::warn!(%listen, "routing.listen has no TLS: tokens cross the network as they are; give routing.tls");
            }
            let tls = config.tls.as_ref().map(|(cert, key)| ServerTls::from_files(cert, key));
            let callers = Arc::new(Registrants::new(app, token.as_deref()));
            let service =
                RegistryService::new(registry, None).with_callers(callers).configured(&options.routing);
            let service = tls.transpose().map_err(told)?.into_iter().fold(service, RegistryService::with_tls);
            tasks.push(tokio::spawn(service.serve(listener, stop.clone())));
        }
        Ok(Self { router, address, stop, tasks: Mutex::new(tasks) })
    }

    pub(super) fn router(&self) -> &Arc<Router> {
        &self.router
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(super) async fn close(&self) {
        self.stop.cancel();
        if let Err(error) = self.router.close().await {
            tracing::warn!(%error, "the router did not end well; what it had in hand comes again");
        }
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("nothing panics under this lock"));
        for task in tasks {
            // A panic there was already reported by the runtime.
            let _ = task.await;
        }
    }
}

/// Makes the topic, if it is not there.
async fn prepare(broker: &Broker, config: &NodeConfig) -> Result<()> {
    let topic = &config.options.topic;
    let wanted = config.options.routing.num_partitions;
    match broker.create_topic(topic).partitions(wanted).await {
        Ok(_) => {
            tracing::info!(topic, partitions = wanted, "topic created");
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = broker.topic(topic).await?.config.partitions;
            if there != wanted {
                tracing::warn!(
                    topic,
                    there,
                    wanted,
                    "the topic has another number of partitions than routing.num_partitions says; they stay"
                );
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}
