//! Tells servers who is connected here, every few seconds.

use crate::client::{Client, escape};
use crate::routing::{REPORT_EVERY, tell_clients};
use crate::wire::{GatewayClients, MAX_CLIENTS};
use axum::http::Method;
use firth::Result;
use firth::catalog::BusHandle;
use firth_edge::Hub;

/// How servers are reached.
pub(super) enum Servers {
    /// By the bus of the engine on which the topic lies.
    Bus(BusHandle),
    /// By the server that routes.
    Router(Box<Client>),
}

impl Servers {
    async fn tell(&self, id: &str, clients: GatewayClients) -> Result<()> {
        match self {
            Self::Bus(bus) => tell_clients(bus, id, clients).await,
            Self::Router(client) => {
                let path = format!("/v1/routing/gateways/{}/clients", escape(id));
                client.send_only(Method::POST, &path, &clients).await
            }
        }
    }
}

/// Tells until it is dropped. A server that cannot be told, or is too old, costs nothing else.
pub(super) async fn run(hub: Hub, id: String, servers: Servers) {
    loop {
        let clients = GatewayClients::from(hub.clients(MAX_CLIENTS));
        if let Err(error) = servers.tell(&id, clients).await {
            tracing::debug!(%error, "servers are not told who is connected");
        }
        tokio::time::sleep(REPORT_EVERY).await;
    }
}
