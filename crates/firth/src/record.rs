//! [`Record`]: a message at its place in a topic, as handlers get it.

use crate::error::{Result, invalid};
use crate::payload;
use crate::shared_record::SharedRecord;
use bytes::Bytes;
use firth_engine::{Headers, Origin, Partition, RecordId, TopicName};
use serde::de::DeserializeOwned;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the log holds: the message, its place, and which attempt this is. Cloning is cheap.
#[derive(Clone)]
pub struct Record {
    at: Partition,
    inner: SharedRecord,
}

impl Record {
    pub(crate) fn new(at: Partition, inner: SharedRecord) -> Self {
        Self { at, inner }
    }

    /// A record for an admin view or a dead letter, its payload opened if that is possible.
    pub(crate) fn shown(at: Partition, mut inner: firth_engine::Record) -> Self {
        // Damaged beyond opening: what is stored is all there is to see.
        let _ = payload::open(&mut inner.content);
        Self::new(at, SharedRecord::alone(inner))
    }

    /// The topic.
    pub fn topic(&self) -> &TopicName {
        &self.at.topic
    }

    /// The partition.
    pub fn partition(&self) -> u32 {
        self.at.index
    }

    /// Its place in the partition; stays the same over all attempts.
    pub fn id(&self) -> RecordId {
        self.inner.id
    }

    /// The key, if it has one.
    pub fn key(&self) -> Option<&Bytes> {
        self.inner.content.key.as_ref()
    }

    /// The payload.
    pub fn payload(&self) -> &Bytes {
        &self.inner.content.payload
    }

    /// The payload as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(self.payload())
            .map_err(|error| invalid(format!("record {} is not UTF-8 text", self.id())).with_source(error))
    }

    /// The payload read as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(self.payload()).map_err(|error| {
            invalid(format!("record {} is not the expected JSON", self.id())).with_source(error)
        })
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.inner.content.headers
    }

    /// 1 on the first delivery; one more after each failed one.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// How many owners vanished while they had it.
    pub fn crashes(&self) -> u32 {
        self.inner.crashes
    }

    /// When it was sent, on the sender's clock.
    pub fn sent_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.inner.content.timestamp)
    }

    /// Where it stood before it was replayed for everyone, the first time.
    pub fn origin(&self) -> Option<&Origin> {
        self.inner.content.origin.as_deref()
    }

    /// Partition and id that the message had first: its own, unless it was [replayed for
    /// everyone](Self::origin). By these a sink recognises what it has already.
    pub fn original(&self) -> (u32, RecordId) {
        self.origin().map_or((self.partition(), self.id()), |origin| (origin.at.index, origin.id))
    }

    pub(crate) fn into_inner(self) -> SharedRecord {
        self.inner
    }
}

/// Never shows key or payload.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.at, self.inner)
    }
}
