//! Entries of Redis streams, as XRANGE, XREAD, XREADGROUP, XCLAIM and XAUTOCLAIM answer with them.

use super::convert::{ConvertError, ConvertProblem, FromValue, Segment};
use super::value::Value;
use bytes::Bytes;

/// One entry of a Redis stream; shares the bytes of its frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    /// Milliseconds and sequence number: `1526985054069-0`.
    pub id: Bytes,
    /// Names and values in order; empty if the entry was deleted while it was pending.
    pub fields: Vec<(Bytes, Bytes)>,
}

impl StreamEntry {
    /// Milliseconds and sequence number of the id; `None` if the server sent something else.
    pub fn id_parts(&self) -> Option<(u64, u64)> {
        let (ms, seq) = std::str::from_utf8(&self.id).ok()?.split_once('-')?;
        Some((ms.parse().ok()?, seq.parse().ok()?))
    }

    /// The value of the first field of that name.
    pub fn field(&self, name: impl AsRef<[u8]>) -> Option<&Bytes> {
        self.fields.iter().find(|(key, _)| key == name.as_ref()).map(|(_, value)| value)
    }
}

impl FromValue for StreamEntry {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        let mut parts = value.iter();
        let (Some(id), Some(fields), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(match value.kind().is_aggregate() {
                true => ConvertError::new(ConvertProblem::SizeMismatch { expected: 2, found: value.len() }),
                false => ConvertError::mismatch("stream entry", value),
            });
        };
        Ok(Self {
            id: Bytes::from_value(id).map_err(|error| error.within(Segment::Field("id")))?,
            fields: Option::<Vec<(Bytes, Bytes)>>::from_value(fields)
                .map_err(|error| error.within(Segment::Field("fields")))?
                .unwrap_or_default(),
        })
    }
}
