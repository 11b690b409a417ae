//! Record ids and epochs: the two numbers on which order and ownership rest.
//!
//! A [`RecordId`] is `ms-seq`. `ms` is the engine's time of the append and never goes back inside a
//! partition; `seq` is the record's running number in its partition, starting at 1, without holes.
//! So both halves grow together, ids order by either, "from this time on" is a search, and counts
//! are subtractions: the exact lag of a group costs two ids, however long the log is.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Where a record stands in its partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// Engine time of the append, in milliseconds since 1970; never goes back inside a partition.
    pub ms: u64,
    /// Running number inside the partition, from 1, without holes.
    pub seq: u64,
}

impl RecordId {
    /// Before every record.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };
    /// After every record.
    pub const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// The id with these halves.
    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// The position just before all records that were appended at `ms` or later (for "from this
    /// time on").
    pub const fn before_ms(ms: u64) -> Self {
        match ms.checked_sub(1) {
            Some(previous) => Self { ms: previous, seq: u64::MAX },
            None => Self::ZERO,
        }
    }

    /// Whether this names a record, and not a point in time or an end of the log.
    pub(crate) const fn names_a_record(self) -> bool {
        self.seq > 0 && self.seq < u64::MAX
    }

    /// The id `count` records further inside the same batch.
    pub const fn plus(self, count: u64) -> Self {
        Self { ms: self.ms, seq: self.seq + count }
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for RecordId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text.as_bytes())
            .ok_or_else(|| Error::invalid("record id must look like 1700000000000-42").with_field("id"))
    }
}

/// In one pass: many ids are read where many records fail.
fn parse(text: &[u8]) -> Option<RecordId> {
    let (ms, rest) = number(text)?;
    let (seq, rest) = number(rest.strip_prefix(b"-")?)?;
    rest.is_empty().then_some(RecordId { ms, seq })
}

/// The number that a text begins with, plain digits only, and what comes behind it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    for digit in &text[..end] {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (end > 0).then(|| (number, &text[end..]))
}

/// Grows with each change of holder of a lease, and never goes back:
/// `max(stored + 1, engine time in µs)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after `self` at engine time `now_us`.
    #[must_use]
    pub fn next(self, now_us: u64) -> Self {
        Self((self.0 + 1).max(now_us))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_survives_printing_and_parsing(ms: u64, seq: u64) {
            let id = RecordId::new(ms, seq);
            prop_assert_eq!(id.to_string().parse::<RecordId>().unwrap(), id);
        }

        #[test]
        fn an_epoch_always_grows(stored in 0u64..u64::MAX, now: u64) {
            prop_assert!(Epoch(stored).next(now) > Epoch(stored));
        }

        #[test]
        fn before_ms_lies_between_the_neighbours(ms in 1u64.., seq in 1u64..u64::MAX) {
            prop_assert!(RecordId::before_ms(ms) < RecordId::new(ms, seq));
            prop_assert!(RecordId::before_ms(ms) > RecordId::new(ms - 1, seq));
        }
    }

    #[test]
    fn ids_that_only_look_like_ids_are_refused() {
        for bad in ["", "1", "1-", "-1", "+1-2", "1-+2", "1-2-3", "1 -2", "18446744073709551616-1"] {
            assert!(bad.parse::<RecordId>().is_err(), "{bad:?}");
        }
    }
}
