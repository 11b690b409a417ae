//! What the log holds: [`Content`] (what a producer sent) and [`Record`] (content with a position
//! and an attempt), and the packed envelope in which both engines store content.
//!
//! The envelope is one run of bytes: version, flags, time, then the optional parts, then the
//! payload up to the end. Reading shares the memory of the input. An unknown version is an error
//! that says so, never a guess.

use crate::codec::{Reader, put_number, put_run};
use crate::error::{Error, Result};
use crate::headers::Headers;
use crate::id::RecordId;
use crate::limits::{MAX_KEY, MAX_PAYLOAD};
use crate::name::{GroupName, Partition, TopicName};
use bytes::{BufMut, Bytes};
use std::fmt;

/// What was sent: everything of a record but its place.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Records with one key stay in order; at most [`MAX_KEY`] bytes.
    pub key: Option<Bytes>,
    /// The message itself.
    pub payload: Bytes,
    /// Named extras.
    pub headers: Headers,
    /// When the producer made it, in milliseconds since 1970 on the producer's clock. For people,
    /// never for order.
    pub timestamp: u64,
    /// Where a replayed record came from. Few have it, and records are moved often.
    pub origin: Option<Box<Origin>>,
    /// How the payload is written. Engines only keep this; the code that makes content encodes the
    /// payload, and the code that reads content decodes it.
    pub encoding: Encoding,
}

/// How a payload is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    #[default]
    Plain,
    /// Compressed: the length of the original in four bytes (little-endian), then one LZ4 block.
    Lz4,
}

/// Where a dead letter stood before it was appended again for everyone; if that happened more than
/// once, where it stood first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its partition then.
    pub at: Partition,
    /// Its id then.
    pub id: RecordId,
    /// The group that had given it up.
    pub group: GroupName,
}

/// Content at its place in a partition.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place.
    pub id: RecordId,
    /// 1 on the first delivery; one more after each failed one.
    pub attempt: u32,
    /// How many owners vanished while they had it.
    pub crashes: u32,
    /// What was sent.
    pub content: Content,
}

const VERSION: u8 = 1;
const KEY: u8 = 1;
const HEADERS: u8 = 2;
const ORIGIN: u8 = 4;
const LZ4: u8 = 8;

impl Content {
    /// Content with just a payload.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// The same with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Checks key, headers and payload against the limits.
    pub fn check(&self) -> Result<()> {
        let key = self.key.as_ref().map_or(0, Bytes::len);
        if key > MAX_KEY {
            let context = format!("key has {key} bytes; at most {MAX_KEY} are allowed");
            return Err(Error::beyond("key", MAX_KEY, context));
        }
        if self.payload.len() > MAX_PAYLOAD {
            let size = self.payload.len();
            let context = format!(
                "payload has {size} bytes; at most {MAX_PAYLOAD} are allowed: store it elsewhere and send a reference"
            );
            return Err(Error::beyond("payload", MAX_PAYLOAD, context));
        }
        self.headers.check()
    }

    /// About how many bytes the packed form takes.
    pub fn packed_len(&self) -> usize {
        let origin =
            self.origin.as_ref().map_or(0, |o| 32 + o.at.topic.as_str().len() + o.group.as_str().len());
        24 + self.key.as_ref().map_or(0, Bytes::len) + self.headers.raw().len() + origin + self.payload.len()
    }

    /// Appends the packed form to `out`.
    pub fn pack(&self, out: &mut impl BufMut) {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        out.put_u8(VERSION);
        out.put_u8(
            flag(self.key.is_some(), KEY)
                | flag(!self.headers.is_empty(), HEADERS)
                | flag(self.origin.is_some(), ORIGIN)
                | flag(self.encoding == Encoding::Lz4, LZ4),
        );
        put_number(out, self.timestamp);
        if let Some(key) = &self.key {
            put_run(out, key);
        }
        if !self.headers.is_empty() {
            put_run(out, self.headers.raw());
        }
        if let Some(origin) = &self.origin {
            put_run(out, origin.at.topic.as_str().as_bytes());
            put_number(out, u64::from(origin.at.index));
            put_number(out, origin.id.ms);
            put_number(out, origin.id.seq);
            put_run(out, origin.group.as_str().as_bytes());
        }
        out.put_slice(&self.payload);
    }

    /// The packed form as its own run of bytes.
    pub fn packed(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.packed_len());
        self.pack(&mut out);
        out.into()
    }

    /// Reads a packed form, sharing its memory.
    pub fn unpack(packed: Bytes) -> Result<Self> {
        let mut reader = Reader(packed);
        match reader.byte() {
            Some(VERSION) => Self::unpack_v1(reader)
                .ok_or_else(|| Error::corrupt("a stored record is damaged (its envelope ends too early)")),
            Some(version) => Err(Error::corrupt(format!(
                "a stored record has envelope version {version}; this build reads up to {VERSION}: upgrade it"
            ))),
            None => Err(Error::corrupt("a stored record is empty")),
        }
    }

    fn unpack_v1(mut reader: Reader) -> Option<Self> {
        let flags = reader.byte().filter(|flags| flags & !(KEY | HEADERS | ORIGIN | LZ4) == 0)?;
        let timestamp = reader.number()?;
        let key = if flags & KEY != 0 { Some(reader.run()?) } else { None };
        let headers = if flags & HEADERS != 0 { Headers::from_raw(reader.run()?)? } else { Headers::new() };
        let origin = if flags & ORIGIN != 0 { Some(Box::new(Origin::unpack(&mut reader)?)) } else { None };
        let encoding = if flags & LZ4 != 0 { Encoding::Lz4 } else { Encoding::Plain };
        Some(Self { key, payload: reader.rest(), headers, timestamp, origin, encoding })
    }
}

impl Origin {
    fn unpack(reader: &mut Reader) -> Option<Self> {
        let topic = TopicName::new(reader.text()?).ok()?;
        let index = reader.small()?;
        let id = RecordId::new(reader.number()?, reader.number()?);
        let group = GroupName::new(reader.text()?).ok()?;
        Some(Self { at: Partition::new(topic, index), id, group })
    }
}

/// Never shows key or payload (invariant 10).
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content")
            .field("key_bytes", &self.key.as_ref().map(Bytes::len))
            .field("payload_bytes", &self.payload.len())
            .field("headers", &self.headers)
            .field("timestamp", &self.timestamp)
            .field("origin", &self.origin)
            .finish()
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} attempt {} crashes {} {:?})", self.id, self.attempt, self.crashes, self.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use proptest::prelude::*;

    fn contents() -> impl Strategy<Value = Content> {
        let origin =
            ("[a-z]{1,9}", any::<u32>(), any::<(u64, u64)>(), "[a-z]{1,9}").prop_map(|(t, i, id, g)| {
                Box::new(Origin {
                    at: Partition::new(TopicName::new(t).unwrap(), i),
                    id: RecordId::new(id.0, id.1),
                    group: GroupName::new(g).unwrap(),
                })
            });
        let headers = prop::collection::vec(("[a-z]{1,5}", any::<Vec<u8>>()), 0..4)
            .prop_map(|list| Headers::from_pairs(list).unwrap());
        let encoding = prop_oneof![Just(Encoding::Plain), Just(Encoding::Lz4)];
        (
            any::<Option<Vec<u8>>>(),
            any::<Vec<u8>>(),
            headers,
            any::<u64>(),
            prop::option::of(origin),
            encoding,
        )
            .prop_map(|(key, payload, headers, timestamp, origin, encoding)| Content {
                encoding,
                key: key.map(Bytes::from),
                payload: payload.into(),
                headers,
                timestamp,
                origin,
            })
    }

    proptest! {
        #[test]
        fn content_survives_packing(content in contents()) {
            let packed = content.packed();
            prop_assert!(packed.len() <= content.packed_len());
            prop_assert_eq!(Content::unpack(packed).unwrap(), content);
        }

        #[test]
        fn any_bytes_unpack_or_fail_without_panic(bytes: Vec<u8>) {
            let _ = Content::unpack(bytes.into());
        }

        #[test]
        fn a_cut_envelope_never_gives_another_key_or_header(content in contents(), cut in 0usize..64) {
            let packed = content.packed();
            let keep = packed.len().saturating_sub(cut);
            if let Ok(short) = Content::unpack(packed.slice(..keep)) {
                prop_assert_eq!(short.key, content.key);
                prop_assert_eq!(short.headers, content.headers);
            }
        }
    }

    #[test]
    fn a_newer_envelope_is_refused_by_name() {
        let error = Content::unpack(Bytes::from_static(&[9, 0, 0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.context().contains("version 9"));
    }

    #[test]
    fn limits_are_checked_and_named() {
        let big_key = Content::new("x").with_key(vec![0; MAX_KEY + 1]);
        assert!(big_key.check().unwrap_err().context().contains("1024"));
        assert!(Headers::from_pairs((0..33).map(|i| (format!("h{i}"), "v"))).is_err());
        assert!(Headers::from_pairs([("h", vec![0; 9000])]).is_err());
        assert!(Content::new(vec![0; MAX_PAYLOAD + 1]).check().is_err());
    }

    #[test]
    fn debug_output_never_shows_what_was_sent() {
        let content = Content::new("secret-payload").with_key("secret-key");
        assert!(!format!("{content:?}").contains("secret"));
    }
}
