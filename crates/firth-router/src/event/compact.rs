//! The compact form of an event, for topics: a few bytes of frame around the texts as they are.
//!
//! ```text
//! 0xF1 version  1  operation  flags(1 before, 2 after, 4 missing, 8 reason)
//! varint committed_ms  varint observed_ms
//! tenant, collection, key, [before], [after]: varint length, bytes
//! [missing]: varint count, texts  [reason]: text
//! ```
//! JSON never starts with 0xF1, so [`Event::from_payload`] reads either form. An empty tenant
//! stands for all. Builds before controls and missing columns refuse an operation or a flag that
//! they do not know, and read everything else.

use super::{Document, Event, MAX_MISSING, Operation, Text};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Tenant;
use bytes::{BufMut, Bytes, BytesMut};

const MAGIC: u8 = 0xF1;
const VERSION: u8 = 1;
const BEFORE: u8 = 1;
const AFTER: u8 = 2;
const MISSING: u8 = 4;
const REASON: u8 = 8;

impl Event {
    /// Writes the compact form.
    pub fn to_compact(&self) -> Bytes {
        let documents = [&self.before, &self.after];
        let texts: usize = documents.iter().filter_map(|d| d.as_ref()).map(|d| d.text().len() + 5).sum();
        let mut out = BytesMut::with_capacity(64 + self.collection.len() + self.key.len() + texts);
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let flags = flag(self.before.is_some(), BEFORE)
            | flag(self.after.is_some(), AFTER)
            | flag(!self.missing.is_empty(), MISSING)
            | flag(self.reason.is_some(), REASON);
        let tenant = if self.is_for_all_tenants() { "" } else { self.tenant.as_str() };
        out.put_slice(&[MAGIC, VERSION, self.operation as u8, flags]);
        put_varint(&mut out, self.committed_ms);
        put_varint(&mut out, self.observed_ms);
        for text in [tenant, &self.collection, &self.key] {
            put_text(&mut out, text.as_bytes());
        }
        for document in documents.into_iter().flatten() {
            put_text(&mut out, document.text());
        }
        if !self.missing.is_empty() {
            put_varint(&mut out, self.missing.len() as u64);
            self.missing.iter().for_each(|column| put_text(&mut out, column.as_bytes()));
        }
        self.reason.iter().for_each(|reason| put_text(&mut out, reason.as_bytes()));
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
        let committed_ms = rest.varint()?;
        let observed_ms = rest.varint()?;
        let tenant = match rest.str()? {
            "" if operation.is_control() => Tenant::any(),
            tenant => Tenant::new(tenant)?,
        };
        let collection = rest.str()?.into();
        let key = rest.str()?.into();
        let mut document = |flag: u8| match flags & flag {
            0 => Ok(None),
            _ => rest.text().and_then(|text| Document::trusted(bytes.slice_ref(text))).map(Some),
        };
        let before = document(BEFORE)?;
        let after = document(AFTER)?;
        let missing = if flags & MISSING == 0 { Vec::new() } else { rest.columns()? };
        let reason = if flags & REASON == 0 { None } else { Some(Text::from(rest.str()?)) };
        if flags & !(BEFORE | AFTER | MISSING | REASON) != 0 || !rest.0.is_empty() {
            return Err(corrupt("it is followed by something unknown"));
        }
        let event = Self {
            operation,
            tenant,
            collection,
            key,
            before,
            after,
            committed_ms,
            observed_ms,
            missing,
            reason,
        };
        if event.operation.is_control() || flags & (MISSING | REASON) != 0 {
            event.check()?;
        }
        Ok(event)
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
    const ALL: [Operation; 7] = [
        Operation::Insert,
        Operation::Update,
        Operation::Replace,
        Operation::Delete,
        Operation::Snapshot,
        Operation::Truncate,
        Operation::Resync,
    ];
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

    fn columns(&mut self) -> Result<Vec<Text>> {
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if count > MAX_MISSING {
            return Err(corrupt("it misses too many columns"));
        }
        (0..count).map(|_| self.str().map(Text::from)).collect()
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
                let missing =
                    if observed_ms % 3 == 0 { vec!["a".into(), "long column".into()] } else { Vec::new() };
                Event { before, after, committed_ms, observed_ms, missing, ..event }
            },
        )
    }

    fn control() -> impl Strategy<Value = Event> {
        let tenant = proptest::option::of("[a-z0-9]{1,8}".prop_map(|name| Tenant::new(name).unwrap()));
        (5_u8..7, tenant, "[^\\x00]{1,20}", proptest::option::of(".{0,30}"), any::<u64>()).prop_map(
            |(code, tenant, collection, reason, committed_ms)| {
                let event = Event::control(operation(code).unwrap(), tenant, collection);
                Event { committed_ms, reason: reason.map(Text::from), ..event }
            },
        )
    }

    proptest! {
        #[test]
        fn either_form_gives_back_the_event(event in prop_oneof![4 => event(), 1 => control()]) {
            for form in [event.to_compact(), event.to_json().into()] {
                let back = Event::from_payload(&form).unwrap();
                prop_assert_eq!(&back, &event);
                prop_assert_eq!(back.observed_ms, event.observed_ms);
            }
        }

        /// What a build before controls reads: its bytes are what they were.
        #[test]
        fn the_form_of_a_plain_event_has_not_changed(event in event()) {
            let event = Event { missing: Vec::new(), ..event };
            let bytes = event.to_compact();
            prop_assert!(bytes[2] < 5 && bytes[3] < 4 && bytes[1] == 1);
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
