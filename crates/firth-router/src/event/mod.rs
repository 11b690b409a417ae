//! [`Event`]: one change of one document. What sources append to a topic, and what gateways are
//! told.
//!
//! A document stays the JSON text in which it arrived: the router builds a tree of it only if a
//! filter needs one. An event has two forms: JSON for people and other programs, and a compact one
//! for topics ([`Event::to_compact`]).

mod compact;
mod control;
mod json;
mod raw;
mod soft;
mod text;

pub use control::{CONTROL_KEY, MAX_CONTROL_REASON, MAX_MISSING};
pub use raw::Document;
pub use text::Text;

use crate::error::{Error, Result};
use crate::name::Tenant;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What happened to the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// It is new, or [was revived](Event::without_marked).
    Insert,
    /// Some of it changed.
    Update,
    /// All of it was written anew.
    Replace,
    /// It is gone, or [marked as deleted](Event::without_marked).
    Delete,
    /// It was read by a scan of what is there, not changed.
    Snapshot,
    /// All documents of the collection are gone at once; see [`Event::control`].
    Truncate,
    /// What is known of the collection may be wrong: load it again; see [`Event::control`].
    Resync,
}

impl Operation {
    /// Its name, as filters and the JSON form have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::Snapshot => "snapshot",
            Self::Truncate => "truncate",
            Self::Resync => "resync",
        }
    }
}

/// Urgency of an event for the subscription that it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// A client watches it live.
    High,
    /// The usual.
    #[default]
    Normal,
    /// Background work and audits: the first to be shed or conflated under pressure.
    Low,
}

impl Priority {
    /// All, most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// 0 for the most urgent.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The longest collection name, in bytes.
pub const MAX_COLLECTION: usize = 256;
/// The longest document key, in bytes. With its collection it must fit the key of a message.
pub const MAX_KEY: usize = 700;
/// The largest document, in bytes.
pub const MAX_DOCUMENT: usize = 16 << 20;

/// A change of a document, or a [control](Event::control). Cloning is cheap.
///
/// Events are equal if they are the same change: [`observed_ms`](Self::observed_ms), which differs
/// when a source is read again, does not count.
#[derive(Clone)]
pub struct Event {
    /// What happened.
    pub operation: Operation,
    /// Whose document it is.
    pub tenant: Tenant,
    /// The collection or table.
    pub collection: Text,
    /// The document's key in the collection.
    pub key: Text,
    /// The document before the change, if the source tells.
    pub before: Option<Document>,
    /// The document after the change; none after a delete.
    pub after: Option<Document>,
    /// When it was committed at the source, in milliseconds of Unix time; 0 if unknown.
    pub committed_ms: u64,
    /// When the source's reader saw it, in milliseconds of Unix time; 0 if unknown.
    pub observed_ms: u64,
    /// Columns of `after` whose values the source does not know; they are absent there.
    pub missing: Vec<Text>,
    /// Why a control was sent, for people.
    pub reason: Option<Text>,
}

impl Event {
    /// An event without documents and times; set the fields that you know.
    pub fn new(
        operation: Operation,
        tenant: Tenant,
        collection: impl Into<Text>,
        key: impl Into<Text>,
    ) -> Self {
        Self {
            operation,
            tenant,
            collection: collection.into(),
            key: key.into(),
            before: None,
            after: None,
            committed_ms: 0,
            observed_ms: 0,
            missing: Vec::new(),
            reason: None,
        }
    }

    /// With the document as it is after the change.
    #[must_use]
    pub fn with_after(mut self, document: Document) -> Self {
        self.after = Some(document);
        self
    }

    /// With the document as it was before the change.
    #[must_use]
    pub fn with_before(mut self, document: Document) -> Self {
        self.before = Some(document);
        self
    }

    /// The document that filters see first: as it is, or as it was before it was deleted.
    pub fn document(&self) -> Option<&Document> {
        self.after.as_ref().or(self.before.as_ref())
    }

    /// The compact form without the time of the reader: the same bytes whenever the source is read
    /// again. Compare or hash these to know a change again.
    pub fn to_replay_form(&self) -> Bytes {
        Self { observed_ms: 0, ..self.clone() }.to_compact()
    }

    /// The key of the message that carries it: events of one document stay in order.
    pub fn message_key(&self) -> String {
        format!("{}/{}", self.collection, self.key)
    }

    /// Checks what no type can: the lengths of collection and key.
    pub fn check(&self) -> Result<()> {
        self.check_kind()?;
        let texts = [("collection", &self.collection, MAX_COLLECTION), ("key", &self.key, MAX_KEY)];
        let count = if self.is_control() { 1 } else { texts.len() };
        for (field, text, limit) in texts.into_iter().take(count) {
            if text.is_empty() || text.len() > limit {
                return Err(Error::invalid(format!(
                    "an event's {field} has {} bytes; give 1 to {limit}",
                    text.len()
                )));
            }
        }
        Ok(())
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        let Self { operation, tenant, collection, key, before, after, committed_ms, missing, reason, .. } =
            self;
        (operation, committed_ms) == (&other.operation, &other.committed_ms)
            && (tenant, collection, key) == (&other.tenant, &other.collection, &other.key)
            && (before, after) == (&other.before, &other.after)
            && (missing, reason) == (&other.missing, &other.reason)
    }
}

/// Never shows documents or keys.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} in {}/{})", self.operation.as_str(), self.tenant, self.collection)
    }
}
