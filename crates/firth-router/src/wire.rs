//! What goes over the wire to gateways as JSON, and what comes back. Shared by both halves.
//!
//! ```json
//! {"gateway_id":"gw-1","node":"r1","batch":17,"topic":"changes",
//!  "events":[{"seq":912,"partition_id":0,"epoch":3,"event_type":"update","tenant":"acme","collection":"orders","document_id":"42",
//!             "subscriptions":[{"id":"s1"},{"id":"s2","leaves":true}],"payload":{"state":"paid"},"before":{"state":"new"}}],
//!  "gap":{"events":[{"partition_id":0,"seq":900}],"subscriptions":["s9"]}}
//! ```
//! The answer is `{"results":[{"status":"accepted"},{"status":"refused","reason":"…"}]}`, one per event in order; an empty answer accepts all.

use crate::error::{Error, ErrorKind, Result};
use crate::event::{Document, Event};
use crate::lane::{Answer, Batch, Gap, Item};
use crate::name::{GatewayId, SubscriptionId};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

/// The path that batches are posted to.
pub const PATH: &str = "/internal/v1/streamer/events";
/// The header that names the sending node.
pub const NODE_HEADER: &str = "x-streamer-node";

/// What the subjects of batches on NATS begin with, unless configured; a dot and the gateway's name follow.
pub const NATS_SUBJECT: &str = "syntrix.streamer.events";

/// A batch as it is written.
#[derive(Serialize)]
pub(crate) struct BatchOut<'a> {
    pub(crate) gateway_id: &'a GatewayId,
    pub(crate) node: &'a str,
    pub(crate) batch: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) topic: &'a str,
    #[serde(serialize_with = "events")]
    pub(crate) events: &'a [Item],
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "gap")]
    pub(crate) gap: Option<&'a Gap>,
}

impl<'a> BatchOut<'a> {
    pub(crate) fn new(gateway_id: &'a GatewayId, node: &'a str, batch: &'a Batch) -> Self {
        let Batch { id, topic, items, gap } = batch;
        Self { gateway_id, node, batch: *id, topic, events: items, gap: gap.as_ref() }
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "a document is not valid JSON").with_source(error)
        })
    }
}

#[derive(Serialize)]
struct EventOut<'a> {
    seq: u64,
    partition_id: u32,
    #[serde(skip_serializing_if = "is_zero")]
    appended_ms: u64,
    epoch: u64,
    event_type: &'a str,
    tenant: &'a str,
    collection: &'a str,
    document_id: &'a str,
    subscriptions: Vec<ForOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "is_zero")]
    committed_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

#[derive(Serialize)]
struct ForOut<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    leaves: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn raw(document: &Document) -> serde_json::Result<&RawValue> {
    serde_json::from_slice(document.text())
}

fn events<S: Serializer>(items: &&[Item], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let mut out = serializer.serialize_seq(Some(items.len()))?;
    for item in *items {
        let Event { operation, tenant, collection, key, before, after, committed_ms, .. } = &*item.event;
        let text = |document: &Option<Document>| -> std::result::Result<Option<Box<RawValue>>, S::Error> {
            document
                .as_ref()
                .map(|document| raw(document).map(ToOwned::to_owned))
                .transpose()
                .map_err(serde::ser::Error::custom)
        };
        let (payload, before) = (text(after)?, text(before)?);
        let subscriptions = item
            .wanted
            .iter()
            .map(|one| ForOut { id: one.subscription.as_str(), leaves: one.leaves })
            .collect();
        out.serialize_element(&EventOut {
            seq: item.position.seq,
            partition_id: item.position.partition,
            appended_ms: item.appended_ms,
            epoch: item.epoch,
            event_type: operation.as_str(),
            tenant: tenant.as_str(),
            collection,
            document_id: key,
            subscriptions,
            payload: payload.as_deref(),
            before: before.as_deref(),
            committed_ms: *committed_ms,
            traceparent: item.trace.as_deref(),
        })?;
    }
    out.end()
}

fn gap<S: Serializer>(gap: &Option<&Gap>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let Some(gap) = gap else { return serializer.serialize_none() };
    let events = gap.positions().map(|at| PlaceIn { partition_id: at.partition, seq: at.seq }).collect();
    let subscriptions = gap.subscriptions().map(|names| names.iter().cloned().collect());
    GapIn { events, subscriptions, lost: gap.lost(), all: gap.concerns_all() }.serialize(serializer)
}

/// A batch as a gateway reads it.
#[derive(Clone, Debug, Deserialize)]
pub struct BatchIn {
    /// Whom it is for.
    pub gateway_id: GatewayId,
    /// The node that sent it.
    #[serde(default)]
    pub node: String,
    /// Its number at that node.
    #[serde(default)]
    pub batch: u64,
    /// The topic that its events were read from; partitions and their epochs are the topic's. Empty if the router is an older one.
    #[serde(default)]
    pub topic: String,
    /// The events.
    pub events: Vec<EventIn>,
    /// What was left out before.
    #[serde(default)]
    pub gap: Option<GapIn>,
}

/// An event as a gateway reads it.
#[derive(Clone, Debug, Deserialize)]
pub struct EventIn {
    /// Its place in the partition.
    pub seq: u64,
    /// The partition.
    pub partition_id: u32,
    /// When its record was appended, in milliseconds of Unix time; 0 if the router does not say. The same place with another time is another
    /// event: the log lost the former one.
    #[serde(default)]
    pub appended_ms: u64,
    /// Under which ownership of the partition it was read.
    #[serde(default)]
    pub epoch: u64,
    /// What happened: `insert`, `update`, `replace`, `delete`, `snapshot`.
    pub event_type: String,
    /// Whose document it is.
    pub tenant: String,
    /// The collection.
    pub collection: String,
    /// The document's key.
    pub document_id: String,
    /// Who wants it.
    pub subscriptions: Vec<ForIn>,
    /// The document after the change.
    #[serde(default)]
    pub payload: Option<Box<RawValue>>,
    /// The document before the change, if known.
    #[serde(default)]
    pub before: Option<Box<RawValue>>,
    /// When it was committed at the source, in milliseconds of Unix time.
    #[serde(default)]
    pub committed_ms: u64,
    /// The W3C trace context that it was sent with.
    #[serde(default)]
    pub traceparent: Option<String>,
}

/// A subscription that an event is for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ForIn {
    /// Which one.
    pub id: SubscriptionId,
    /// The document has left what it sees.
    #[serde(default)]
    pub leaves: bool,
}

/// Events that were left out, or subscriptions that have come from another gateway and may have missed some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapIn {
    /// Which, as far as they are known.
    pub events: Vec<PlaceIn>,
    /// Whose; `null`: any of low priority, or any whatsoever if it is for `all`.
    pub subscriptions: Option<Vec<SubscriptionId>>,
    /// Any subscription may have missed events, whatever its priority.
    #[serde(default, skip_serializing_if = "is_false")]
    pub all: bool,
    /// So many were removed from the topic before they were routed: nobody knows whose.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

/// The place of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceIn {
    /// The partition.
    pub partition_id: u32,
    /// The place in it.
    pub seq: u64,
}

/// The answer to a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// One per event, in order.
    pub results: Vec<ResultLine>,
}

/// The answer to one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultLine {
    /// `accepted` or `refused`.
    pub status: Status,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a gateway says to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Done with it.
    Accepted,
    /// Does not want it, or not now.
    Refused,
}

/// The longest reason that is kept, in bytes.
const MAX_REASON: usize = 500;

impl Results {
    /// Reads an answer. Nothing at all accepts everything.
    pub(crate) fn read(body: &[u8]) -> Result<Option<Vec<Answer>>> {
        if body.trim_ascii().is_empty() || body.trim_ascii() == b"{}" {
            return Ok(None);
        }
        let results: Self = serde_json::from_slice(body)
            .map_err(|error| Error::invalid("the gateway's answer is not understood").with_source(error))?;
        let answer = |line: ResultLine| match line.status {
            Status::Accepted => Answer::Accepted,
            Status::Refused => {
                let mut reason = line.reason.unwrap_or_else(|| "refused without a reason".to_owned());
                reason.truncate(reason.floor_char_boundary(MAX_REASON));
                Answer::Refused(reason)
            }
        };
        Ok(Some(results.results.into_iter().map(answer).collect()))
    }
}

impl From<&Answer> for ResultLine {
    fn from(answer: &Answer) -> Self {
        match answer {
            Answer::Accepted => Self { status: Status::Accepted, reason: None },
            Answer::Refused(reason) => Self { status: Status::Refused, reason: Some(reason.clone()) },
        }
    }
}
