//! Webhooks: requests of other programs, checked by their signatures, become events. Pure: the
//! server takes the request and appends the event.

mod cloud_events;
mod config;
#[cfg(test)]
mod tests;
mod verify;

pub use crate::rules::{Headers, OperationRule, Pick};
pub use config::{Format, WebhookConfig, WebhookOptions};
pub use verify::{Algorithm, Encoding, HmacRule, Scheme};

use crate::error::{Error, Result};
use crate::rules::{broken, lacks};
use firth_router::event::Event;
use ring::digest::{SHA256, digest};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::Write as _;

/// What a request comes to.
#[derive(Debug)]
pub struct Received {
    /// The name under which its event is stored once; none if the sender gives events no names.
    pub once: Option<String>,
    /// The event; none if the configuration leaves it out.
    pub event: Option<Event>,
}

impl WebhookConfig {
    /// Checks a request that arrived at `now_ms`, in milliseconds of Unix time, and makes it an
    /// event. [`Unauthorized`](crate::ErrorKind::Unauthorized) without a good signature,
    /// [`Poison`](crate::ErrorKind::Poison) if the body cannot be an event.
    pub fn receive(&self, headers: &Headers<'_>, body: &[u8], now_ms: u64) -> Result<Received> {
        let verified = self.verifier.check(headers, body, now_ms / 1_000)?;
        let whole: Cow<'_, RawValue> = match self.options.format {
            Format::Json => Cow::Borrowed(serde_json::from_slice(body).map_err(|error| broken(&error))?),
            Format::CloudEvents => Cow::Owned(cloud_events::structured(headers, body)?),
        };
        let id = self.id(headers, &whole, verified.id)?;
        let event = self.rules.event(headers, &whole)?.map(|event| Event {
            committed_ms: verified.signed.unwrap_or_default().saturating_mul(1_000),
            observed_ms: now_ms,
            ..event
        });
        Ok(Received { once: id.map(|id| self.once(&id)), event })
    }

    /// The sender's name of the event.
    fn id(&self, headers: &Headers<'_>, body: &RawValue, signed: Option<String>) -> Result<Option<String>> {
        let text = |pick: &Pick| Ok::<_, Error>(pick.text(headers, body)?.map(Cow::into_owned));
        let pointer = |place: &str| text(&Pick::Pointer(place.to_owned()));
        if let Some(pick) = &self.options.id {
            let id = text(pick)?;
            return id.map(Some).ok_or_else(|| lacks("id", pick));
        }
        match (self.options.format, &self.options.verify) {
            // The name of an event is one of its source's.
            (Format::CloudEvents, _) => {
                let source = pointer("/source")?.unwrap_or_default();
                Ok(pointer("/id")?.map(|id| format!("{source}\n{id}")))
            }
            (Format::Json, Scheme::Stripe) => pointer("/id"),
            (Format::Json, _) => Ok(signed),
        }
    }

    fn once(&self, id: &str) -> String {
        let sum = digest(&SHA256, format!("{}\n{id}", self.name).as_bytes());
        sum.as_ref().iter().fold("hook-".to_owned(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
    }
}
