//! The JSON form of an event:
//!
//! ```json
//! {"op":"update","tenant":"acme","collection":"orders","key":"42",
//!  "before":{"state":"new"},"after":{"state":"paid"},"committed_ms":1767000000000,"observed_ms":1767000000012}
//! ```
//! Absent documents and unknown times are left out. Unknown fields are refused, so that a typing
//! error is not a lost image. `"missing":["col"]` names columns whose values are not known. Builds
//! before controls and missing columns refuse events that have them, and only those.
//!
//! A control has neither key nor documents:
//! `{"op":"truncate","tenant":"acme","collection":"orders"}`; without a tenant it is for all.

use super::raw::position;
use super::{Document, Event, Operation, Text};
use crate::error::{Error, Result};
use crate::name::Tenant;
use bytes::Bytes;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    op: Operation,
    #[serde(default)]
    tenant: Option<Tenant>,
    #[serde(borrow)]
    collection: Cow<'a, str>,
    #[serde(borrow, default)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    before: Option<&'a RawValue>,
    #[serde(borrow, default)]
    after: Option<&'a RawValue>,
    #[serde(default)]
    committed_ms: u64,
    #[serde(default)]
    observed_ms: u64,
    #[serde(default)]
    missing: Vec<String>,
    #[serde(default)]
    reason: Option<String>,
}

impl Event {
    /// Reads the JSON form.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let wire: Wire<'_> = serde_json::from_slice(text).map_err(|error| {
            Error::invalid(format!("this is not an event in JSON: {}", describe(&error)))
                .with_source(position(&error))
        })?;
        let event = Self {
            operation: wire.op,
            tenant: wire.tenant.unwrap_or_else(Tenant::any),
            collection: (&*wire.collection).into(),
            key: (&*wire.key).into(),
            before: document(wire.before)?,
            after: document(wire.after)?,
            committed_ms: wire.committed_ms,
            observed_ms: wire.observed_ms,
            missing: wire.missing.into_iter().map(Text::from).collect(),
            reason: wire.reason.map(Text::from),
        };
        event.check()?;
        Ok(event)
    }

    /// Writes the JSON form.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts, numbers and checked JSON can always be written")
    }
}

/// Data errors name our own fields only; syntax errors could quote the input.
fn describe(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Data => error.to_string(),
        _ => "its syntax is wrong".to_owned(),
    }
}

fn document(raw: Option<&RawValue>) -> Result<Option<Document>> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(text) => Document::from_json(Bytes::copy_from_slice(text.as_bytes())).map(Some),
    }
}

fn raw(document: &Document) -> serde_json::Result<&RawValue> {
    serde_json::from_slice(document.text())
}

fn texts(texts: &[Text]) -> Vec<&str> {
    texts.iter().map(|text| &**text).collect()
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let before = self.before.as_ref().map(raw).transpose().map_err(serde::ser::Error::custom)?;
        let after = self.after.as_ref().map(raw).transpose().map_err(serde::ser::Error::custom)?;
        let mut out = serializer.serialize_struct("Event", 10)?;
        out.serialize_field("op", &self.operation)?;
        match self.is_for_all_tenants() {
            true => out.skip_field("tenant")?,
            false => out.serialize_field("tenant", &self.tenant)?,
        }
        out.serialize_field("collection", &*self.collection)?;
        match self.is_control() {
            true => out.skip_field("key")?,
            false => out.serialize_field("key", &*self.key)?,
        }
        match before {
            Some(raw) => out.serialize_field("before", raw)?,
            None => out.skip_field("before")?,
        }
        match after {
            Some(raw) => out.serialize_field("after", raw)?,
            None => out.skip_field("after")?,
        }
        for (name, time) in [("committed_ms", self.committed_ms), ("observed_ms", self.observed_ms)] {
            match time {
                0 => out.skip_field(name)?,
                _ => out.serialize_field(name, &time)?,
            }
        }
        match self.missing.is_empty() {
            true => out.skip_field("missing")?,
            false => out.serialize_field("missing", &texts(&self.missing))?,
        }
        match &self.reason {
            Some(reason) => out.serialize_field("reason", &**reason)?,
            None => out.skip_field("reason")?,
        }
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_is_the_documented_one() {
        let text = r#"{"op":"update","tenant":"acme","collection":"orders","key":"42","before":{"s":"new"},"after":{"s":"paid"},"committed_ms":17,"observed_ms":18}"#;
        let event = Event::from_json(text.as_bytes()).unwrap();
        assert_eq!(event.operation, Operation::Update);
        assert_eq!(event.before.as_ref().unwrap().text(), &r#"{"s":"new"}"#);
        assert_eq!(String::from_utf8(event.to_json()).unwrap(), text);
    }

    #[test]
    fn what_is_wrong_is_named_without_showing_the_document() {
        let cases = [
            (r#"{"op":"update","tenant":"a","collection":"c","key":"k","secret":1}"#, "unknown field"),
            (r#"{"op":"upsert","tenant":"a","collection":"c","key":"k"}"#, "unknown variant"),
            (r#"{"op":"update","tenant":"a b","collection":"c","key":"k"}"#, "a tenant contains"),
            (r#"{"op":"update","tenant":"a","collection":"","key":"k"}"#, "collection has 0 bytes"),
            (r#"{"op":"insert","tenant":"a","collection":"c","key":"k","after":[1]}"#, "JSON object"),
            (r#"{"op":"insert" password"#, "syntax is wrong"),
        ];
        for (text, expected) in cases {
            let error = Event::from_json(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
            assert!(!format!("{error:?}").contains("password"), "{error:?}");
        }
    }
}
