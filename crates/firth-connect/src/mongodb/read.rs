//! Events of change streams and copied documents become steps. Pure.

use super::config::MongoConfig;
use super::value;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::rules::{Headers, broken};
use crate::source::{Origin, Rejected, SourceChange, Step};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use firth_router::event::{Document as EventDocument, Event, Operation};
use mongodb::bson::{Bson, Document};
use serde_json::Value;
use serde_json::value::RawValue;

/// What stands between a collection and a key.
const BETWEEN: char = '\u{1f}';

/// A change of one document, of which the stream or the copy tells.
pub(super) struct Found<'a> {
    pub(super) operation: Operation,
    pub(super) collection: &'a str,
    pub(super) id: &'a Bson,
    pub(super) before: Option<&'a Document>,
    pub(super) after: Option<&'a Document>,
    /// When it was committed, in milliseconds of Unix time; 0 if unknown.
    pub(super) committed_ms: u64,
}

impl MongoConfig {
    /// The step that it makes.
    pub(super) fn step<P>(
        &self,
        position: Bytes,
        found: &Found<'_>,
        headers: Vec<(&'static str, String)>,
    ) -> Step<P> {
        let origin = || {
            let told = found.after.or(found.before).map(|fields| self.json(found.collection, fields));
            let payload = told.map_or_else(Bytes::new, |told| told.to_string().into());
            Origin { name: format!("{}.{}", self.database, found.collection), payload }
        };
        match self.event(found) {
            Ok(event) => Step::Change(SourceChange { position, event, headers, origin: origin() }),
            Err(error) => Step::Poison(Rejected { position, error, origin: origin() }),
        }
    }

    fn event(&self, found: &Found<'_>) -> Result<Event> {
        let Found { operation, collection, id, before, after, committed_ms } = found;
        let key = value::key(id, self.exact_numbers);
        if collection.contains(BETWEEN) || key.contains(BETWEEN) {
            return Err(Error::poison("the _id holds a separator of units"));
        }
        let [before, after] =
            [before, after].map(|fields| fields.map(|fields| self.json(collection, fields)));
        let body = after.as_ref().or(before.as_ref()).unwrap_or(&Value::Null);
        let body: Box<RawValue> = serde_json::value::to_raw_value(body).map_err(|error| broken(&error))?;
        let name = format!("{collection}{BETWEEN}{key}");
        let headers = Headers::default().named(&name, BETWEEN);
        let event = self.rules.named(*operation, &headers, &body)?;
        let document = |value: Option<Value>| {
            let read = value.as_ref().map(EventDocument::from_value).transpose();
            read.map_err(|error| Error::poison(format!("document: {error}")))
        };
        let (before, after) = (document(before)?, document(after)?);
        let event =
            Event { before, after, committed_ms: *committed_ms, observed_ms: Progress::now_ms(), ..event };
        event.check().map_err(|error| Error::poison(error.to_string()))?;
        Ok(event)
    }

    fn json(&self, collection: &str, fields: &Document) -> Value {
        let drops = self.drops.get(collection);
        let is_dropped = |name: &str| drops.is_some_and(|drops| drops.contains(name));
        value::document(fields, self.exact_numbers, is_dropped)
    }
}

/// When an event was committed.
pub(super) fn committed_ms(event: &Document) -> u64 {
    let wall = event.get_datetime("wallTime").ok().map(|time| time.timestamp_millis());
    let cluster = || event.get_timestamp("clusterTime").ok().map(|time| i64::from(time.time) * 1_000);
    wall.or_else(cluster).and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default()
}

/// The headers of an event: its transaction, and whether its document was looked up afterwards.
pub(super) fn headers(event: &Document, is_lookup: bool) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    let session = event.get_document("lsid").ok().and_then(|session| session.get("id"));
    let number = event.get("txnNumber").and_then(Bson::as_i64);
    if let (Some(Bson::Binary(session)), Some(number)) = (session, number) {
        headers.push(("firth-txn", format!("{}:{number}", STANDARD.encode(&session.bytes))));
    }
    if is_lookup {
        headers.push(("firth-lookup", "true".to_owned()));
    }
    headers
}
