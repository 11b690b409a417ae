//! [`Frame`]: an event as clients get it, encoded once and shared by the journal and every socket.
//!
//! What differs between clients (which of their subscriptions it is for) stands in front of the
//! shared text, see [`crate::protocol::server`].

use crate::position::Position;
use firth_router::event::{Document, Event, Operation};
use firth_router::{Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::value::RawValue;
use std::fmt;

/// An event and its text, not yet placed.
pub(crate) struct Body {
    pub(crate) event: Event,
    /// The end of the message: `"event":{…}}`, or `"reason":…}` for a control.
    text: Box<str>,
}

/// An event in its place.
pub(crate) struct Frame {
    /// Where a client stands that has seen everything up to it.
    pub(crate) at: Position,
    /// The partition whose record it is.
    pub(crate) partition: u32,
    body: Body,
}

#[derive(Serialize)]
struct Wire<'a> {
    op: &'static str,
    collection: &'a str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "is_zero")]
    committed_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    observed_ms: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'a str>,
}

/// What a client is told of a control: which collection it must load again, and why.
#[derive(Serialize)]
struct ControlWire<'a> {
    reason: &'static str,
    collection: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Why the clients of a control load their state again.
pub(crate) const fn control_reason(operation: Operation) -> Option<&'static str> {
    match operation {
        Operation::Truncate => Some("truncated"),
        Operation::Resync => Some("source"),
        _ => None,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Body {
    /// Encodes the event; fails if a document is not what it claims to be.
    pub(crate) fn new(event: Event) -> Result<Self> {
        if let Some(reason) = control_reason(event.operation) {
            let wire =
                ControlWire { reason, collection: &event.collection, message: event.reason.as_deref() };
            let text = serde_json::to_string(&wire).map_err(|_| corrupt())?;
            let text = text.strip_prefix('{').unwrap_or(&text).into();
            return Ok(Self { event, text });
        }
        let wire = Wire {
            op: event.operation.as_str(),
            collection: &event.collection,
            key: &event.key,
            before: event.before.as_ref().map(raw).transpose()?,
            after: event.after.as_ref().map(raw).transpose()?,
            committed_ms: event.committed_ms,
            observed_ms: event.observed_ms,
            missing: event.missing.iter().map(|column| &**column).collect(),
        };
        let mut text = String::with_capacity(128 + 2 * event.key.len() + size(&event));
        text.push_str("\"event\":");
        text.push_str(&serde_json::to_string(&wire).map_err(|_| corrupt())?);
        text.push('}');
        // Between the parts of a document there may be line ends, which would end a line of
        // server-sent events. Inside of texts JSON has none.
        if text.contains(['\n', '\r']) {
            text = text.replace(['\n', '\r'], " ");
        }
        Ok(Self { event, text: text.into() })
    }

    /// What it costs to keep, in bytes.
    pub(crate) fn cost(&self) -> usize {
        size_of::<Frame>()
            + self.text.len()
            + self.event.key.len()
            + self.event.collection.len()
            + size(&self.event)
    }
}

impl Frame {
    pub(crate) fn new(at: Position, partition: u32, body: Body) -> Self {
        Self { at, partition, body }
    }

    /// The number of its record, or how many events of its tenant there were.
    pub(crate) fn offset(&self) -> u64 {
        self.at.offsets.get(self.partition)
    }

    /// Where a client stands that lacks this one, but nothing before.
    pub(crate) fn before(&self) -> Position {
        Position::new(self.at.epoch, self.at.offsets.before(self.partition))
    }

    /// For a control: why clients load their state again.
    pub(crate) fn control_reason(&self) -> Option<&'static str> {
        control_reason(self.body.event.operation)
    }

    pub(crate) fn event(&self) -> &Event {
        &self.body.event
    }

    pub(crate) fn text(&self) -> &str {
        &self.body.text
    }

    pub(crate) fn cost(&self) -> usize {
        self.body.cost() + self.at.offsets.heap()
    }
}

fn size(event: &Event) -> usize {
    [&event.before, &event.after].into_iter().flatten().map(|document| document.text().len()).sum()
}

fn raw(document: &Document) -> Result<&RawValue> {
    serde_json::from_slice(document.text()).map_err(|_| corrupt())
}

fn corrupt() -> Error {
    Error::new(ErrorKind::Corrupt, "a document of an event is not valid JSON")
}

/// Never shows the text.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} {:?})", self.at, self.body.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_router::Tenant;
    use firth_router::event::Operation;

    #[test]
    fn the_text_is_one_line_and_says_no_tenant() {
        let document = Document::from_json("{\n \"a\":\r\n 1}").unwrap();
        let event = Event::new(Operation::Insert, Tenant::new("acme").unwrap(), "orders", "4\"2");
        let body = Body::new(event.with_after(document)).unwrap();
        let expected = r#""event":{"op":"insert","collection":"orders","key":"4\"2","after":{  "a":   1}}}"#;
        assert_eq!(&*body.text, expected);
    }
}
