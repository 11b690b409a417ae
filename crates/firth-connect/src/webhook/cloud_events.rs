//! [`structured`]: a CloudEvent of either mode as one JSON object, as the structured mode has it.
//! Pure.

use crate::error::{Error, Result};
use crate::rules::{Headers, at, broken};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The header prefix of the binary mode.
const PREFIX: &str = "ce-";
/// The media type of the structured mode.
const STRUCTURED: &str = "application/cloudevents+json";
/// What every event has.
const NEEDED: [&str; 4] = ["specversion", "id", "source", "type"];

/// The event as one JSON object.
pub(super) fn structured(headers: &Headers<'_>, body: &[u8]) -> Result<Box<RawValue>> {
    let media = headers.get("content-type").unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media.starts_with("application/cloudevents-batch") {
        return Err(Error::poison("events come one per request here: send no batches"));
    }
    let event = match media.starts_with("application/cloudevents") {
        true if media != STRUCTURED => {
            return Err(Error::poison(format!("a structured event is {STRUCTURED} here")));
        }
        true => serde_json::from_slice(body).map_err(|error| broken(&error))?,
        false => binary(headers, &media, body)?,
    };
    for name in NEEDED {
        let value = at(&event, &format!("/{name}"))?.map_or("", RawValue::get);
        if value.len() < 3 || !value.starts_with('"') {
            return Err(Error::poison(format!("the CloudEvent has no {name}")));
        }
    }
    if at(&event, "/specversion")?.map(RawValue::get) != Some("\"1.0\"") {
        return Err(Error::poison("the CloudEvent is of another version than 1.0"));
    }
    Ok(event)
}

fn binary(headers: &Headers<'_>, media: &str, body: &[u8]) -> Result<Box<RawValue>> {
    let mut fields: BTreeMap<String, Cow<'_, RawValue>> = BTreeMap::new();
    for (name, value) in headers.with_prefix(PREFIX) {
        let value = percent_decoded(value)
            .ok_or_else(|| Error::poison(format!("the header {PREFIX}{name} is not well encoded")))?;
        let text = serde_json::value::to_raw_value(&value).map_err(|error| broken(&error))?;
        fields.insert(name, Cow::Owned(text));
    }
    if !body.is_empty() {
        if media != "application/json" && !media.ends_with("+json") {
            return Err(Error::poison("the data of a CloudEvent is JSON here: say so in Content-Type"));
        }
        let data: &RawValue = serde_json::from_slice(body).map_err(|error| broken(&error))?;
        fields.insert("data".to_owned(), Cow::Borrowed(data));
    }
    serde_json::value::to_raw_value(&fields).map_err(|error| broken(&error))
}

/// Values of headers are percent-encoded UTF-8.
fn percent_decoded(value: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, others) = rest.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = others;
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the HTTP binding's specification, in both of its modes.
    #[test]
    fn both_modes_say_the_same() {
        let binary = [
            ("ce-specversion", "1.0"),
            ("ce-type", "com.example.someevent"),
            ("ce-time", "2018-04-05T03:56:24Z"),
            ("ce-id", "1234-1234-1234"),
            ("ce-source", "/mycontext/sub%C3%A9"),
            ("Content-Type", "application/json; charset=utf-8"),
        ];
        let headers = Headers::new(binary);
        let event = structured(&headers, br#"{"n": 1.50}"#).unwrap();
        let text = |pointer: &str| at(&event, pointer).unwrap().map(RawValue::get);
        assert_eq!(text("/id"), Some("\"1234-1234-1234\""));
        assert_eq!(text("/source"), Some("\"/mycontext/subé\""));
        assert_eq!(text("/data/n"), Some("1.50"));
        let whole = Headers::new([("Content-Type", "application/cloudevents+json; charset=UTF-8")]);
        assert_eq!(structured(&whole, event.get().as_bytes()).unwrap().get(), event.get());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let whole = |body: &str, media: &str| {
            structured(&Headers::new([("content-type", media)]), body.as_bytes()).unwrap_err().to_string()
        };
        let event = r#"{"specversion":"0.3","id":"1","source":"/a","type":"t"}"#;
        assert!(whole(event, STRUCTURED).contains("another version"));
        assert!(whole("{}", STRUCTURED).contains("no specversion"));
        assert!(whole("[]", "application/cloudevents-batch+json").contains("one per request"));
        assert!(whole("x", STRUCTURED).contains("line 1"));
        assert!(whole("x", "text/plain").contains("Content-Type"));
        let headers = Headers::new([("ce-id", "%G0")]);
        assert!(structured(&headers, b"").unwrap_err().to_string().contains("ce-id"));
    }
}
