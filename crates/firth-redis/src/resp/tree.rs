//! An owned RESP value: for tests, for fuzzing, and for callers that want to keep or build a reply.
//!
//! [`Tree::encode`] is the inverse of the decoder; property tests hold the two against each other.

use super::convert::{ConvertError, FromValue};
use super::encode::ByteSink;
use super::kind::ValueKind;
use super::value::Value;

/// A RESP value that owns what it holds.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the variants are those of Kind")]
pub enum Tree {
    SimpleString(Vec<u8>),
    SimpleError(Vec<u8>),
    BlobString(Vec<u8>),
    BlobError(Vec<u8>),
    Integer(i64),
    Double(f64),
    BigNumber(String),
    Boolean(bool),
    Null,
    /// Format and text.
    Verbatim([u8; 3], Vec<u8>),
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Set(Vec<Self>),
    Push(Vec<Self>),
    /// A value with attributes in front of it.
    Attributed(Vec<(Self, Self)>, Box<Self>),
}

impl Tree {
    /// Writes the value in RESP3.
    ///
    /// Simple strings and errors are written as they are: the caller keeps line ends out of them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::SimpleString(text) => line(out, b'+', text),
            Self::SimpleError(text) => line(out, b'-', text),
            Self::BlobString(text) => blob(out, b'$', &[text]),
            Self::BlobError(text) => blob(out, b'!', &[text]),
            Self::Integer(value) => line(out, b':', value.to_string().as_bytes()),
            Self::Double(value) => line(out, b',', value.to_string().as_bytes()),
            Self::BigNumber(digits) => line(out, b'(', digits.as_bytes()),
            Self::Boolean(value) => line(out, b'#', if *value { b"t" } else { b"f" }),
            Self::Null => line(out, b'_', b""),
            Self::Verbatim(format, text) => blob(out, b'=', &[format, b":", text]),
            Self::Array(items) => list(out, b'*', items),
            Self::Set(items) => list(out, b'~', items),
            Self::Push(items) => list(out, b'>', items),
            Self::Map(pairs) => map(out, b'%', pairs),
            Self::Attributed(attributes, value) => {
                map(out, b'|', attributes);
                value.encode(out);
            }
        }
    }
}

fn line(out: &mut Vec<u8>, tag: u8, text: &[u8]) {
    out.push(tag);
    out.put(text);
    out.put(b"\r\n");
}

fn blob(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    header(out, tag, parts.iter().map(|part| part.len()).sum());
    out.put(&parts.concat());
    out.put(b"\r\n");
}

fn header(out: &mut Vec<u8>, tag: u8, len: usize) {
    line(out, tag, len.to_string().as_bytes());
}

fn list(out: &mut Vec<u8>, tag: u8, items: &[Tree]) {
    header(out, tag, items.len());
    items.iter().for_each(|item| item.encode(out));
}

fn map(out: &mut Vec<u8>, tag: u8, pairs: &[(Tree, Tree)]) {
    header(out, tag, pairs.len());
    for (key, value) in pairs {
        key.encode(out);
        value.encode(out);
    }
}

impl From<Value<'_>> for Tree {
    /// Copies a value out of its frame. Recursion is bounded by
    /// [`ReplyLimits::depth`](super::ReplyLimits::depth).
    fn from(value: Value<'_>) -> Self {
        let bare = bare(value);
        match value.attributes() {
            Some(attributes) => Self::Attributed(pairs(attributes), Box::new(bare)),
            None => bare,
        }
    }
}

fn bare(value: Value<'_>) -> Tree {
    let text = || value.as_bytes().or(value.error_bytes()).unwrap_or_default().to_vec();
    match value.kind() {
        ValueKind::SimpleString => Tree::SimpleString(text()),
        ValueKind::SimpleError => Tree::SimpleError(text()),
        ValueKind::BlobString => Tree::BlobString(text()),
        ValueKind::BlobError => Tree::BlobError(text()),
        ValueKind::Integer => Tree::Integer(value.as_i64().unwrap_or_default()),
        ValueKind::Double => Tree::Double(value.as_f64().unwrap_or_default()),
        ValueKind::BigNumber => Tree::BigNumber(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Boolean => Tree::Boolean(value.as_bool().unwrap_or_default()),
        ValueKind::Null => Tree::Null,
        ValueKind::Verbatim => Tree::Verbatim(value.verbatim_format().unwrap_or_default(), text()),
        ValueKind::Array => Tree::Array(value.iter().map(Tree::from).collect()),
        ValueKind::Set => Tree::Set(value.iter().map(Tree::from).collect()),
        ValueKind::Push => Tree::Push(value.iter().map(Tree::from).collect()),
        ValueKind::Map | ValueKind::Attribute => Tree::Map(pairs(value)),
    }
}

fn pairs(value: Value<'_>) -> Vec<(Tree, Tree)> {
    value.pairs().into_iter().flatten().map(|(key, value)| (key.into(), value.into())).collect()
}

impl FromValue for Tree {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        Ok(value.into())
    }
}
