//! [`Pick`]: where a name comes from: a constant, a JSON pointer into the body, a header, or the
//! name under which the body came. Pure.
//!
//! Values are taken as they are written: no number is read and written anew.

use super::headers::Headers;
use crate::error::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;

/// The longest pointer, in bytes.
const MAX_POINTER: usize = 512;

/// Where a text comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum Pick {
    /// The same for all.
    Constant(String),
    /// A place in the body, as a JSON pointer.
    Pointer(String),
    /// A header of the request.
    Header(String),
    /// The name under which the body came: all of it, or the part of this number, from 1 on.
    Name(Option<usize>),
}

impl TryFrom<Value> for Pick {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let wanted = "write a text, or one of { constant: TEXT }, { pointer: /a/b }, { header: NAME }, { name: whole } and { name: 2 }";
        let fields = match value {
            Value::String(text) => return Ok(Self::Constant(text)),
            Value::Object(fields) if fields.len() == 1 => fields,
            _ => return Err(wanted.to_owned()),
        };
        match fields.into_iter().next() {
            Some((name, Value::String(text))) if name == "constant" => Ok(Self::Constant(text)),
            Some((name, Value::String(text))) if name == "header" && !text.is_empty() => {
                Ok(Self::Header(text))
            }
            Some((name, Value::String(text))) if name == "pointer" => {
                check_pointer(&text)?;
                Ok(Self::Pointer(text))
            }
            Some((name, Value::String(text))) if name == "name" && text == "whole" => Ok(Self::Name(None)),
            Some((name, Value::Number(part))) if name == "name" => {
                let part = part.as_u64().and_then(|part| usize::try_from(part).ok());
                part.filter(|part| *part > 0).map(|part| Self::Name(Some(part))).ok_or(wanted.to_owned())
            }
            _ => Err(wanted.to_owned()),
        }
    }
}

/// A pointer is empty, for the whole, or begins with a slash.
pub(crate) fn check_pointer(pointer: &str) -> Result<(), String> {
    if pointer.len() > MAX_POINTER || !(pointer.is_empty() || pointer.starts_with('/')) {
        return Err(format!(
            "{pointer:?} is no JSON pointer: write /field/field, at most {MAX_POINTER} bytes"
        ));
    }
    Ok(())
}

impl Pick {
    /// The text; `None` if the request does not have it.
    pub(crate) fn text<'a>(
        &'a self,
        headers: &Headers<'a>,
        body: &'a RawValue,
    ) -> Result<Option<Cow<'a, str>>> {
        match self {
            Self::Constant(text) => Ok(Some(Cow::Borrowed(text))),
            Self::Header(name) => Ok(headers.get(name).map(Cow::Borrowed)),
            Self::Name(None) => Ok(headers.name().map(Cow::Borrowed)),
            Self::Name(Some(part)) => Ok(headers.part(*part).map(Cow::Borrowed)),
            Self::Pointer(pointer) => match at(body, pointer)? {
                Some(value) => scalar(value).map_err(|error| Error::poison(format!("{pointer} {error}"))),
                None => Ok(None),
            },
        }
    }
}

impl std::fmt::Display for Pick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant(_) => f.write_str("the constant"),
            Self::Pointer(pointer) => write!(f, "pointer {pointer}"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Name(None) => f.write_str("its name"),
            Self::Name(Some(part)) => write!(f, "part {part} of its name"),
        }
    }
}

/// A text, or a number or truth value as it is written.
fn scalar(value: &RawValue) -> Result<Option<Cow<'_, str>>, &'static str> {
    match value.get().as_bytes().first() {
        Some(b'n') | None => Ok(None),
        Some(b'"') => serde_json::from_str::<String>(value.get())
            .map(|text| Some(Cow::Owned(text)))
            .map_err(|_| "is a broken text"),
        Some(b'{' | b'[') => Err("is a list or an object, and no text"),
        Some(_) => Ok(Some(Cow::Borrowed(value.get()))),
    }
}

/// The value at a pointer, as it is written.
pub(crate) fn at<'a>(body: &'a RawValue, pointer: &str) -> Result<Option<&'a RawValue>> {
    let mut value = body;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        let inside = match value.get().as_bytes().first() {
            Some(b'{') => {
                let fields: HashMap<Cow<'a, str>, &'a RawValue> =
                    serde_json::from_str(value.get()).map_err(|error| broken(&error))?;
                fields.get(&*token).copied()
            }
            Some(b'[') => {
                let items: Vec<&'a RawValue> =
                    serde_json::from_str(value.get()).map_err(|error| broken(&error))?;
                token.parse::<usize>().ok().and_then(|index| items.get(index).copied())
            }
            _ => None,
        };
        let Some(inside) = inside else { return Ok(None) };
        value = inside;
    }
    Ok(Some(value))
}

/// Says where, and quotes nothing.
pub(crate) fn broken(error: &serde_json::Error) -> Error {
    Error::poison(format!("the body is no JSON: line {}, column {}", error.line(), error.column()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_taken_as_they_are_written() {
        let body =
            r#"{"a/b":{"n":12345678901234567890.10,"t":"x\u00e9","no":null,"is":true},"l":[1,{"k":"v"}]}"#;
        let body: &RawValue = serde_json::from_str(body).unwrap();
        let text = |pointer: &str| {
            let pick = Pick::try_from(json!({ "pointer": pointer })).unwrap();
            pick.text(&Headers::default(), body).map(|text| text.map(Cow::into_owned))
        };
        assert_eq!(text("/a~1b/n").unwrap().as_deref(), Some("12345678901234567890.10"));
        assert_eq!(text("/a~1b/t").unwrap().as_deref(), Some("xé"));
        assert_eq!(text("/a~1b/is").unwrap().as_deref(), Some("true"));
        assert_eq!(text("/l/1/k").unwrap().as_deref(), Some("v"));
        for nothing in ["/a~1b/no", "/l/2", "/l/x", "/l/0/deeper", "/other"] {
            assert_eq!(text(nothing).unwrap(), None, "{nothing}");
        }
        assert!(text("/l").unwrap_err().to_string().contains("/l is a list"));
        let headers = Headers::new([("X-Event", "push")]);
        let pick = Pick::try_from(json!({ "header": "x-event" })).unwrap();
        assert_eq!(pick.text(&headers, body).unwrap().as_deref(), Some("push"));
        let headers = headers.named("orders.acme.7", '.');
        for (pick, expected) in
            [(json!(2), Some("acme")), (json!("whole"), Some("orders.acme.7")), (json!(4), None)]
        {
            let pick = Pick::try_from(json!({ "name": pick })).unwrap();
            assert_eq!(pick.text(&headers, body).unwrap().as_deref(), expected);
        }
    }

    #[test]
    fn a_wrong_pick_says_how_it_is_written() {
        for wrong in
            [json!({ "pointer": "a" }), json!({ "poynter": "/a" }), json!({ "name": 0 }), json!(7), json!({})]
        {
            assert!(Pick::try_from(wrong).unwrap_err().contains("write "));
        }
    }
}
