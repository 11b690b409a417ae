//! Messages become events. Pure.

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::rules::{EventRules, Headers, broken};
use crate::source::{Origin, Rejected, SourceChange, Step};
use async_nats::Message;
use bytes::Bytes;
use firth_router::event::Event;
use serde_json::value::RawValue;

/// A message as a step; none if the rules leave it out.
pub(super) fn read<P>(
    rules: &EventRules,
    message: &Message,
    position: Bytes,
    published_ms: u64,
) -> Option<Step<P>> {
    let origin = Origin { name: message.subject.to_string(), payload: message.payload.clone() };
    match event(rules, message) {
        Ok(None) => None,
        Ok(Some(event)) => {
            let event = Event { committed_ms: published_ms, observed_ms: Progress::now_ms(), ..event };
            let headers = vec![("firth-subject", origin.name.clone())];
            Some(Step::Change(SourceChange { position, event, headers, origin }))
        }
        Err(error) => Some(Step::Poison(Rejected { position, error, origin })),
    }
}

fn event(rules: &EventRules, message: &Message) -> Result<Option<Event>> {
    let headers = message.headers.iter().flat_map(|headers| headers.iter());
    let headers = headers.filter_map(|(name, values)| Some((name.as_ref(), values.first()?.as_str())));
    let headers = Headers::new(headers).named(message.subject.as_str(), '.');
    if message.payload.is_empty() {
        // So a key-value bucket tells a delete.
        let nothing: &RawValue = serde_json::from_str("null").map_err(|error| broken(&error))?;
        return rules.event(&headers, nothing);
    }
    let body = serde_json::from_slice(&message.payload).map_err(|error| broken(&error))?;
    rules.event(&headers, body).map_err(|error| Error::poison(error.context().to_owned()))
}
