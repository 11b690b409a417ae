//! The `routing:` section of the configuration. Every option has a default, is checked, and is
//! refused by name when it is wrong or unknown.
//!
//! ```yaml
//! routing:
//!   mode: direct            # direct, consistent_hash, broadcast
//!   num_partitions: 1
//!   batch: { max_size: 100, max_wait: 50ms, flush_interval: 10ms }
//!   backpressure: { soft_watermark: 70, hard_watermark: 90, queue_size: 10000, queue_bytes: 64MiB }
//!   delivery:
//!     protocol: http        # http, grpc, nats
//!     timeout: 5s
//!     max_in_flight: 64     # unacknowledged batches per gateway
//!     retry: { max_attempts: 3, initial_delay: 100ms, max_delay: 5s, multiplier: 2.0 }
//!     breaker: { failures: 5, open_for: 30s, max_ejected: 10 }   # percent of gateways that count as unreachable at once
//!     grpc: { stream: true }   # false: one call per batch
//!     token_hosts: "10.0.* *.edge.example.com"   # where the token for gateways may go; else: hosts of a private network
//!     tls: { ca_file: ca.pem, cert_file: node.pem, key_file: node.key }   # for https:// endpoints and NATS over TLS
//!     nats: { url: "nats://host:4222", subject: syntrix.streamer.events, ack: reply, token_file: token }   # or ack: jetstream, stream: NAME; or nkey_file, creds_file
//!   broadcast: { max_fanout: 64 }
//!   subscriptions: { ttl: 5m, per_gateway: 10000, per_tenant: 50000, total: 1000000, unindexed_per_tenant: 1000 }
//!   dlq: { enabled: true, max_age: 7d }
//! ```
//!
//! It is read from any serde format, so the caller chooses the YAML reader.

mod node;
mod section;
mod units;
mod wires;

pub use node::NodeConfig;
pub use units::{parse_bytes, parse_duration};
#[cfg(feature = "nats")]
pub(crate) use wires::check_nats_url;
pub use wires::{NatsAck, NatsConfig, TlsFiles};

use crate::error::{Error, Result};
use section::Section;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::time::Duration;

/// How the gateway of a subscription is found, unless the subscription says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The subscription names its gateway.
    #[default]
    Direct,
    /// By a hash of the subscription's id over all gateways.
    ConsistentHash,
    /// To all gateways; they filter.
    Broadcast,
}

/// The wire to gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/2 POST of JSON.
    #[default]
    Http,
    /// gRPC.
    Grpc,
    /// NATS request and acknowledgement.
    Nats,
}

impl Protocol {
    /// Its name, as the configuration has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Nats => "nats",
        }
    }
}

/// Upper bounds of a batch. Batches form by themselves while the window is full; an idle gateway
/// waits for nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Events in one batch, 1 to 10 000.
    pub max_size: usize,
    /// An event waits at most this long for others of its batch.
    pub max_wait: Duration,
    /// How often waiting events were looked after by a tick. Here a timer ends `max_wait` at the
    /// very moment, so nothing waits any longer for a tick: it is read and checked, for files that
    /// have it, and changes nothing.
    pub flush_interval: Duration,
}

/// When a gateway's queue counts as full.
#[derive(Clone, Debug, PartialEq)]
pub struct Backpressure {
    /// Percent of the queue from which low priority is shed or conflated.
    pub soft_watermark: u8,
    /// Percent of the queue from which the gateway is fed from the topic instead.
    pub hard_watermark: u8,
    /// Events in the queue of one gateway.
    pub queue_size: usize,
    /// Bytes in the queue of one gateway.
    pub queue_bytes: usize,
}

/// When a refused event is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Attempts in all; 1 means no retry.
    pub max_attempts: u32,
    /// The wait before the second attempt.
    pub initial_delay: Duration,
    /// The longest wait.
    pub max_delay: Duration,
    /// By how much the wait grows.
    pub multiplier: f64,
}

/// When a gateway counts as unreachable.
#[derive(Clone, Debug, PartialEq)]
pub struct Breaker {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open before one probe goes out.
    pub open_for: Duration,
    /// At most this percentage of the gateways count as unreachable at the same time, but always
    /// one may.
    pub max_ejected: u8,
}

/// How batches reach gateways.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The wire, unless a gateway registered with another.
    pub protocol: Protocol,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Unacknowledged batches per gateway, 1 to 1 024. The window adapts below it.
    pub max_in_flight: usize,
    /// Retries of refused events.
    pub retry: Retry,
    /// The breaker of each gateway.
    pub breaker: Breaker,
    /// Whether batches share one lasting gRPC call, where a gateway offers it.
    pub grpc_stream: bool,
    /// Certificates.
    pub tls: TlsFiles,
    /// The hosts that the token for gateways goes to, with `*` for any letters; `None`: those of a
    /// private network.
    pub token_hosts: Option<Vec<String>>,
    /// Delivery through NATS.
    pub nats: NatsConfig,
}

/// Quotas of subscriptions.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscriptions {
    /// How long a subscription lives without a heartbeat, unless it says otherwise: 60 s to 1 h.
    pub ttl: Duration,
    /// Per gateway.
    pub per_gateway: usize,
    /// Per tenant.
    pub per_tenant: usize,
    /// In all.
    pub total: usize,
    /// Filters of one tenant that no index can answer.
    pub unindexed_per_tenant: usize,
}

/// What happens to events that no attempt could deliver.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetterPolicy {
    /// Whether they are kept.
    pub enabled: bool,
    /// How long.
    pub max_age: Duration,
}

/// Everything under `routing:`.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingConfig {
    /// How gateways are found.
    pub mode: Mode,
    /// Partitions of the topic of events.
    pub num_partitions: u32,
    /// Batches.
    pub batch: Batch,
    /// Pressure.
    pub backpressure: Backpressure,
    /// Delivery.
    pub delivery: Delivery,
    /// At most this many gateways get a broadcast event; more gateways than that are an error,
    /// never a random choice.
    pub max_fanout: usize,
    /// Quotas.
    pub subscriptions: Subscriptions,
    /// Dead letters.
    pub dlq: DeadLetterPolicy,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let millis = Duration::from_millis;
        Self {
            mode: Mode::Direct,
            num_partitions: 1,
            batch: Batch { max_size: 100, max_wait: millis(50), flush_interval: millis(10) },
            backpressure: Backpressure {
                soft_watermark: 70,
                hard_watermark: 90,
                queue_size: 10_000,
                queue_bytes: 64 << 20,
            },
            delivery: Delivery {
                protocol: Protocol::Http,
                timeout: seconds(5),
                max_in_flight: 64,
                retry: Retry {
                    max_attempts: 3,
                    initial_delay: millis(100),
                    max_delay: seconds(5),
                    multiplier: 2.0,
                },
                breaker: Breaker { failures: 5, open_for: seconds(30), max_ejected: 10 },
                grpc_stream: true,
                tls: TlsFiles::default(),
                token_hosts: None,
                nats: NatsConfig::default(),
            },
            max_fanout: 64,
            subscriptions: Subscriptions {
                ttl: seconds(300),
                per_gateway: 10_000,
                per_tenant: 50_000,
                total: 1_000_000,
                unindexed_per_tenant: 1_000,
            },
            dlq: DeadLetterPolicy { enabled: true, max_age: seconds(7 * 86_400) },
        }
    }
}

impl RoutingConfig {
    /// Reads the section. `value` is what stands under `routing:`; nothing at all means the
    /// defaults.
    pub fn from_value(value: &Value) -> Result<Self> {
        Self::beside(value, &[])
    }

    /// The same where there are other options as well, which are read elsewhere.
    fn beside(value: &Value, others: &[&'static str]) -> Result<Self> {
        let mut config = Self::default();
        let mut root = Section::open("routing", value)?;
        root.know(others);
        root.choice(
            "mode",
            &mut config.mode,
            &[
                ("direct", Mode::Direct),
                ("consistent_hash", Mode::ConsistentHash),
                ("broadcast", Mode::Broadcast),
            ],
        )?;
        root.number("num_partitions", &mut config.num_partitions, 1..=1024)?;
        root.section("batch", |section| config.batch.read(section))?;
        root.section("backpressure", |section| config.backpressure.read(section))?;
        root.section("delivery", |section| config.delivery.read(section))?;
        root.section("broadcast", |section| section.number("max_fanout", &mut config.max_fanout, 1..=4096))?;
        root.section("subscriptions", |section| config.subscriptions.read(section))?;
        root.section("dlq", |section| config.dlq.read(section))?;
        root.close()?;
        Ok(config)
    }
}

impl<'de> Deserialize<'de> for RoutingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_value(&value).map_err(serde::de::Error::custom)
    }
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

impl Batch {
    fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.number("max_size", &mut self.max_size, 1..=10_000)?;
        section.duration("max_wait", &mut self.max_wait, Duration::ZERO..=Duration::from_secs(60))?;
        section.duration("flush_interval", &mut self.flush_interval, MS..=Duration::from_secs(60))
    }
}

impl Backpressure {
    fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.number("soft_watermark", &mut self.soft_watermark, 1..=99)?;
        section.number("hard_watermark", &mut self.hard_watermark, 1..=99)?;
        section.number("queue_size", &mut self.queue_size, 10..=10_000_000)?;
        section.bytes("queue_bytes", &mut self.queue_bytes, 1 << 16..=64 << 30)?;
        if self.soft_watermark < self.hard_watermark {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "routing.backpressure.soft_watermark is {} and hard_watermark {}: soft must be lower",
            self.soft_watermark, self.hard_watermark
        )))
    }
}

impl Delivery {
    fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        let protocols = [("http", Protocol::Http), ("grpc", Protocol::Grpc), ("nats", Protocol::Nats)];
        section.choice("protocol", &mut self.protocol, &protocols)?;
        section.duration("timeout", &mut self.timeout, MS * 10..=Duration::from_secs(300))?;
        section.number("max_in_flight", &mut self.max_in_flight, 1..=1024)?;
        section.section("retry", |section| self.retry.read(section))?;
        section.section("breaker", |section| {
            section.number("failures", &mut self.breaker.failures, 1..=1000)?;
            section.number("max_ejected", &mut self.breaker.max_ejected, 1..=100)?;
            section.duration("open_for", &mut self.breaker.open_for, MS * 10..=Duration::from_secs(3600))
        })?;
        section.section("grpc", |section| section.flag("stream", &mut self.grpc_stream))?;
        section.section("tls", |section| self.tls.read(section))?;
        let mut hosts = None;
        section.words("token_hosts", &mut hosts)?;
        let split = |hosts: String| {
            hosts.split([' ', ',']).filter(|host| !host.is_empty()).map(str::to_owned).collect()
        };
        self.token_hosts = hosts.map(split).or_else(|| self.token_hosts.take());
        section.section("nats", |section| self.nats.read(section))
    }
}

impl Retry {
    fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.number("max_attempts", &mut self.max_attempts, 1..=1000)?;
        section.duration("initial_delay", &mut self.initial_delay, MS..=DAY)?;
        section.duration("max_delay", &mut self.max_delay, MS..=DAY)?;
        section.fraction("multiplier", &mut self.multiplier, 1.0..=100.0)?;
        if self.initial_delay <= self.max_delay {
            return Ok(());
        }
        Err(Error::invalid("routing.delivery.retry.initial_delay is longer than max_delay"))
    }
}

impl Subscriptions {
    fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.duration("ttl", &mut self.ttl, Duration::from_secs(60)..=Duration::from_secs(3600))?;
        section.number("per_gateway", &mut self.per_gateway, 1..=100_000_000)?;
        section.number("per_tenant", &mut self.per_tenant, 1..=100_000_000)?;
        section.number("total", &mut self.total, 1..=100_000_000)?;
        section.number("unindexed_per_tenant", &mut self.unindexed_per_tenant, 0..=1_000_000)
    }
}

impl DeadLetterPolicy {
    fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.flag("enabled", &mut self.enabled)?;
        section.duration("max_age", &mut self.max_age, Duration::from_secs(1)..=DAY * 3660)
    }
}

#[cfg(test)]
mod tests;
