//! [`Subscription`] and [`Gateway`]: what is registered, as it is stored and sent.
//!
//! Fields that a newer node has stored and this one does not know are passed over: a node that left
//! the whole entry out would settle its events as unwanted.

use crate::config::Protocol;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{MAX_COLLECTION, MAX_KEY, Priority};
use crate::filter::{Condition, Filter};
use crate::matching::Interest;
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::routing::Target;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The shortest and the longest life of a subscription without a heartbeat.
pub const TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3600);

/// What may happen to low-priority events of a subscription while its gateway is under pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// Only the newest event of each document is kept; a gap marker says that others were.
    #[default]
    Conflate,
    /// New events are left out; a gap marker says so.
    Shed,
    /// Nothing is left out: the gateway falls back to reading the topic instead.
    Keep,
}

/// A subscription of a client.
///
/// Low-priority subscriptions of one gateway may have different [`Overflow`] policies; high and
/// normal priority are never shed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its name among the tenant's subscriptions.
    pub id: SubscriptionId,
    /// Whose it is.
    pub tenant: Tenant,
    /// Which collection it is about.
    pub collection: Box<str>,
    /// Only this document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Box<str>>,
    /// Only documents for which this CEL expression is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Only documents for which all of these hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Where its events go.
    pub target: Target,
    /// How urgent they are.
    #[serde(default)]
    pub priority: Priority,
    /// What may be left out under pressure, if the priority is low.
    #[serde(default)]
    pub overflow: Overflow,
    /// How long it lives without a heartbeat, in seconds; 60 to 3 600.
    #[serde(default = "default_ttl")]
    pub ttl_seconds: u64,
    /// Fields that a newer version stored: kept as they are, so that a heartbeat drops none.
    #[serde(flatten)]
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

fn default_ttl() -> u64 {
    300
}

impl Subscription {
    /// A subscription for all documents of a collection; set what narrows it.
    pub fn new(id: SubscriptionId, tenant: Tenant, collection: impl Into<Box<str>>, target: Target) -> Self {
        Self {
            id,
            tenant,
            collection: collection.into(),
            document: None,
            filter: None,
            conditions: Vec::new(),
            target,
            priority: Priority::default(),
            overflow: Overflow::default(),
            ttl_seconds: default_ttl(),
            unknown: serde_json::Map::new(),
        }
    }

    /// How long it lives without a heartbeat.
    pub fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_seconds)
    }

    /// Checks everything and answers what it asks for.
    pub fn interest(&self) -> Result<Interest> {
        if !TTL.contains(&self.ttl()) {
            return Err(Error::invalid(format!(
                "ttl_seconds is {}; give 60 to 3600, and send a heartbeat before half of it is over",
                self.ttl_seconds
            )));
        }
        let texts = [
            ("collection", Some(&self.collection), MAX_COLLECTION),
            ("document", self.document.as_ref(), MAX_KEY),
        ];
        for (field, text, limit) in texts {
            if let Some(text) = text
                && (text.is_empty() || text.len() > limit)
            {
                let context = format!("a subscription's {field} has {} bytes; give 1 to {limit}", text.len());
                return Err(Error::invalid(context).with_field(field).with_limit(limit as u64));
            }
        }
        let filter = match (&self.filter, &self.conditions[..]) {
            (None, []) => None,
            (Some(source), []) => Some(Filter::parse(source)?),
            (None, conditions) => Some(Filter::all_of(conditions)?),
            (Some(_), _) => return Err(Error::invalid("give either a filter or conditions, not both")),
        };
        let tenant = self.tenant.clone();
        let collection = self.collection.clone();
        Ok(Interest { tenant, collection, document: self.document.clone(), filter })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers can always be written")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "a stored subscription cannot be read").with_source(error)
        })
    }
}

/// A receiver of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// Its name.
    pub id: GatewayId,
    /// Where it listens: `http://host:port`, `nats://host:port`; empty if it opens the connection
    /// itself.
    #[serde(default)]
    pub endpoint: String,
    /// Its wire; the configured one if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// How long it counts as alive without a heartbeat, in seconds; 0: it was configured and never
    /// expires.
    #[serde(default = "default_gateway_ttl")]
    pub ttl_seconds: u64,
    /// Which process it is, so that two of one name are told apart; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Patterns of the tenants whose spread events it may get, as its registrant is limited; empty:
    /// all. Subscriptions that name the gateway are not concerned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
    /// Fields that a newer version stored: kept as they are, so that a heartbeat drops none.
    #[serde(flatten)]
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

/// A scheme that some wire knows, and a host, with a port or not; or nothing.
fn is_endpoint(text: &str) -> bool {
    let schemes = ["http://", "https://", "nats://", "tls://"];
    let authority = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_host = |authority: &str| {
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:[]".contains(c);
        !authority.is_empty() && authority.chars().all(is_plain)
    };
    text.is_empty() || authority.is_some_and(is_host)
}

fn default_gateway_ttl() -> u64 {
    90
}

impl Gateway {
    /// A gateway at an endpoint.
    pub fn new(id: GatewayId, endpoint: impl Into<String>) -> Self {
        let ttl_seconds = default_gateway_ttl();
        Self {
            id,
            endpoint: endpoint.into(),
            protocol: None,
            ttl_seconds,
            instance: None,
            tenants: Vec::new(),
            unknown: serde_json::Map::new(),
        }
    }

    /// `Fenced` if a process other than `instance` is registered.
    pub(super) fn check_instance(&self, instance: Option<&str>) -> Result<()> {
        match (self.instance.as_deref(), instance) {
            (Some(registered), Some(caller)) if registered != caller => Err(Error::new(
                ErrorKind::Fenced,
                format!("another process has registered as the gateway {}: give each its own id", self.id),
            )),
            _ => Ok(()),
        }
    }

    /// How long it counts as alive without a heartbeat; `None`: for ever.
    pub fn ttl(&self) -> Option<Duration> {
        (self.ttl_seconds > 0).then(|| Duration::from_secs(self.ttl_seconds))
    }

    /// Checks what no type can: the endpoint and the time.
    pub fn check(&self) -> Result<()> {
        if self.endpoint.len() > 2048 {
            let error = Error::invalid("endpoint: a gateway's endpoint has at most 2048 bytes");
            return Err(error.with_field("endpoint").with_limit(2048));
        }
        if !is_endpoint(&self.endpoint) {
            return Err(Error::invalid(
                "endpoint: write http://host:port, https://host:port, nats://host:port or tls://host:port; leave it out if the gateway opens the connection itself",
            )
            .with_field("endpoint"));
        }
        if self.ttl_seconds > 3600 {
            let error = Error::invalid("ttl_seconds: a gateway's time is at most 3600");
            return Err(error.with_field("ttl_seconds").with_limit(3600));
        }
        if self.instance.as_ref().is_some_and(|instance| instance.is_empty() || instance.len() > 64) {
            return Err(Error::invalid("instance: give 1 to 64 bytes").with_field("instance").with_limit(64));
        }
        Ok(())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers can always be written")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "a stored gateway cannot be read").with_source(error)
        })
    }
}
