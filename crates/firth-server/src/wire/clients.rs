//! Clients of gateways on the wire: what a gateway tells, and what servers show.

use super::lenient::{objects, whole};
use super::{MAX_COUNT, millis};
use firth_edge::{HubClient, HubClients};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most clients that a gateway tells by name.
pub(crate) const MAX_CLIENTS: usize = 100;
/// The longest name of a tenant or a user, in characters.
const MAX_NAME: usize = 128;

/// What a gateway tells of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GatewayClients {
    /// All its connections.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) connections: u64,
    /// All their subscriptions.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) subscriptions: u64,
    /// Some of the connections.
    #[schema(max_items = 100)]
    #[serde(deserialize_with = "objects")]
    pub(crate) clients: Vec<GatewayClient>,
}

/// One connection of a client to a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GatewayClient {
    #[schema(max_length = 128)]
    pub(crate) tenant: String,
    /// Who it is, if its token tells.
    #[schema(max_length = 128)]
    pub(crate) user: Option<String>,
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) subscriptions: u64,
    /// Events that wait for it.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) queued: u64,
    /// How long it has been connected.
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "whole")]
    pub(crate) connected_ms: u64,
}

impl GatewayClients {
    /// Whether it keeps to its bounds.
    pub(crate) fn is_bounded(&self) -> bool {
        let is_short = |name: &str| name.chars().count() <= MAX_NAME;
        let fits = |client: &GatewayClient| {
            let counts = [client.subscriptions, client.queued, client.connected_ms];
            is_short(&client.tenant)
                && client.user.as_deref().is_none_or(is_short)
                && counts.iter().all(|count| *count <= MAX_COUNT)
        };
        let counts = [self.connections, self.subscriptions];
        self.clients.len() <= MAX_CLIENTS
            && counts.iter().all(|count| *count <= MAX_COUNT)
            && self.clients.iter().all(fits)
    }
}

impl From<HubClients> for GatewayClients {
    fn from(all: HubClients) -> Self {
        let HubClients { connections, subscriptions, clients } = all;
        let connections = connections as u64;
        let subscriptions = subscriptions as u64;
        let clients = clients.into_iter().take(MAX_CLIENTS).map(GatewayClient::from).collect();
        Self { connections, subscriptions, clients }
    }
}

impl From<HubClient> for GatewayClient {
    fn from(client: HubClient) -> Self {
        let HubClient { tenant, user, subscriptions, queued, connected } = client;
        let user = user.map(|user| user.chars().take(MAX_NAME).collect());
        let tenant = tenant.as_str().to_owned();
        let connected_ms = millis(connected);
        Self { tenant, user, subscriptions: subscriptions as u64, queued, connected_ms }
    }
}

/// Clients of all gateways that told of them lately, by the gateways' names.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EdgeClients {
    pub(crate) gateways: Vec<GatewayTold>,
}

/// What one gateway told.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GatewayTold {
    pub(crate) gateway: String,
    /// How long ago.
    pub(crate) told_ms: u64,
    /// All its connections.
    pub(crate) connections: u64,
    /// All their subscriptions.
    pub(crate) subscriptions: u64,
    /// Some of the connections, at most 100.
    pub(crate) clients: Vec<GatewayClient>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_keeps_to_the_bounds_that_the_document_tells() {
        let read = |text: &str| serde_json::from_str::<GatewayClients>(text).unwrap();
        assert_eq!(read("{}"), GatewayClients::default());
        let with = |count: &str, user: &str| {
            let client = format!(
                r#"{{"tenant":"","user":"{user}","subscriptions":{count},"queued":0,"connected_ms":0}}"#
            );
            read(&format!(r#"{{"connections":1.0,"clients":[{client}]}}"#))
        };
        assert!(with("9007199254740991", &"ü".repeat(128)).is_bounded());
        assert!(!with("9007199254740992", "").is_bounded());
        assert!(!with("0", &"ü".repeat(129)).is_bounded());
    }
}
