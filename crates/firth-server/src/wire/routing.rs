//! Routing on the wire: gateways, subscriptions, what the router does with them, and why.

use super::lenient::{maybe_whole, objects};
use super::millis;
use firth_router::event::Priority;
use firth_router::filter::Condition;
use firth_router::lane::{Circuit, LaneAccounting};
use firth_router::node::{LaneStatus, ParkedPartition};
use firth_router::registry::{GatewaySeen, Overflow, Seen, Subscription};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;
use utoipa::ToSchema;

/// A gateway to register; everything has a default.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewGateway {
    /// Where it listens: `http://host:port`, `https://…`, `nats://…`, `tls://…`; none if it opens
    /// the connection itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// Its wire: `http`, `grpc` or `nats`; the configured one unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) protocol: Option<firth_router::config::Protocol>,
    /// How long it counts as alive without a heartbeat; 90 unless set, 0 for ever.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_whole")]
    pub(crate) ttl_seconds: Option<u64>,
}

/// A subscription to register.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSubscription {
    /// Which collection it is about.
    pub(crate) collection: String,
    /// Only this document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<String>,
    /// Only documents for which this CEL expression is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<String>,
    /// Only documents for which all of these hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    #[schema(value_type = Vec<Object>)]
    pub(crate) conditions: Vec<Condition>,
    /// The gateway that holds it, with the mode `direct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<String>,
    /// `direct`, `hash` or `broadcast`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) overflow: Option<Overflow>,
    /// How long it lives without a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_whole")]
    pub(crate) ttl_seconds: Option<u64>,
}

/// How long it lives without a heartbeat; send one before half of it is over.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Alive {
    pub(crate) ttl_seconds: u64,
}

/// How many subscriptions went with a gateway.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GatewayGone {
    pub(crate) subscriptions: usize,
}

/// A subscription as it is registered.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SubscriptionShown {
    pub(crate) tenant: String,
    pub(crate) id: String,
    pub(crate) collection: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub(crate) conditions: Vec<Condition>,
    pub(crate) mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<String>,
    #[schema(value_type = String)]
    pub(crate) priority: Priority,
    #[schema(value_type = String)]
    pub(crate) overflow: Overflow,
    pub(crate) ttl_seconds: u64,
    /// How long it lives from now on, unless a heartbeat comes or its gateway gives signs of life.
    pub(crate) remaining_ms: u64,
}

impl SubscriptionShown {
    pub(crate) fn new(subscription: &Subscription, remaining_ms: u64) -> Self {
        Self {
            tenant: subscription.tenant.to_string(),
            id: subscription.id.to_string(),
            collection: subscription.collection.to_string(),
            document: subscription.document.as_deref().map(str::to_owned),
            filter: subscription.filter.clone(),
            conditions: subscription.conditions.clone(),
            mode: subscription.target.mode().to_owned(),
            gateway: subscription.gateway().map(ToString::to_string),
            priority: subscription.priority,
            overflow: subscription.overflow,
            ttl_seconds: subscription.ttl_seconds,
            remaining_ms,
        }
    }
}

impl From<&Seen> for SubscriptionShown {
    fn from(seen: &Seen) -> Self {
        Self::new(&seen.subscription, millis(seen.remaining))
    }
}

/// A page of subscriptions; `next` continues it as `after`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Subscriptions {
    pub(crate) subscriptions: Vec<SubscriptionShown>,
    pub(crate) next: Option<String>,
}

/// Where events are: `taken = delivered + parked + dead + gapped + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct BooksShown {
    pub(crate) taken: u64,
    pub(crate) delivered: u64,
    /// Left to be read from the topic later.
    pub(crate) parked: u64,
    pub(crate) dead: u64,
    /// Left out, and the gateway knows.
    pub(crate) gapped: u64,
    pub(crate) in_flight: u64,
    pub(crate) balanced: bool,
}

impl From<LaneAccounting> for BooksShown {
    fn from(books: LaneAccounting) -> Self {
        let LaneAccounting { taken, delivered, dead, gapped, parked, held } = books;
        Self { taken, delivered, parked, dead, gapped, in_flight: held, balanced: books.balance() }
    }
}

impl std::iter::Sum for BooksShown {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self { balanced: true, ..Self::default() }, |sum, one| Self {
            taken: sum.taken + one.taken,
            delivered: sum.delivered + one.delivered,
            parked: sum.parked + one.parked,
            dead: sum.dead + one.dead,
            gapped: sum.gapped + one.gapped,
            in_flight: sum.in_flight + one.in_flight,
            balanced: sum.balanced && one.balanced,
        })
    }
}

/// A node of the router, and its books since it started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NodeShown {
    pub(crate) node: String,
    /// How long ago it told this; more than half a minute: it is gone.
    pub(crate) told_ms: u64,
    pub(crate) books: BooksShown,
}

/// A gateway, and how this node stands to it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GatewayShown {
    pub(crate) id: String,
    pub(crate) endpoint: String,
    pub(crate) protocol: Option<String>,
    /// How many subscriptions name it.
    pub(crate) subscriptions: usize,
    /// How long it counts as alive without another heartbeat; none: for ever.
    pub(crate) remaining_ms: Option<u64>,
    /// `ok`, `soft` or `hard` (pressure), `parked`, `unreachable`, `probing`, or `absent`: it has
    /// events here and is not registered.
    pub(crate) state: String,
    /// Its lane at this node, once it had events.
    pub(crate) lane: Option<LaneShown>,
}

/// The lane of a gateway.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LaneShown {
    pub(crate) held: usize,
    /// Batches in flight, of `window` at most.
    pub(crate) batches: usize,
    pub(crate) window: usize,
    pub(crate) pressure: String,
    /// How long until a batch is sent as a probe, while the gateway is unreachable.
    #[serde(default)]
    pub(crate) probe_ms: Option<u64>,
    /// Partitions that it is fed from the topic for.
    pub(crate) parked: Vec<u32>,
    /// How far it is with each of them.
    #[serde(default)]
    pub(crate) catch_up: Vec<CatchUpShown>,
    pub(crate) books: BooksShown,
}

/// How far a gateway is that is fed from the topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct CatchUpShown {
    pub(crate) partition: u32,
    /// How long it has been parked, at this node.
    pub(crate) parked_ms: u64,
    /// How many events were read again for it.
    pub(crate) taken: u64,
    /// Of how many; this grows as long as events happen.
    pub(crate) left_out: u64,
}

impl GatewayShown {
    pub(crate) fn new(id: &str, seen: Option<&GatewaySeen>, lane: Option<&LaneStatus>) -> Self {
        let gateway = seen.map(|seen| &seen.gateway);
        Self {
            id: id.to_owned(),
            endpoint: gateway.map_or_else(String::new, |gateway| gateway.endpoint.clone()),
            protocol: gateway.and_then(|gateway| gateway.protocol).map(|wire| wire.as_str().to_owned()),
            subscriptions: seen.map_or(0, |seen| seen.subscriptions),
            remaining_ms: seen.and_then(|seen| seen.remaining).map(millis),
            state: state(seen.is_some(), lane).to_owned(),
            lane: lane.map(LaneShown::from),
        }
    }
}

fn state(is_registered: bool, lane: Option<&LaneStatus>) -> &'static str {
    match lane {
        _ if !is_registered => "absent",
        Some(lane) if matches!(lane.circuit, Circuit::Open { .. }) => "unreachable",
        Some(lane) if matches!(lane.circuit, Circuit::HalfOpen { .. }) => "probing",
        Some(lane) if !lane.parked.is_empty() => "parked",
        Some(lane) if lane.pressure.as_str() != "none" => lane.pressure.as_str(),
        _ => "ok",
    }
}

impl From<&ParkedPartition> for CatchUpShown {
    fn from(parked: &ParkedPartition) -> Self {
        let ParkedPartition { partition, parked_for, taken, left_out } = *parked;
        Self { partition, parked_ms: millis(parked_for), taken, left_out }
    }
}

impl From<&LaneStatus> for LaneShown {
    fn from(lane: &LaneStatus) -> Self {
        Self {
            held: lane.held,
            batches: lane.in_flight.0,
            window: lane.in_flight.1,
            pressure: lane.pressure.as_str().to_owned(),
            probe_ms: match lane.circuit {
                Circuit::Open { until } => Some(millis(until.saturating_duration_since(Instant::now()))),
                Circuit::Closed | Circuit::HalfOpen { .. } => None,
            },
            parked: lane.parked.clone(),
            catch_up: lane.catch_up.iter().map(CatchUpShown::from).collect(),
            books: lane.accounting.into(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Gateways {
    pub(crate) gateways: Vec<GatewayShown>,
}

/// A partition of the routed topic.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RoutedPartition {
    pub(crate) partition: u32,
    /// The node that routes it.
    pub(crate) owner: Option<String>,
    /// `healthy`, `lagging`, `stale` or `failed`.
    pub(crate) health: String,
    /// Events that are not settled.
    pub(crate) lag: u64,
    /// The age of the oldest event that waits.
    pub(crate) oldest_ms: Option<u64>,
    /// Dead letters of the router.
    pub(crate) dead: u64,
    /// What this node did with its events; none before the first event that a subscription wants.
    pub(crate) books: Option<BooksShown>,
}

/// The router as this server sees it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RoutingStatus {
    /// Whether this server runs a node.
    pub(crate) running: bool,
    /// The worst of the partitions.
    pub(crate) health: String,
    pub(crate) topic: String,
    pub(crate) group: String,
    /// The name of this server's node.
    pub(crate) node: Option<String>,
    pub(crate) subscriptions: usize,
    pub(crate) gateways: usize,
    pub(crate) partitions: Vec<RoutedPartition>,
    /// All nodes, as they told it a few seconds ago.
    #[serde(default)]
    pub(crate) nodes: Vec<NodeShown>,
    /// The books of all nodes together.
    #[serde(default)]
    pub(crate) books: BooksShown,
}

/// An event to be explained, and perhaps the one subscription to ask about.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainRequest {
    #[schema(value_type = Object)]
    pub(crate) event: Box<RawValue>,
    /// Also why this one of the event's tenant does or does not get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subscription: Option<String>,
}

/// Who gets an event, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Explained {
    /// How many subscriptions match in all; the first 1000 are listed.
    pub(crate) matches: usize,
    pub(crate) subscriptions: Vec<ExplainedOne>,
    /// The one that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<ExplainedOne>,
}

/// What one subscription makes of it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ExplainedOne {
    pub(crate) tenant: String,
    pub(crate) id: String,
    pub(crate) wants: bool,
    /// The document matched before the change and does not any more.
    pub(crate) leaves: bool,
    /// The gateways that would get it now.
    pub(crate) gateways: Vec<String>,
    /// Everything that was asked, with its answer.
    pub(crate) because: Vec<String>,
}
