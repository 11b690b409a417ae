//! [`Position`]: where a change stands in a PostgreSQL history, as bytes whose order is source
//! order.

use crate::error::{Error, Result};
use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;
use std::str::FromStr;

/// A place in the write-ahead log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let half = |part: &str| u32::from_str_radix(part, 16).ok();
        text.split_once('/')
            .and_then(|(high, low)| Some(Self(u64::from(half(high)?) << 32 | u64::from(half(low)?))))
            .ok_or_else(|| Error::corrupt("the server names a log position that is none"))
    }
}

/// The place of one change. The commit decides the order of transactions, because the server sends
/// them in the order of their commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The identifier that the cluster got when it was made.
    pub system: u64,
    /// The timeline; it grows with each failover.
    pub timeline: u32,
    /// The commit record of the change's transaction.
    pub commit: Lsn,
    /// The change's number in its transaction.
    pub index: u32,
    /// The newest group of copied rows that the partition holds with it; 0 for none.
    pub group: u64,
}

impl Position {
    /// The stored form: big-endian, so that byte order is source order.
    pub fn to_bytes(self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(32);
        bytes.put_u64(self.system);
        bytes.put_u32(self.timeline);
        bytes.put_u64(self.commit.0);
        bytes.put_u32(self.index);
        if self.group > 0 {
            bytes.put_u64(self.group);
        }
        bytes.freeze()
    }

    /// Reads the stored form. Longer ones are allowed: a later version may add to the end.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let corrupt = || Error::corrupt("the topic holds a source mark that is no PostgreSQL position");
        let (system, rest) = bytes.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let (timeline, rest) = rest.split_first_chunk::<4>().ok_or_else(corrupt)?;
        let (commit, rest) = rest.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let (index, rest) = rest.split_first_chunk::<4>().ok_or_else(corrupt)?;
        let group = rest.first_chunk::<8>().copied().unwrap_or_default();
        Ok(Self {
            system: u64::from_be_bytes(*system),
            timeline: u32::from_be_bytes(*timeline),
            commit: Lsn(u64::from_be_bytes(*commit)),
            index: u32::from_be_bytes(*index),
            group: u64::from_be_bytes(group),
        })
    }
}

/// As headers show it: `system.timeline.commit.index`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.system, self.timeline, self.commit, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn position() -> impl Strategy<Value = Position> {
        (
            0_u64..3,
            0_u32..3,
            prop_oneof![0_u64..300, any::<u64>()],
            prop_oneof![0_u32..300, any::<u32>()],
            0_u64..3,
        )
            .prop_map(|(system, timeline, commit, index, group)| Position {
                system,
                timeline,
                commit: Lsn(commit),
                index,
                group,
            })
    }

    proptest! {
        #[test]
        fn the_order_of_the_bytes_is_the_order_of_the_source(one in position(), other in position()) {
            prop_assert_eq!(one.to_bytes().cmp(&other.to_bytes()), one.cmp(&other));
            prop_assert_eq!(Position::from_bytes(&one.to_bytes()).unwrap(), one);
        }

        #[test]
        fn an_lsn_reads_as_it_is_written(lsn: u64) {
            prop_assert_eq!(Lsn(lsn).to_string().parse::<Lsn>().unwrap(), Lsn(lsn));
        }
    }

    #[test]
    fn what_is_no_position_is_refused() {
        assert!(Position::from_bytes(&[0; 23]).is_err());
        for text in ["", "1", "1/", "/1", "1/g", "1/2/3", "100000000/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
        assert_eq!("16/B374D848".parse::<Lsn>().unwrap(), Lsn(0x16_B374_D848));
    }
}
