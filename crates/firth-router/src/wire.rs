//! What goes over the wire to gateways as JSON, and what comes back. Shared by both halves.
//!
//! ```json
//! {"gateway_id":"gw-1","node":"r1","batch":17,"topic":"changes",
//!  "events":[{"seq":912,"partition_id":0,"epoch":3,"event_type":"update","tenant":"acme","collection":"orders","document_id":"42",
//!             "subscriptions":[{"id":"s1"},{"id":"s2","leaves":true}],"payload":{"state":"paid"},"before":{"state":"new"}}],
//!  "gap":{"events":[{"partition_id":0,"seq":900}],"subscriptions":["s9"]}}
//! ```
//! A control (`truncate`, `resync`) looks to a gateway that does not know it like the delete of the
//! document `$control`, which is not there: `"event_type":"delete","document_id":"$control"`, and
//! `"control":"truncate"` says what it is. With `"all_tenants":true` it is for the collection of
//! every tenant, and `tenant` names one of them. `"missing":["col"]` names columns of the document
//! that the source does not know.
//!
//! The answer is `{"results":[{"status":"accepted"},{"status":"refused","reason":"…"}]}`, one per
//! event in order; an empty answer accepts all.

use crate::error::{Error, ErrorKind, Result};
use crate::event::{Document, Event, Operation};
use crate::lane::{Answer, Batch, Gap, Item};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use bytes::Bytes;
use serde::de::IntoDeserializer;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

/// The path that batches are posted to.
pub const PATH: &str = "/internal/v1/streamer/events";
/// The header that names the sending node.
pub const NODE_HEADER: &str = "x-streamer-node";

/// What the subjects of batches on NATS begin with, unless configured; a dot and the gateway's name
/// follow.
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
    #[serde(skip_serializing_if = "str::is_empty")]
    control: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    all_tenants: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'a str>,
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
        let Event { collection, before, after, committed_ms, missing, reason, .. } = &*item.event;
        let (operation, tenant, key) = item.on_wire();
        let text = |document: &Option<Document>| -> std::result::Result<Option<Box<RawValue>>, S::Error> {
            document
                .as_ref()
                .map(|document| raw(document).map(ToOwned::to_owned))
                .transpose()
                .map_err(serde::ser::Error::custom)
        };
        let payload = text(after)?;
        let before = text(before)?;
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
            tenant,
            collection,
            document_id: key,
            subscriptions,
            payload: payload.as_deref(),
            before: before.as_deref(),
            committed_ms: *committed_ms,
            traceparent: item.trace.as_deref(),
            control: item.control(),
            all_tenants: item.event.is_for_all_tenants(),
            reason: reason.as_deref(),
            missing: missing.iter().map(|column| &**column).collect(),
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
    /// The topic that its events were read from; partitions and their epochs are the topic's. Empty
    /// if the router is an older one.
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
    /// When its record was appended, in milliseconds of Unix time; 0 if the router does not say.
    /// The same place with another time is another event: the log lost the former one.
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
    /// What a control says about the whole collection: `truncate` or `resync`. Empty for an event
    /// of a document.
    #[serde(default)]
    pub control: String,
    /// The control is for the collection of every tenant.
    #[serde(default)]
    pub all_tenants: bool,
    /// Why the control was sent, for people.
    #[serde(default)]
    pub reason: Option<String>,
    /// Columns of the document whose values the source does not know.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl EventIn {
    /// The event as the source sent it. A control of a kind that this build does not know counts as
    /// a resync.
    pub fn to_event(&self) -> Result<Event> {
        let tenant = || Tenant::new(&self.tenant);
        let event = match (&*self.control, operation(&self.event_type)?) {
            ("", kind) => {
                let collection = self.collection.as_str();
                let key = self.document_id.as_str();
                let mut event = Event::new(kind, tenant()?, collection, key);
                event.after = document(self.payload.as_deref())?;
                event.before = document(self.before.as_deref())?;
                event.with_missing(self.missing.iter().map(String::as_str))
            }
            (control, _) => {
                let kind = if control == "truncate" { Operation::Truncate } else { Operation::Resync };
                let tenant = if self.all_tenants { None } else { Some(tenant()?) };
                let event = Event::control(kind, tenant, self.collection.as_str());
                match &self.reason {
                    Some(reason) => event.with_reason(reason.as_str()),
                    None => event,
                }
            }
        };
        let event = Event { committed_ms: self.committed_ms, ..event };
        event.check()?;
        Ok(event)
    }
}

fn operation(name: &str) -> Result<Operation> {
    let name: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    Operation::deserialize(name).map_err(|_| Error::invalid("the event's type is not known"))
}

fn document(raw: Option<&RawValue>) -> Result<Option<Document>> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(text) => Document::from_json(Bytes::copy_from_slice(text.as_bytes())).map(Some),
    }
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

/// Events that were left out, or subscriptions that have come from another gateway and may have
/// missed some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapIn {
    /// Which, as far as they are known.
    pub events: Vec<PlaceIn>,
    /// Whose; `null`: any of low priority, or any whatsoever if it is for `all`.
    pub subscriptions: Option<Vec<SubscriptionId>>,
    /// Any subscription, of any priority, may have missed events.
    #[serde(default, skip_serializing_if = "is_false")]
    pub all: bool,
    /// Number of events that were removed from the topic before the router routed them. The router
    /// cannot tell which subscriptions they were for.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Position;
    use crate::registry::{Subscription, Wanted};
    use crate::routing::Target;
    use std::sync::Arc;

    fn through(event: Event) -> EventIn {
        let tenant = Tenant::new("acme").unwrap();
        let gateway = GatewayId::new("g").unwrap();
        let id = SubscriptionId::new("s").unwrap();
        let subscription = Arc::new(Subscription::new(id, tenant, "orders", Target::Direct(gateway.clone())));
        let wanted = Wanted { subscription, leaves: false };
        let item = Item::new(Position { partition: 0, seq: 1 }, 1, Arc::new(event), &[wanted]);
        let batch = Batch { id: 1, topic: "t".into(), items: Arc::new(vec![item]), gap: None };
        let text = BatchOut::new(&gateway, "n", &batch).to_json().unwrap();
        serde_json::from_slice::<BatchIn>(&text).unwrap().events.remove(0)
    }

    #[test]
    fn an_event_is_the_same_behind_the_wire() {
        let tenant = Tenant::new("acme").unwrap();
        let document = Document::from_json(r#"{"n":1}"#).unwrap();
        for event in [
            Event::control(Operation::Truncate, None, "orders").with_reason("TRUNCATE"),
            Event::control(Operation::Resync, Some(tenant.clone()), "orders"),
            Event::new(Operation::Update, tenant, "orders", "7")
                .with_after(document)
                .with_missing(["a", "b"]),
        ] {
            let event = Event { committed_ms: 17, ..event };
            assert_eq!(through(event.clone()).to_event().unwrap(), event);
        }
    }

    /// A gateway of a build before controls reads the delete of a document that is not there, of a
    /// tenant that it knows. A control of a later build is a resync here.
    #[test]
    fn a_control_is_harmless_to_a_gateway_that_does_not_know_it() {
        let mut seen = through(Event::control(Operation::Truncate, None, "orders"));
        assert_eq!((&*seen.event_type, &*seen.tenant, &*seen.document_id), ("delete", "acme", "$control"));
        seen.control = "vacuum".to_owned();
        assert_eq!(seen.to_event().unwrap().operation, Operation::Resync);
    }

    #[test]
    fn the_form_of_a_plain_event_has_no_new_fields() {
        let tenant = Tenant::new("acme").unwrap();
        let gateway = GatewayId::new("g").unwrap();
        let event = Arc::new(Event::new(Operation::Delete, tenant, "orders", "7"));
        let item = Item::new(Position { partition: 0, seq: 1 }, 1, event, &[]);
        let batch = Batch { id: 1, topic: "t".into(), items: Arc::new(vec![item]), gap: None };
        let text = String::from_utf8(BatchOut::new(&gateway, "n", &batch).to_json().unwrap()).unwrap();
        for field in ["control", "all_tenants", "reason", "missing"] {
            assert!(!text.contains(field), "{text}");
        }
    }
}
