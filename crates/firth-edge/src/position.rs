//! [`Position`]: a place in what a tenant's clients can see, for resuming. Opaque to clients: `epoch:offset`, or `epoch:offset.offset…` with one
//! for each partition of the topic that the gateway follows, and behind those, with a zero in front, the time of the newest record: a log
//! that lost records gives their numbers again, but at a later time.

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
pub(crate) struct Offsets {
    seqs: SmallVec<[u64; 1]>,
    /// Not before the newest of these records was appended; 0 if unknown. Grows when a partition goes back.
    time: u64,
}

impl Offsets {
    /// Before the first record of so many partitions.
    pub(crate) fn of(partitions: usize) -> Self {
        Self { seqs: smallvec::smallvec![0; partitions], time: 0 }
    }

    /// Of one partition alone.
    #[cfg(test)]
    pub(crate) fn single(offset: u64) -> Self {
        let mut offsets = Self::default();
        offsets.raise(0, offset);
        offsets
    }

    pub(crate) fn get(&self, partition: u32) -> u64 {
        self.seqs.get(partition as usize).copied().unwrap_or(0)
    }

    /// The partition has come as far as this.
    pub(crate) fn raise(&mut self, partition: u32, offset: u64) {
        let at = partition as usize;
        if offset > self.get(partition) {
            if self.seqs.len() <= at {
                self.seqs.resize(at + 1, 0);
            }
            self.seqs[at] = offset;
        }
    }

    /// The partition has gone back to this record, and what follows comes at this time.
    pub(crate) fn set_back(&mut self, partition: u32, offset: u64, ms: u64) {
        if let Some(kept) = self.seqs.get_mut(partition as usize) {
            *kept = offset;
        }
        // So that a position from now on is later than each one from before, whichever partition that was from.
        self.time = ms.max(self.time + 1);
    }

    /// With a time behind them, all partitions are mentioned: each offset keeps its place in the text.
    fn widen(&mut self, partitions: usize) {
        if self.time > 0 && self.seqs.len() < partitions {
            self.seqs.resize(partitions, 0);
        }
    }

    /// The time of the newest record, in milliseconds.
    pub(crate) fn time(&self) -> u64 {
        self.time
    }

    /// A record was appended at this time.
    pub(crate) fn raise_time(&mut self, ms: u64) {
        self.time = self.time.max(ms);
    }

    /// As far as the further of both, in each partition.
    pub(crate) fn raise_all(&mut self, other: &Self) {
        for (partition, offset) in (0..).zip(&other.seqs) {
            self.raise(partition, *offset);
        }
        self.raise_time(other.time);
        self.widen(other.seqs.len());
    }

    /// One step back in this partition.
    pub(crate) fn before(&self, partition: u32) -> Self {
        let mut before = self.clone();
        if let Some(offset) = before.seqs.get_mut(partition as usize) {
            *offset = offset.saturating_sub(1);
        }
        while self.time == 0 && before.seqs.last() == Some(&0) {
            before.seqs.pop();
        }
        before
    }

    /// Whether it is at least as far in every partition.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        (0..).zip(&other.seqs).all(|(partition, offset)| self.get(partition) >= *offset)
    }

    /// Tells which of two is further, if one covers the other, or was given after the other's partition went back.
    pub(crate) fn order(&self) -> (u64, u128) {
        (self.time, self.seqs.iter().map(|offset| u128::from(*offset)).sum())
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        if self.seqs.spilled() { self.seqs.capacity() * size_of::<u64>() } else { 0 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.offsets.get(0))?;
        self.offsets.seqs.iter().skip(1).try_for_each(|offset| write!(f, ".{offset}"))?;
        if self.offsets.time > 0 { write!(f, ".0{}", self.offsets.time) } else { Ok(()) }
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
        let with_time =
            offsets.rsplit_once('.').and_then(|(rest, last)| Some((rest, last.strip_prefix('0')?)));
        let offsets = match with_time {
            Some((rest, time)) if time.starts_with(|first: char| first.is_ascii_digit()) => {
                read.time = time.parse().map_err(|_| NotAPosition)?;
                rest
            }
            _ => offsets,
        };
        for (partition, offset) in (0..).zip(offsets.split('.')) {
            if offset.starts_with('+') || partition >= firth::MAX_PARTITIONS {
                return Err(NotAPosition);
            }
            read.raise(partition, offset.parse().map_err(|_| NotAPosition)?);
            read.widen(partition as usize + 1);
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
        fn a_position_reads_back_as_it_was_written(
            epoch in any::<u64>(),
            list in prop::collection::vec(any::<u64>(), 0..6),
            time in prop_oneof![Just(0), any::<u64>()],
        ) {
            let mut position = Position::new(epoch, offsets(&list));
            position.offsets.raise_time(time);
            position.offsets.widen(list.len().max(1));
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
