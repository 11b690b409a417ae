//! [`HubClients`]: who is connected, for operators.

use super::Hub;
use super::core::Core;
use firth_router::Tenant;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who is connected to a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubClients {
    /// All connections.
    pub connections: usize,
    /// All subscriptions.
    pub subscriptions: usize,
    /// Some of the connections.
    pub clients: Vec<HubClient>,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubClient {
    /// Whose events it may see.
    pub tenant: Tenant,
    /// Who it is, if its token tells.
    pub user: Option<Arc<str>>,
    /// How many subscriptions it has.
    pub subscriptions: usize,
    /// How many events wait for it.
    pub queued: u64,
    /// How long it has been connected.
    pub connected: Duration,
}

impl Hub {
    /// Who is connected: counts of all, and at most `max` of them. It holds the hub's lock for as
    /// long as it looks at these.
    pub fn clients(&self, max: usize) -> HubClients {
        self.core().clients(max, Instant::now())
    }
}

impl Core {
    fn clients(&self, max: usize, now: Instant) -> HubClients {
        let clients = self.sessions.iter().take(max).map(|(_, slot)| HubClient {
            tenant: slot.grant.tenant.clone(),
            user: slot.grant.user.clone(),
            subscriptions: slot.subscriptions.len(),
            queued: slot.mailbox.outbox().accounting().queued,
            connected: now.saturating_duration_since(slot.joined),
        });
        let connections = self.sessions.len();
        let subscriptions = self.index.len();
        HubClients { connections, subscriptions, clients: clients.collect() }
    }
}
