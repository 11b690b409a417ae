//! Who is connected to which gateway, as gateways tell it.
//!
//! A gateway tells every few seconds: one with an engine of its own on a channel of the engine's
//! bus, one behind a router by its server, which passes it on to that channel. Every server
//! listens, so each knows all gateways.
//!
//! Bounded: [`MAX_GATEWAYS`] gateways, each with [`MAX_CLIENTS`](crate::wire::MAX_CLIENTS) clients.
//! What is older than [`OLD`] is forgotten.

use crate::wire::{GatewayClients, GatewayTold, millis};
use firth::Result;
use firth::catalog::{BusHandle, ChannelName, Listener, Signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often gateways tell.
pub(crate) const EVERY: Duration = Duration::from_secs(3);
/// A gateway that was silent for this long is gone.
const OLD: Duration = Duration::from_secs(12);
const MAX_GATEWAYS: usize = 1024;
/// Before a subscription that failed is tried again.
const REST: Duration = Duration::from_secs(5);

/// What goes over the bus.
#[derive(Serialize, Deserialize)]
struct ClientReport {
    gateway: String,
    clients: GatewayClients,
}

fn channel() -> ChannelName {
    ChannelName::new("edge.clients").expect("a valid name")
}

/// Tells all servers on this engine.
pub(crate) async fn tell(bus: &BusHandle, gateway: &str, clients: GatewayClients) -> Result<()> {
    let report = ClientReport { gateway: gateway.to_owned(), clients };
    let report = serde_json::to_vec(&report).expect("plain data can be written as JSON");
    bus.publish(&channel(), report.into()).await
}

/// What gateways told; clones share it.
#[derive(Clone, Default)]
pub(crate) struct GatewayReports(Arc<Mutex<BTreeMap<String, (Instant, GatewayClients)>>>);

impl GatewayReports {
    /// What gateways told lately; of all, or of one.
    pub(crate) fn lately(&self, gateway: Option<&str>) -> Vec<GatewayTold> {
        let now = Instant::now();
        let mut told = self.lock();
        told.retain(|_, (at, _)| now.saturating_duration_since(*at) < OLD);
        let wanted = told.iter().filter(|(name, _)| gateway.is_none_or(|gateway| gateway == *name));
        let shown = wanted.map(|(name, (at, clients))| GatewayTold {
            gateway: name.clone(),
            told_ms: millis(now.saturating_duration_since(*at)),
            connections: clients.connections,
            subscriptions: clients.subscriptions,
            clients: clients.clients.clone(),
        });
        shown.collect()
    }

    /// Listens until the server closes.
    pub(crate) fn start(&self, bus: BusHandle, closing: CancellationToken) {
        let reports = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = reports.listen(bus) => {}
                () = closing.cancelled() => {}
            }
        });
    }

    async fn listen(self, bus: BusHandle) {
        loop {
            match bus.subscribe(&channel()).await {
                Ok(heard) => self.hear(heard).await,
                Err(error) => tracing::debug!(%error, "gateways are not heard of"),
            }
            tokio::time::sleep(REST).await;
        }
    }

    async fn hear(&self, mut heard: Listener) {
        while let Ok(signal) = heard.next().await {
            // After a gap each gateway tells again.
            let Signal::Message(payload) = signal else { continue };
            if let Ok(ClientReport { gateway, clients }) = serde_json::from_slice(&payload) {
                self.note(gateway, clients);
            }
        }
    }

    fn note(&self, gateway: String, clients: GatewayClients) {
        let now = Instant::now();
        let mut told = self.lock();
        if told.len() >= MAX_GATEWAYS {
            told.retain(|_, (at, _)| now.saturating_duration_since(*at) < OLD);
        }
        if clients.is_bounded() && (told.len() < MAX_GATEWAYS || told.contains_key(&gateway)) {
            told.insert(gateway, (now, clients));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, GatewayClients)>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{GatewayClient, MAX_CLIENTS};
    use firth::limits::MAX_SIGNAL;

    fn client() -> GatewayClient {
        let user = Some("ü".repeat(128));
        GatewayClient { tenant: "t".repeat(128), user, subscriptions: 1, queued: 2, connected_ms: 3 }
    }

    #[tokio::test(start_paused = true)]
    async fn what_gateways_told_is_bounded_and_forgotten_when_they_are_silent() {
        let reports = GatewayReports::default();
        for number in 0..MAX_GATEWAYS + 5 {
            reports.note(format!("g{number}"), GatewayClients::default());
        }
        assert_eq!((reports.lately(None).len(), reports.lately(Some("g7")).len()), (MAX_GATEWAYS, 1));
        tokio::time::sleep(OLD).await;
        let clients = vec![client(); MAX_CLIENTS + 1];
        reports.note("much".to_owned(), GatewayClients { clients, ..GatewayClients::default() });
        assert!(reports.lately(None).is_empty());
        reports.note("new".to_owned(), GatewayClients::default());
        assert_eq!(reports.lately(None).len(), 1);
    }

    #[test]
    fn the_largest_report_fits_the_bus() {
        let clients = GatewayClients { clients: vec![client(); MAX_CLIENTS], ..GatewayClients::default() };
        assert!(clients.is_bounded());
        let report = ClientReport { gateway: "g".repeat(256), clients };
        assert!(serde_json::to_vec(&report).unwrap().len() <= MAX_SIGNAL);
    }
}
