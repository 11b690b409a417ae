//! Messages, receipts and records on the wire.

use super::lenient::maybe_whole;
use super::{BASE64, invalid_at, text_or_base64, unix_ms};
use base64::Engine as _;
use firth::{Message, Receipt, Record, Result};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};
use utoipa::ToSchema;

/// A header's value, or its values if the name repeats.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Values {
    One(String),
    Many(Vec<String>),
}

/// A message to send: `payload`, `payload_base64` or `json`, and optionally the rest.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = Message)]
pub(crate) struct Outgoing {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
    #[serde(deserialize_with = "any_json", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub(crate) json: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Values>,
    /// How long consumers shall not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) after_ms: Option<u64>,
    /// From when on consumers shall see it, as Unix time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) at_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) partition: Option<u32>,
}

/// `null` is JSON too, not the want of it.
fn any_json<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

impl Outgoing {
    /// The message, or what is wrong with it. `trace` is the trace context of the request, for
    /// messages without one.
    pub(crate) fn into_message(self, trace: Option<&str>) -> Result<Message> {
        let mut message = match (self.payload, self.payload_base64, self.json) {
            (Some(text), None, None) => Message::new(text),
            (None, Some(text), None) => Message::new(decode("payload_base64", &text)?),
            (None, None, Some(json)) => Message::json(&json)?,
            _ => {
                return Err(invalid_at(
                    "payload",
                    "payload: give exactly one of payload, payload_base64 and json",
                ));
            }
        };
        match (self.key, self.key_base64) {
            (None, None) => {}
            (Some(key), None) => message = message.key(key),
            (None, Some(key)) => message = message.key(decode("key_base64", &key)?),
            _ => return Err(invalid_at("key", "key: give key or key_base64, not both")),
        }
        if let Some(trace) = trace.filter(|_| !self.headers.contains_key(firth::TRACEPARENT)) {
            message = message.header(firth::TRACEPARENT, trace.to_owned());
        }
        for (name, values) in self.headers {
            let values = match values {
                Values::One(value) => vec![value],
                Values::Many(values) => values,
            };
            message = values.into_iter().fold(message, |message, value| message.header(name.clone(), value));
        }
        match (self.after_ms, self.at_ms) {
            (None, None) => {}
            (Some(after), None) => message = message.deliver_after(Duration::from_millis(after)),
            (None, Some(at)) => {
                let time = UNIX_EPOCH.checked_add(Duration::from_millis(at));
                let time = time.ok_or_else(|| invalid_at("at_ms", "at_ms: no clock shows this time"))?;
                message = message.deliver_at(time);
            }
            _ => return Err(invalid_at("after_ms", "after_ms: give after_ms or at_ms, not both")),
        }
        Ok(match self.partition {
            Some(partition) => message.to_partition(partition),
            None => message,
        })
    }
}

fn decode(field: &'static str, text: &str) -> Result<Vec<u8>> {
    BASE64.decode(text).map_err(|error| invalid_at(field, format!("{field}: not base64")).with_source(error))
}

/// Where a message went; a delayed one gets its id when it is due.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Placed {
    pub(crate) partition: u32,
    pub(crate) id: Option<String>,
    /// Whether a request with this `Idempotency-Key` had brought it before.
    #[serde(default)]
    pub(crate) duplicate: bool,
}

impl From<Receipt> for Placed {
    fn from(receipt: Receipt) -> Self {
        let Receipt { partition, id, duplicate, .. } = receipt;
        Self { partition, id: id.map(|id| id.to_string()), duplicate }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Receipts {
    pub(crate) receipts: Vec<Placed>,
}

/// A record as readers see it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Record)]
pub(crate) struct Shown {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) sent_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
    #[serde(default, deserialize_with = "any_json", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub(crate) json: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Values>,
    /// Where it stood before it was replayed for everyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replayed_from: Option<ReplayedFrom>,
}

/// The dead letter that a record was: its place, and the group that had given it up.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReplayedFrom {
    pub(crate) partition: u32,
    pub(crate) id: String,
    pub(crate) group: String,
}

impl Shown {
    /// The payload as a person reads it.
    pub(crate) fn text(&self) -> &str {
        let json = self.json.as_deref().map(RawValue::get);
        json.or(self.payload.as_deref()).or(self.payload_base64.as_deref()).unwrap_or_default()
    }

    /// The payload as it was sent.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match &self.payload_base64 {
            Some(text) => BASE64.decode(text).unwrap_or_default(),
            None => self.text().as_bytes().to_vec(),
        }
    }
}

/// The deepest JSON that is shown as such. Readers of JSON give up at some depth (64 levels and
/// up), and one deep record would make all that come with it unreadable; a deeper one is shown as
/// text.
const MAX_DEPTH: usize = 56;

/// How deep lists and objects lie in each other.
fn depth(json: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                // To the end of the string; what follows a backslash is no end.
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

impl From<&Record> for Shown {
    fn from(record: &Record) -> Self {
        let (key, key_base64) = match record.key() {
            Some(key) => text_or_base64(key),
            None => (None, None),
        };
        let is_json = record.headers().get("content-type").is_some_and(|kind| kind == "application/json");
        let is_json = is_json && depth(record.payload()) <= MAX_DEPTH;
        let json = is_json.then(|| record.json::<Box<RawValue>>().ok()).flatten();
        let (payload, payload_base64) = match json {
            Some(_) => (None, None),
            None => text_or_base64(record.payload()),
        };
        Self {
            topic: record.topic().to_string(),
            partition: record.partition(),
            id: record.id().to_string(),
            attempt: record.attempt(),
            sent_ms: unix_ms(record.sent_at()),
            key,
            key_base64,
            payload,
            payload_base64,
            json,
            headers: headers(record),
            replayed_from: record.origin().map(|origin| ReplayedFrom {
                partition: origin.at.index,
                id: origin.id.to_string(),
                group: origin.group.to_string(),
            }),
        }
    }
}

fn headers(record: &Record) -> BTreeMap<String, Values> {
    let mut all: BTreeMap<String, Values> = BTreeMap::new();
    for (name, value) in record.headers().iter() {
        let value = String::from_utf8_lossy(&value).into_owned();
        let merged = match all.remove(&name) {
            None => Values::One(value),
            Some(Values::One(first)) => Values::Many(vec![first, value]),
            Some(Values::Many(mut values)) => {
                values.push(value);
                Values::Many(values)
            }
        };
        all.insert(name, merged);
    }
    all
}

/// Records of one partition, looked at without consuming them; `next` continues as `after`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Records {
    pub(crate) records: Vec<Shown>,
    pub(crate) next: Option<String>,
    /// How many records were looked at for these.
    #[serde(default)]
    pub(crate) looked_at: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_exactly_one_kind_of_payload_and_no_unknown_field() {
        let parse = |text: &str| serde_json::from_str::<Outgoing>(text);
        let message = |text: &str| parse(text).unwrap().into_message(None);
        assert!(parse(r#"{"payload":"x","color":"red"}"#).is_err());
        for wrong in [
            "{}",
            r#"{"payload":"x","json":1}"#,
            r#"{"payload_base64":"***"}"#,
            r#"{"payload":"x","key":"k","key_base64":"aw=="}"#,
            r#"{"payload":"x","after_ms":1,"at_ms":1}"#,
        ] {
            assert!(message(wrong).is_err(), "{wrong}");
        }
        assert_eq!(message(r#"{"payload_base64":"/wA="}"#).unwrap().payload().as_ref(), [255, 0]);
        assert_eq!(message(r#"{"json":null}"#).unwrap().payload(), "null");
    }

    #[test]
    fn k09_depth_counts_lists_and_objects_and_no_strings() {
        for (json, deep) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[1,{"b":[]}],"c":{}}"#, 4),
            (r#"["[[[","\\\"[[",[]]"#, 2),
            ("]]][", 1),
        ] {
            assert_eq!(depth(json.as_bytes()), deep, "{json}");
        }
    }

    #[test]
    fn json_passes_through_unchanged() {
        let sent = r#"{"json":{"b":1.10,"a":12345678901234567890123}}"#;
        let message = serde_json::from_str::<Outgoing>(sent).unwrap().into_message(None).unwrap();
        assert_eq!(message.payload(), r#"{"b":1.10,"a":12345678901234567890123}"#);
    }
}
