//! Connections to NATS servers: one per address, made when needed, kept while it is used.

use super::NatsOptions;
use crate::config::check_nats_url;
use crate::deliver::verdict::unreachable;
use crate::error::{Error, Result};
use crate::registry::Gateway;
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A connection that no gateway has used for so long is closed, when another is made.
const UNUSED: Duration = Duration::from_secs(600);

/// One connection, or none yet; the lock is held while it is made.
type Slot = Arc<tokio::sync::Mutex<Option<Client>>>;

#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<HashMap<String, (Slot, Instant)>>);

impl Clients {
    /// The connection for a gateway, which is up.
    pub(super) async fn get(&self, to: &Gateway, options: &NatsOptions) -> Result<Client> {
        let url = match (to.endpoint.as_str(), &options.url) {
            ("", Some(url)) => url,
            ("", None) => {
                return Err(Error::invalid(format!(
                    "gateway {} names no NATS server, and routing.delivery.nats.url is not set",
                    to.id
                )));
            }
            (endpoint, _) => endpoint,
        };
        let slot = self.slot(url);
        let mut slot = slot.lock().await;
        let client = match &*slot {
            Some(client) => client.clone(),
            None => slot.insert(connect(url, options).await?).clone(),
        };
        // What is sent while it is down would wait in the client and go out late.
        match client.connection_state() {
            State::Connected => Ok(client),
            _ => Err(unreachable("the connection to the NATS server is down")),
        }
    }

    fn slot(&self, url: &str) -> Slot {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((slot, used)) = all.get_mut(url) {
            *used = now;
            return Arc::clone(slot);
        }
        all.retain(|_, (_, used)| *used + UNUSED > now);
        let slot = Slot::default();
        all.insert(url.to_owned(), (Arc::clone(&slot), now));
        slot
    }
}

async fn connect(url: &str, options: &NatsOptions) -> Result<Client> {
    check_nats_url(url)?;
    let mut connect = ConnectOptions::new()
        .name(format!("firth {}", options.node))
        .connection_timeout(options.timeout)
        .request_timeout(None)
        .ignore_discovered_servers()
        .reconnect_delay_callback(|attempts| Duration::from_millis(50 << attempts.min(5)));
    connect = options.auth.add(connect)?;
    if let Some(tls) = &options.tls {
        connect = connect.tls_client_config(tls.plain()).require_tls(url.starts_with("tls://"));
    }
    connect.connect(url).await.map_err(unreachable)
}
