//! What an entry of a stream of others becomes: a record's content. Pure, and total: every entry
//! becomes something.

use crate::facet::{AS_JSON, STREAM_ID, TOO_LARGE};
use crate::headers::Headers;
use crate::id::RecordId;
use crate::limits::{MAX_KEY, MAX_PAYLOAD};
use crate::record::Content;
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt::Write;

/// The fields of an entry, in order; names may repeat.
pub(super) type Fields = Vec<(Bytes, Bytes)>;

/// Which fields mean what; empty names mean none.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldMapping {
    pub(super) key: String,
    pub(super) payload: String,
}

impl FieldMapping {
    /// The content of an entry.
    pub(super) fn content(&self, id: RecordId, fields: &Fields) -> Content {
        let key = find(fields, &self.key).filter(|key| key.len() <= MAX_KEY).cloned();
        let content = self.by_field(id, fields).unwrap_or_else(|| {
            let mut headers = vec![(Cow::Borrowed(STREAM_ID), id.to_string().into())];
            if !self.payload.is_empty() {
                headers.push((Cow::Borrowed(AS_JSON), Bytes::from_static(b"1")));
            }
            Content { headers: pack(headers), ..Content::new(json(fields)) }
        });
        let content = Content { key, timestamp: id.ms, ..content };
        let size = content.payload.len();
        if size <= MAX_PAYLOAD {
            return content;
        }
        let headers = vec![
            (Cow::Borrowed(STREAM_ID), id.to_string().into()),
            (Cow::Borrowed(TOO_LARGE), size.to_string().into()),
        ];
        Content { payload: Bytes::new(), headers: pack(headers), ..content }
    }

    /// One field as the payload and the others as headers; `None` if the entry does not allow that.
    fn by_field(&self, id: RecordId, fields: &Fields) -> Option<Content> {
        let payload = find(fields, &self.payload)?.clone();
        let key_fits = find(fields, &self.key).is_none_or(|key| key.len() <= MAX_KEY);
        let mut headers = vec![(Cow::Borrowed(STREAM_ID), Bytes::from(id.to_string()))];
        for (name, value) in fields {
            let is_special = [&self.key, &self.payload].iter().any(|special| special.as_bytes() == &name[..]);
            if !is_special {
                headers.push((Cow::Owned(String::from_utf8(name.to_vec()).ok()?), value.clone()));
            }
        }
        let headers = Headers::from_pairs(headers).ok().filter(|_| key_fits)?;
        Some(Content { headers, ..Content::new(payload) })
    }
}

fn find<'f>(fields: &'f Fields, name: &str) -> Option<&'f Bytes> {
    fields.iter().find(|(field, _)| !name.is_empty() && field == name.as_bytes()).map(|(_, value)| value)
}

/// Headers of our own, which fit.
fn pack(headers: Vec<(Cow<'_, str>, Bytes)>) -> Headers {
    Headers::from_pairs(headers).unwrap_or_default()
}

/// All fields as a JSON object, in order; those that repeat as lists.
fn json(fields: &Fields) -> String {
    let mut out = String::from("{");
    for (at, (name, value)) in fields.iter().enumerate() {
        if fields[..at].iter().any(|(earlier, _)| earlier == name) {
            continue;
        }
        if out.len() > 1 {
            out.push(',');
        }
        put_name(&mut out, name);
        out.push(':');
        let others: Vec<&Bytes> =
            fields[at + 1..].iter().filter(|(other, _)| other == name).map(|(_, value)| value).collect();
        if others.is_empty() {
            put_value(&mut out, value);
            continue;
        }
        out.push('[');
        put_value(&mut out, value);
        for value in others {
            out.push(',');
            put_value(&mut out, value);
        }
        out.push(']');
    }
    out.push('}');
    out
}

fn put_name(out: &mut String, name: &[u8]) {
    match std::str::from_utf8(name) {
        Ok(text) => put_text(out, text),
        Err(_) => put_text(out, &format!("$hex:{}", hex(name))),
    }
}

fn put_value(out: &mut String, value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(text) => put_text(out, text),
        Err(_) => {
            out.push_str(r#"{"$hex":"#);
            put_text(out, &hex(value));
            out.push('}');
        }
    }
}

fn put_text(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => drop(write!(out, "\\u{:04x}", u32::from(control))),
            plain => out.push(plain),
        }
    }
    out.push('"');
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: RecordId = RecordId::new(1700, 3);

    fn fields(pairs: &[(&str, &[u8])]) -> Fields {
        let own = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        pairs.iter().map(|(name, value)| (own(name.as_bytes()), own(value))).collect()
    }

    fn mapping(key: &str, payload: &str) -> FieldMapping {
        FieldMapping { key: key.into(), payload: payload.into() }
    }

    fn header(content: &Content, name: &str) -> Option<Bytes> {
        content.headers.get(name)
    }

    #[test]
    fn all_fields_become_json_in_their_order() {
        let entry = fields(&[("item", b"tea \"hot\"\n"), ("n", b"1"), ("n", b"2"), ("raw", b"\xff\x00")]);
        let content = mapping("item", "").content(ID, &entry);
        assert_eq!(content.payload, r#"{"item":"tea \"hot\"\u000a","n":["1","2"],"raw":{"$hex":"ff00"}}"#);
        assert_eq!(content.key.as_deref(), Some(&b"tea \"hot\"\n"[..]));
        assert_eq!((content.timestamp, header(&content, STREAM_ID).unwrap()), (1700, Bytes::from("1700-3")));
        assert_eq!(header(&content, AS_JSON), None);
    }

    #[test]
    fn one_field_can_be_the_payload_and_the_others_headers() {
        let entry = fields(&[("body", b"\xff\x00"), ("kind", b"order"), ("who", b"ada")]);
        let content = mapping("who", "body").content(ID, &entry);
        assert_eq!((&content.payload[..], content.key.as_deref()), (&b"\xff\x00"[..], Some(&b"ada"[..])));
        assert_eq!((content.headers.len(), header(&content, "kind").unwrap()), (2, Bytes::from("order")));
    }

    #[test]
    fn an_entry_that_does_not_fit_the_request_comes_as_json_and_says_so() {
        let many: Vec<(String, Vec<u8>)> = (0..40).map(|n| (format!("f{n}"), b"x".to_vec())).collect();
        let many: Vec<(&str, &[u8])> = many
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_slice()))
            .chain([("body", &b"b"[..])])
            .collect();
        for entry in [fields(&[("other", b"x")]), fields(&many)] {
            let content = mapping("", "body").content(ID, &entry);
            assert!(content.payload.starts_with(b"{") && header(&content, AS_JSON).is_some());
        }
        let long_key = fields(&[("who", &[b'k'; 2000]), ("body", b"b")]);
        let content = mapping("who", "body").content(ID, &long_key);
        assert!(content.key.is_none() && content.payload.starts_with(b"{\"who\""));
    }

    #[test]
    fn an_entry_larger_than_a_record_leaves_a_mark() {
        let entry = fields(&[("body", &vec![b'x'; MAX_PAYLOAD + 1])]);
        let content = mapping("", "body").content(ID, &entry);
        assert_eq!(
            (content.payload.len(), header(&content, TOO_LARGE).unwrap()),
            (0, Bytes::from("16777217"))
        );
    }

    proptest! {
        #[test]
        fn every_entry_becomes_content_within_the_limits(
            pairs in prop::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..50),
            key in "[a-c]{0,2}", payload in "[a-c]{0,2}",
        ) {
            let entry: Fields = pairs.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
            let content = FieldMapping { key, payload }.content(ID, &entry);
            content.check().unwrap();
            prop_assert_eq!(content.headers.get(STREAM_ID).unwrap(), "1700-3");
        }
    }
}
