//! Control events: what a source says about a whole collection, not about one document.
//!
//! A control has no key and no documents. It may have no tenant: then it is about the collection of
//! every tenant. The writer puts one into every partition of the topic, so that it stands in order
//! with the events of all documents.

use super::{Event, MAX_COLLECTION, Operation, Text};
use crate::error::{Error, Result};
use crate::name::Tenant;

/// The longest reason of a control, in bytes.
pub const MAX_CONTROL_REASON: usize = 200;
/// The most columns of a document whose values are not known.
pub const MAX_MISSING: usize = 1600;

/// The key under which a control goes to gateways, which know documents only.
pub const CONTROL_KEY: &str = "$control";

impl Operation {
    /// Whether it is about a whole collection: a truncate or a resync.
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Truncate | Self::Resync)
    }
}

impl Event {
    /// A control about a collection of one tenant, or of all.
    ///
    /// ```
    /// # use firth_router::event::{Event, Operation};
    /// let event = Event::control(Operation::Truncate, None, "orders").with_reason("TRUNCATE");
    /// assert_eq!(event.to_json(), br#"{"op":"truncate","collection":"orders","reason":"TRUNCATE"}"#);
    /// ```
    pub fn control(operation: Operation, tenant: Option<Tenant>, collection: impl Into<Text>) -> Self {
        debug_assert!(operation.is_control(), "other operations are about documents");
        Self::new(operation, tenant.unwrap_or_else(Tenant::any), collection, "")
    }

    /// With why a control was sent, for people.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<Text>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// With columns of the document whose values the source does not know. They are absent from the
    /// document; a filter that needs one of them does not match.
    #[must_use]
    pub fn with_missing<T: Into<Text>>(mut self, columns: impl IntoIterator<Item = T>) -> Self {
        self.missing = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Whether it is a control.
    pub fn is_control(&self) -> bool {
        self.operation.is_control()
    }

    /// Whether it is about the collection of every tenant.
    pub fn is_for_all_tenants(&self) -> bool {
        self.tenant.is_any()
    }

    /// Whether a control is about the document of another event.
    pub fn covers(&self, other: &Self) -> bool {
        self.is_control()
            && self.collection == other.collection
            && (self.tenant.is_any() || other.tenant.is_any() || self.tenant == other.tenant)
    }

    /// Checks what only controls may and may not have.
    pub(super) fn check_kind(&self) -> Result<()> {
        if self.is_control() {
            let is_bare = self.key.is_empty() && self.before.is_none() && self.after.is_none();
            if !is_bare || !self.missing.is_empty() {
                let operation = self.operation.as_str();
                return Err(
                    Error::invalid(format!("a {operation} has no key and no documents")).with_field("key")
                );
            }
        } else if self.tenant.is_any() {
            return Err(Error::invalid("an event of a document names its tenant").with_field("tenant"));
        } else if self.reason.is_some() {
            return Err(Error::invalid("only a truncate or a resync has a reason").with_field("reason"));
        }
        let reason = self.reason.as_ref().map_or(0, |reason| reason.len());
        if reason > MAX_CONTROL_REASON {
            let context = format!("a reason has {reason} bytes; at most {MAX_CONTROL_REASON}");
            return Err(Error::invalid(context).with_field("reason").with_limit(MAX_CONTROL_REASON as u64));
        }
        let is_wrong = |column: &Text| column.is_empty() || column.len() > MAX_COLLECTION;
        if self.missing.len() > MAX_MISSING || self.missing.iter().any(is_wrong) {
            let context = format!(
                "an event misses at most {MAX_MISSING} columns, with names of 1 to {MAX_COLLECTION} bytes"
            );
            return Err(Error::invalid(context).with_field("missing").with_limit(MAX_MISSING as u64));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Document;

    #[test]
    fn a_control_has_no_document_and_a_document_has_a_tenant() {
        let parse = |text: &str| Event::from_json(text.as_bytes());
        let all = parse(r#"{"op":"resync","collection":"orders","reason":"slot lost"}"#).unwrap();
        assert!(all.is_for_all_tenants() && all.is_control());
        assert!(parse(r#"{"op":"truncate","tenant":"acme","collection":"orders"}"#).is_ok());
        for wrong in [
            r#"{"op":"truncate","collection":"orders","key":"7"}"#,
            r#"{"op":"truncate","collection":"orders","after":{"n":1}}"#,
            r#"{"op":"truncate","collection":"orders","missing":["n"]}"#,
            r#"{"op":"truncate","collection":""}"#,
            r#"{"op":"update","collection":"orders","key":"7"}"#,
            r#"{"op":"update","tenant":"*","collection":"orders","key":"7"}"#,
            r#"{"op":"update","tenant":"acme","collection":"orders","key":""}"#,
            r#"{"op":"update","tenant":"acme","collection":"orders","key":"7","reason":"x"}"#,
            r#"{"op":"update","tenant":"acme","collection":"orders","key":"7","missing":[""]}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let long =
            Event::control(Operation::Resync, None, "c").with_reason("x".repeat(MAX_CONTROL_REASON + 1));
        assert_eq!(long.check().unwrap_err().limit(), Some(MAX_CONTROL_REASON as u64));
    }

    #[test]
    fn a_control_covers_its_tenant_and_collection() {
        let tenant = |name| Tenant::new(name).unwrap();
        let event = |name, collection| Event::new(Operation::Update, tenant(name), collection, "k");
        let all = Event::control(Operation::Truncate, None, "orders");
        let one = Event::control(Operation::Truncate, Some(tenant("a")), "orders");
        assert!(all.covers(&event("a", "orders")) && all.covers(&event("b", "orders")) && all.covers(&one));
        assert!(one.covers(&event("a", "orders")) && one.covers(&all));
        assert!(!one.covers(&event("b", "orders")) && !all.covers(&event("a", "items")));
        assert!(!event("a", "orders").covers(&event("a", "orders")));
    }

    /// A replay of the source sees the same change at another time.
    #[test]
    fn the_time_of_the_reader_is_not_part_of_a_change() {
        let event = Event::new(Operation::Insert, Tenant::new("a").unwrap(), "c", "k")
            .with_after(Document::from_json(r#"{"n":1}"#).unwrap());
        let again = Event { observed_ms: 17, ..event.clone() };
        assert_eq!(event, again);
        assert_eq!(event.to_replay_form(), again.to_replay_form());
        let other = Event { committed_ms: 17, ..event.clone() };
        assert_ne!(event, other);
        assert_ne!(event.to_replay_form(), other.to_replay_form());
    }
}
