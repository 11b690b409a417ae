//! [`Position`]: a place in what a tenant's clients can see, for resuming. Opaque to clients: `epoch:offset`, or `epoch:offset.offset…` with one
//! for each partition of the topic that the gateway follows.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::str::FromStr;

/// The place behind an event. Positions of different epochs cannot be compared: another process, another topic, or another life of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Position {
    /// Which journal or topic counts.
    pub(crate) epoch: u64,
    pub(crate) offsets: Offsets,
}

impl Position {
    pub(crate) fn new(epoch: u64, offsets: Offsets) -> Self {
        Self { epoch, offsets }
    }

    /// Before everything; of no epoch.
    pub(crate) fn nowhere() -> Self {
        Self::new(0, Offsets::default())
    }
}

/// How far each partition has come: the number of its last record, 0 before the first. Partitions that are not mentioned are at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Offsets(SmallVec<[u64; 1]>);

impl Offsets {
    /// Of one partition alone.
    #[cfg(test)]
    pub(crate) fn single(offset: u64) -> Self {
        let mut offsets = Self::default();
        offsets.raise(0, offset);
        offsets
    }

    pub(crate) fn get(&self, partition: u32) -> u64 {
        self.0.get(partition as usize).copied().unwrap_or(0)
    }

    /// The partition has come as far as this.
    pub(crate) fn raise(&mut self, partition: u32, offset: u64) {
        let at = partition as usize;
        if offset > self.get(partition) {
            if self.0.len() <= at {
                self.0.resize(at + 1, 0);
            }
            self.0[at] = offset;
        }
    }

    /// As far as the further of both, in each partition.
    pub(crate) fn raise_all(&mut self, other: &Self) {
        for (partition, offset) in (0..).zip(&other.0) {
            self.raise(partition, *offset);
        }
    }

    /// One step back in this partition.
    pub(crate) fn before(&self, partition: u32) -> Self {
        let mut before = self.clone();
        if let Some(offset) = before.0.get_mut(partition as usize) {
            *offset = offset.saturating_sub(1);
        }
        while before.0.last() == Some(&0) {
            before.0.pop();
        }
        before
    }

    /// Whether it is at least as far in every partition.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        (0..).zip(&other.0).all(|(partition, offset)| self.get(partition) >= *offset)
    }

    /// Tells which of two is further, if one covers the other.
    pub(crate) fn order(&self) -> u128 {
        self.0.iter().map(|offset| u128::from(*offset)).sum()
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        if self.0.spilled() { self.0.capacity() * size_of::<u64>() } else { 0 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.offsets.get(0))?;
        self.offsets.0.iter().skip(1).try_for_each(|offset| write!(f, ".{offset}"))
    }
}

/// The text is not a position that a gateway gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`after` is not a position: give the text that came as `at`, unchanged")]
pub struct NotAPosition;

impl FromStr for Position {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, NotAPosition> {
        let (epoch, offsets) = text.split_once(':').ok_or(NotAPosition)?;
        if epoch.len() != 16 || epoch.starts_with('+') {
            return Err(NotAPosition);
        }
        let epoch = u64::from_str_radix(epoch, 16).map_err(|_| NotAPosition)?;
        let mut read = Offsets::default();
        for (partition, offset) in (0..).zip(offsets.split('.')) {
            if offset.starts_with('+') || partition >= firth::MAX_PARTITIONS {
                return Err(NotAPosition);
            }
            read.raise(partition, offset.parse().map_err(|_| NotAPosition)?);
        }
        Ok(Self::new(epoch, read))
    }
}

impl TryFrom<String> for Position {
    type Error = NotAPosition;

    fn try_from(text: String) -> Result<Self, NotAPosition> {
        text.parse()
    }
}

impl From<Position> for String {
    fn from(position: Position) -> Self {
        position.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offsets(list: &[u64]) -> Offsets {
        let mut offsets = Offsets::default();
        for (partition, offset) in (0..).zip(list) {
            offsets.raise(partition, *offset);
        }
        offsets
    }

    proptest! {
        #[test]
        fn a_position_reads_back_as_it_was_written(epoch in any::<u64>(), list in prop::collection::vec(any::<u64>(), 0..6)) {
            let position = Position::new(epoch, offsets(&list));
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }

        #[test]
        fn any_other_text_is_refused_without_a_panic(text in "[0-9a-f:.+]{0,30}|.{0,30}") {
            if let Ok(position) = text.parse::<Position>() {
                prop_assert!(position.to_string().to_ascii_lowercase().len() <= text.len().max(18));
            }
        }

        #[test]
        fn what_covers_another_is_further_and_both_together_cover_each(
            one in prop::collection::vec(0..4_u64, 0..4),
            two in prop::collection::vec(0..4_u64, 0..4),
        ) {
            let (one, two) = (offsets(&one), offsets(&two));
            prop_assert!(!one.covers(&two) || one.order() >= two.order());
            prop_assert_eq!(one.covers(&two) && two.covers(&one), one == two);
            let mut both = one.clone();
            both.raise_all(&two);
            prop_assert!(both.covers(&one) && both.covers(&two));
            for partition in 0..4 {
                prop_assert_eq!(one.before(partition).get(partition), one.get(partition).saturating_sub(1));
                prop_assert!(one.covers(&one.before(partition)));
            }
        }
    }

    #[test]
    fn more_offsets_than_a_topic_can_have_partitions_are_refused() {
        let text = |count: usize| format!("{:016x}:{}", 1, vec!["1"; count].join("."));
        assert!(text(firth::MAX_PARTITIONS as usize).parse::<Position>().is_ok());
        assert!(text(firth::MAX_PARTITIONS as usize + 1).parse::<Position>().is_err());
    }
}
