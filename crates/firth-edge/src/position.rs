//! [`Position`]: a place in what a tenant's clients can see, for resuming. Opaque to clients:
//! `epoch:offset`, or `epoch:offset.offset…` with one for each partition of the topic that the
//! gateway follows, and behind those, with a zero in front, the time of the newest record: a log
//! that lost records gives their numbers again, but at a later time. If the last records of the
//! partitions have other times, `-` and how much earlier each is follow.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// The place behind an event. Positions of different epochs cannot be compared: another process,
/// another topic, or another life of the journal.
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

/// How far each partition has come: the number of its last record, 0 before the first. Partitions
/// that are not mentioned are at 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets {
    seqs: SmallVec<[u64; 1]>,
    /// Not before the newest of these records was appended; 0 if unknown. Grows when a partition
    /// goes back.
    time: u64,
    /// When the last record of each partition was appended. A partition that is missing here, or
    /// has 0, has `time`.
    times: SmallVec<[u64; 1]>,
}

impl PartialEq for Offsets {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |partition| self.time_of(partition) == other.time_of(partition);
        self.seqs == other.seqs && self.time == other.time && self.partitions().all(is_same)
    }
}

impl Eq for Offsets {}

impl Hash for Offsets {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.seqs, self.time).hash(state);
    }
}

impl Offsets {
    /// Before the first record of this many partitions.
    pub(crate) fn of(partitions: usize) -> Self {
        Self { seqs: smallvec::smallvec![0; partitions], ..Self::default() }
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
        // So that a position from now on is later than each one from before, whichever partition
        // that was from.
        self.fix_times();
        self.time = ms.max(self.time + 1);
        self.times[partition as usize] = ms;
    }

    /// With a time behind them, all partitions are mentioned: each offset keeps its place in the
    /// text.
    fn widen(&mut self, partitions: usize) {
        if self.time > 0 && self.seqs.len() < partitions {
            self.seqs.resize(partitions, 0);
        }
    }

    fn partitions(&self) -> std::ops::Range<u32> {
        0..self.seqs.len() as u32
    }

    /// When the last record of a partition was appended, in milliseconds; 0 if unknown.
    pub(crate) fn time_of(&self, partition: u32) -> u64 {
        let own = self.times.get(partition as usize).copied().unwrap_or_default();
        if own > 0 { own } else { self.time }
    }

    /// Writes down the times of all partitions that have records, before `time` changes.
    fn fix_times(&mut self) {
        let time = |partition| if self.get(partition) > 0 { self.time_of(partition) } else { 0 };
        self.times = self.partitions().map(time).collect();
    }

    /// The last record of the partition was appended at this time.
    pub(crate) fn raise_time(&mut self, partition: u32, ms: u64) {
        let at = partition as usize;
        if self.seqs.len() == 1 && at == 0 && self.times.is_empty() {
            self.time = self.time.max(ms);
        } else if at < self.seqs.len() {
            let own = self.times.get(at).copied().unwrap_or_default();
            self.fix_times();
            self.times[at] = own.max(ms);
            self.time = self.time.max(ms);
        }
    }

    /// As far as the further of both, in each partition.
    pub(crate) fn raise_all(&mut self, other: &Self) {
        for (partition, offset) in (0..).zip(&other.seqs) {
            if *offset >= self.get(partition) {
                self.raise(partition, *offset);
                self.raise_time(partition, other.time_of(partition));
            }
        }
        if other.time > self.time {
            self.fix_times();
            self.time = other.time;
        }
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

    /// Tells which of two is further, if one covers the other, or was given after the other's
    /// partition went back.
    pub(crate) fn order(&self) -> (u64, u128) {
        (self.time, self.seqs.iter().map(|offset| u128::from(*offset)).sum())
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let heap = |list: &SmallVec<[u64; 1]>| {
            if list.spilled() { list.capacity() * size_of::<u64>() } else { 0 }
        };
        heap(&self.seqs) + heap(&self.times)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}", self.epoch, self.offsets.get(0))?;
        self.offsets.seqs.iter().skip(1).try_for_each(|offset| write!(f, ".{offset}"))?;
        let offsets = &self.offsets;
        let time = self.offsets.time;
        if time > 0 {
            write!(f, ".0{time}")?;
        }
        let mut earlier = offsets.partitions().map(|partition| time - offsets.time_of(partition).min(time));
        if earlier.clone().any(|ms| ms > 0) {
            earlier.try_for_each(|ms| write!(f, "-{ms}"))?;
        }
        Ok(())
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
        let (offsets, earlier) = match offsets.split_once('-') {
            Some((offsets, earlier)) => (offsets, Some(earlier)),
            None => (offsets, None),
        };
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
        if let Some(earlier) = earlier {
            let time = |text: &str| read.time.checked_sub(text.parse().ok()?);
            let times = earlier.split('-').map(time).collect::<Option<SmallVec<_>>>();
            read.times = times.filter(|times| times.len() == read.seqs.len()).ok_or(NotAPosition)?;
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
            times in prop::collection::vec(prop_oneof![Just(0), any::<u64>()], 0..6),
            back in prop::option::of((0..6_u32, any::<u32>())),
        ) {
            let mut position = Position::new(epoch, offsets(&list));
            position.offsets.seqs.resize(list.len().max(1), 0);
            for (partition, time) in (0..).zip(times) {
                position.offsets.raise_time(partition, time / 2);
            }
            if let Some((partition, ms)) = back.filter(|(partition, _)| (*partition as usize) < list.len()) {
                position.offsets.set_back(partition, 1, u64::from(ms).max(1));
            }
            while position.offsets.time == 0 && position.offsets.seqs.last() == Some(&0) {
                position.offsets.seqs.pop();
            }
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
            let one = offsets(&one);
            let two = offsets(&two);
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

    /// Offsets of an earlier text, without an epoch.
    fn read(text: &str) -> Offsets {
        format!("{:016x}:{text}", 1).parse::<Position>().unwrap().offsets
    }

    fn times<const N: usize>(offsets: &Offsets) -> [u64; N] {
        std::array::from_fn(|partition| offsets.time_of(partition as u32))
    }

    #[test]
    fn k04_each_partition_has_the_time_of_its_own_last_record() {
        let mut at = Offsets::default();
        at.raise(0, 5);
        at.raise_time(0, 1000);
        at.raise(1, 2);
        at.raise_time(1, 3000);
        assert_eq!(times(&at), [1000, 3000], "also if it was the only one before");
        at.raise_time(0, 2000);
        at.raise_time(1, 1500);
        assert_eq!((times(&at), at.order().0), ([2000, 3000], 3000), "a time never goes back");
        let mut single = read("5.01000");
        single.raise_time(0, 900);
        assert_eq!(times(&single), [1000]);

        let mut wide = Offsets::of(3);
        for (partition, ms) in [(0, 1000), (1, 3000)] {
            wide.raise(partition, 1);
            wide.raise_time(partition, ms);
        }
        assert_eq!(times(&wide), [1000, 3000, 3000], "one without records has the newest time");
    }

    #[test]
    fn k04_a_partition_that_went_back_has_the_time_of_its_new_record() {
        let mut at = read("5.5.03000-2000-0");
        at.set_back(1, 3, 2000);
        assert_eq!((times(&at), at.get(1)), ([1000, 2000], 3));
        assert!(at.order() > read("5.5.03000").order(), "it is later than each position of before");
        let mut single = read("5.01000");
        single.set_back(0, 3, 2000);
        single.raise(0, 4);
        single.raise_time(0, 5000);
        assert_eq!(times(&single), [5000]);
    }

    #[test]
    fn k04_both_together_have_the_time_of_the_one_that_is_further() {
        let mut at = read("5.5.01000");
        at.raise_all(&read("3.3.09000"));
        assert_eq!((times(&at), at.order().0), ([1000, 1000], 9000), "the other is behind in both");
        let mut at = read("5.5.01000");
        at.raise_all(&read("5.3.02000"));
        assert_eq!(times(&at), [2000, 1000], "the same record, with a better time");
        let mut at = read("5.01000");
        at.raise_all(&read("1.0.0.01000"));
        assert_eq!(Position::new(1, at), Position::new(1, read("5.0.0.01000")), "all are mentioned");
    }

    #[test]
    fn one_step_back_mentions_all_partitions_if_a_time_follows() {
        let text = |offsets: Offsets| Position::new(1, offsets).to_string()[17..].to_owned();
        assert_eq!(text(read("3.1.01000").before(1)), "3.0.01000");
        assert_eq!(text(read("3.1").before(1)), "3");
    }

    #[test]
    fn more_offsets_than_a_topic_can_have_partitions_are_refused() {
        let text = |count: usize| format!("{:016x}:{}", 1, vec!["1"; count].join("."));
        assert!(text(firth::MAX_PARTITIONS as usize).parse::<Position>().is_ok());
        assert!(text(firth::MAX_PARTITIONS as usize + 1).parse::<Position>().is_err());
    }
}
