//! The compact form of an event, for topics: a few bytes of frame around the texts as they are.
//!
//! ```text
//! 0xF1 version  1  operation  flags(1 before, 2 after)
//! varint committed_ms  varint observed_ms
//! tenant, collection, key, [before], [after]: varint length, bytes
//! ```
//! JSON never starts with 0xF1, so [`Event::from_payload`] reads either form.

use super::{Document, Event, Operation};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Tenant;
use bytes::{BufMut, Bytes, BytesMut};

const MAGIC: u8 = 0xF1;
const VERSION: u8 = 1;
const BEFORE: u8 = 1;
const AFTER: u8 = 2;

impl Event {
    /// Writes the compact form.
    pub fn to_compact(&self) -> Bytes {
        let documents = [&self.before, &self.after];
        let texts: usize = documents.iter().filter_map(|d| d.as_ref()).map(|d| d.text().len() + 5).sum();
        let mut out = BytesMut::with_capacity(64 + self.collection.len() + self.key.len() + texts);
        let flags =
            if self.before.is_some() { BEFORE } else { 0 } | if self.after.is_some() { AFTER } else { 0 };
        out.put_slice(&[MAGIC, VERSION, self.operation as u8, flags]);
        put_varint(&mut out, self.committed_ms);
        put_varint(&mut out, self.observed_ms);
        for text in [self.tenant.as_str(), &self.collection, &self.key] {
            put_text(&mut out, text.as_bytes());
        }
        for document in documents.into_iter().flatten() {
            put_text(&mut out, document.text());
        }
        out.freeze()
    }

    /// Reads the compact form; documents share the bytes.
    pub fn from_compact(bytes: &Bytes) -> Result<Self> {
        let Some(&[MAGIC, version, code, flags]) = bytes.first_chunk() else {
            return Err(corrupt("it does not begin like an event"));
        };
        if version != VERSION {
            return Err(corrupt("its version is newer than this program"));
        }
        let operation = operation(code)?;
        let mut rest = Rest(&bytes[4..]);
        let (committed_ms, observed_ms) = (rest.varint()?, rest.varint()?);
        let tenant = Tenant::new(rest.str()?)?;
        let (collection, key) = (rest.str()?.into(), rest.str()?.into());
        let mut document = |flag: u8| match flags & flag {
            0 => Ok(None),
            _ => rest.text().and_then(|text| Document::trusted(bytes.slice_ref(text))).map(Some),
        };
        let (before, after) = (document(BEFORE)?, document(AFTER)?);
        if flags & !(BEFORE | AFTER) != 0 || !rest.0.is_empty() {
            return Err(corrupt("it is followed by something unknown"));
        }
        Ok(Self { operation, tenant, collection, key, before, after, committed_ms, observed_ms })
    }

    /// Reads whichever form a record's payload has.
    pub fn from_payload(payload: &Bytes) -> Result<Self> {
        match payload.first() {
            Some(&MAGIC) => Self::from_compact(payload),
            _ => Self::from_json(payload),
        }
    }
}

fn operation(code: u8) -> Result<Operation> {
    const ALL: [Operation; 5] =
        [Operation::Insert, Operation::Update, Operation::Replace, Operation::Delete, Operation::Snapshot];
    ALL.get(usize::from(code)).copied().ok_or_else(|| corrupt("its operation is unknown"))
}

fn put_text(out: &mut BytesMut, text: &[u8]) {
    put_varint(out, text.len() as u64);
    out.put_slice(text);
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn text(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok();
        let (text, rest) = length
            .and_then(|length| self.0.split_at_checked(length))
            .ok_or_else(|| corrupt("it is cut off"))?;
        self.0 = rest;
        Ok(text)
    }

    fn str(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.text()?).map_err(|_| corrupt("a name in it is not text"))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or_else(|| corrupt("it is cut off"))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if *byte < 0x80 {
                return Ok(value);
            }
        }
        Err(corrupt("a number in it is too long"))
    }
}

fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a stored event cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn document() -> impl Strategy<Value = Option<Document>> {
        proptest::option::of(".{0,20}").prop_map(|text| {
            text.map(|text| Document::from_value(&serde_json::json!({ "t": text })).unwrap())
        })
    }

    fn event() -> impl Strategy<Value = Event> {
        let names = ("[a-z0-9]{1,8}", "[^\\x00]{1,20}", ".{1,30}");
        (0_u8..5, names, document(), document(), any::<u64>(), any::<u64>()).prop_map(
            |(code, (tenant, collection, key), before, after, committed_ms, observed_ms)| {
                let tenant = Tenant::new(tenant).unwrap();
                let event = Event::new(operation(code).unwrap(), tenant, collection, key);
                Event { before, after, committed_ms, observed_ms, ..event }
            },
        )
    }

    proptest! {
        #[test]
        fn either_form_gives_back_the_event(event in event()) {
            prop_assert_eq!(&Event::from_payload(&event.to_compact()).unwrap(), &event);
            prop_assert_eq!(&Event::from_payload(&event.to_json().into()).unwrap(), &event);
        }

        #[test]
        fn a_damaged_event_is_an_error_and_never_a_panic(
            event in event(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>(), bits in 1_u8..
        ) {
            let whole = event.to_compact();
            let cut = cut.index(whole.len());
            prop_assert!(Event::from_compact(&whole.slice(..cut)).is_err());
            let mut flipped = whole.to_vec();
            let at = flip.index(flipped.len());
            flipped[at] ^= bits;
            // It may read as another event, but it may not bring the reader down.
            let _ = Event::from_payload(&flipped.into());
        }
    }
}
