//! What crosses the wire: the JSON of every request and answer, used by the server and by the command line alike.
//!
//! Unknown fields of requests are refused, so that a typing error never passes for a default. Bytes that are not text
//! travel as `…_base64`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use firth::{DeadLetter, Error, ErrorKind, GroupInfo, Message, Receipt, Record, Result, TopicStatus};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Who answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) version: String,
    /// Its clock, as Unix time.
    pub(crate) time_ms: u64,
}

/// What a topic shall be; everything has a default.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partitions: Option<u32>,
    /// Records are removed after this long, once every group has settled them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retention_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_payload: Option<usize>,
}

/// A topic in figures.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) partitions: u32,
    pub(crate) records: u64,
    pub(crate) delayed: u64,
    pub(crate) max_payload: usize,
}

impl From<TopicStatus> for Topic {
    fn from(status: TopicStatus) -> Self {
        Self {
            name: status.info.name.to_string(),
            partitions: status.info.config.partitions,
            records: status.records(),
            delayed: status.delayed(),
            max_payload: status.info.config.max_payload,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Topics {
    pub(crate) topics: Vec<Topic>,
}

/// A header's value, or its values if the name repeats.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Values {
    One(String),
    Many(Vec<String>),
}

/// A message to send: `payload`, `payload_base64` or `json`, and optionally the rest.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outgoing {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) json: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Values>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<u32>,
}

impl Outgoing {
    /// The message, or what is wrong with it.
    pub(crate) fn into_message(self) -> Result<Message> {
        let mut message = match (self.payload, self.payload_base64, self.json) {
            (Some(text), None, None) => Message::new(text),
            (None, Some(text), None) => Message::new(
                STANDARD
                    .decode(text)
                    .map_err(|error| invalid("payload_base64 is not base64").with_source(error))?,
            ),
            (None, None, Some(json)) => Message::json(&json)?,
            _ => return Err(invalid("give exactly one of payload, payload_base64 and json")),
        };
        if let Some(key) = self.key {
            message = message.key(key);
        }
        for (name, values) in self.headers {
            let values = match values {
                Values::One(value) => vec![value],
                Values::Many(values) => values,
            };
            message = values.into_iter().fold(message, |message, value| message.header(name.clone(), value));
        }
        if let Some(after) = self.after_ms {
            message = message.deliver_after(Duration::from_millis(after));
        }
        Ok(match self.partition {
            Some(partition) => message.to_partition(partition),
            None => message,
        })
    }
}

/// Where a message went; a delayed one gets its id when it is due.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(crate) partition: u32,
    pub(crate) id: Option<String>,
}

impl From<Receipt> for Placed {
    fn from(receipt: Receipt) -> Self {
        Self { partition: receipt.partition, id: receipt.id.map(|id| id.to_string()) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipts {
    pub(crate) receipts: Vec<Placed>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fetch {
    /// At most this many deliveries; 1 unless set.
    pub(crate) max: Option<usize>,
    /// How long to wait for the first one; 0 unless set.
    pub(crate) wait_ms: Option<u64>,
    /// How long they may take; 30 s unless set.
    pub(crate) lease_ms: Option<u64>,
}

/// A record as readers see it.
#[derive(Debug, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) json: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, Values>,
}

impl Shown {
    /// The payload as a person reads it.
    pub(crate) fn text(&self) -> &str {
        let json = self.json.as_deref().map(RawValue::get);
        json.or(self.payload.as_deref()).or(self.payload_base64.as_deref()).unwrap_or_default()
    }
}

impl From<&Record> for Shown {
    fn from(record: &Record) -> Self {
        let (key, key_base64) = match record.key() {
            Some(key) => text_or_base64(key),
            None => (None, None),
        };
        let is_json = record.headers().get("content-type").is_some_and(|kind| kind == "application/json");
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

/// A record that must be settled by `delivery` before `deadline_ms` (Unix time), else it comes again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Delivered {
    pub(crate) delivery: String,
    pub(crate) deadline_ms: u64,
    pub(crate) record: Shown,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Fetched {
    pub(crate) deliveries: Vec<Delivered>,
}

/// Verdicts by delivery.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settle {
    pub(crate) ack: Vec<String>,
    pub(crate) nack: Vec<Failure>,
    pub(crate) reject: Vec<Failure>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    pub(crate) delivery: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Only for nack: how long to wait instead of what the retry policy says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after_ms: Option<u64>,
}

/// How many verdicts are stored, and which are not and why.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SettledReport {
    pub(crate) settled: usize,
    pub(crate) failed: Vec<NotSettled>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NotSettled {
    pub(crate) delivery: String,
    pub(crate) kind: String,
    pub(crate) detail: String,
}

/// A group in figures.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) lag: u64,
    pub(crate) due: u64,
    pub(crate) dead: u64,
    pub(crate) members: usize,
    pub(crate) oldest_ms: Option<u64>,
    pub(crate) partitions: Vec<GroupPart>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GroupPart {
    pub(crate) partition: u32,
    pub(crate) waiting: u64,
    pub(crate) due: u64,
    pub(crate) dead: u64,
    pub(crate) owner: Option<String>,
}

impl From<GroupInfo> for Group {
    fn from(info: GroupInfo) -> Self {
        let parts = info.partitions.iter().map(|part| GroupPart {
            partition: part.index,
            waiting: part.waiting,
            due: part.due,
            dead: part.dead,
            owner: part.owner.as_ref().map(|owner| owner.member.clone()),
        });
        Self {
            topic: info.topic.to_string(),
            group: info.group.to_string(),
            lag: info.lag(),
            due: info.due(),
            dead: info.dead(),
            members: info.members.len(),
            oldest_ms: info.oldest().map(millis),
            partitions: parts.collect(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Groups {
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Letter {
    pub(crate) id: String,
    pub(crate) group: String,
    pub(crate) reason: String,
    pub(crate) attempts: u32,
    pub(crate) age_ms: u64,
    pub(crate) record: Shown,
}

impl From<DeadLetter> for Letter {
    fn from(letter: DeadLetter) -> Self {
        Self {
            id: letter.id.to_string(),
            group: letter.id.group.to_string(),
            attempts: letter.attempts(),
            age_ms: millis(letter.age),
            record: Shown::from(&letter.record),
            reason: letter.reason,
        }
    }
}

/// A page of dead letters; `next` continues it as `after`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Letters {
    pub(crate) letters: Vec<Letter>,
    pub(crate) next: Option<String>,
}

/// Which dead letters: these, or all that the filter lets through.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pick {
    pub(crate) ids: Vec<String>,
    pub(crate) all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Only for replay: append it for every group, not just the one that gave it up.
    pub(crate) everyone: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) count: u64,
}

pub(crate) fn invalid(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, context.into())
}

pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_exactly_one_kind_of_payload_and_no_unknown_field() {
        let parse = |text: &str| serde_json::from_str::<Outgoing>(text);
        assert!(parse(r#"{"payload":"x","color":"red"}"#).is_err());
        assert!(parse("{}").unwrap().into_message().is_err());
        assert!(parse(r#"{"payload":"x","json":1}"#).unwrap().into_message().is_err());
        assert!(parse(r#"{"payload_base64":"***"}"#).unwrap().into_message().is_err());
        let message = parse(r#"{"payload_base64":"/wA="}"#).unwrap().into_message().unwrap();
        assert_eq!(message.payload().as_ref(), [255, 0]);
    }

    #[test]
    fn json_passes_through_unchanged() {
        let sent = r#"{"json":{"b":1.10,"a":12345678901234567890123}}"#;
        let message = serde_json::from_str::<Outgoing>(sent).unwrap().into_message().unwrap();
        assert_eq!(message.payload(), r#"{"b":1.10,"a":12345678901234567890123}"#);
    }
}
