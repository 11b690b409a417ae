//! [`Ahead`]: the records that are settled although something before them is not, as runs of
//! sequence numbers.
//!
//! Pure. Kept minimal at all times: runs are sorted, apart from each other, and beyond the
//! frontier, so that two equal sets are equal values. Bounded by
//! [`MAX_AHEAD`](crate::limits::MAX_AHEAD) runs where it is stored.

use crate::codec::{Reader, put_number};

/// A set of sequence numbers, stored as inclusive runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    runs: Vec<(u64, u64)>,
}

impl Ahead {
    /// The empty set.
    pub const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// Adds one number.
    pub fn insert(&mut self, seq: u64) {
        let at = self.runs.partition_point(|&(_, last)| last < seq);
        if self.runs.get(at).is_some_and(|&(first, _)| first <= seq) {
            return;
        }
        let joins_left = at > 0 && self.runs[at - 1].1 + 1 == seq;
        let joins_right = self.runs.get(at).is_some_and(|&(first, _)| seq + 1 == first);
        match (joins_left, joins_right) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.remove(at);
            }
            (true, false) => self.runs[at - 1].1 = seq,
            (false, true) => self.runs[at].0 = seq,
            (false, false) => self.runs.insert(at, (seq, seq)),
        }
    }

    /// Whether `seq` is in the set.
    pub fn contains(&self, seq: u64) -> bool {
        let at = self.runs.partition_point(|&(_, last)| last < seq);
        self.runs.get(at).is_some_and(|&(first, _)| first <= seq)
    }

    /// Forgets everything up to and including `seq`.
    pub fn remove_up_to(&mut self, seq: u64) {
        let gone = self.runs.partition_point(|&(_, last)| last <= seq);
        self.runs.drain(..gone);
        if let Some(run) = self.runs.first_mut() {
            run.0 = run.0.max(seq + 1);
        }
    }

    /// The first number above `seq` that is not in the set.
    pub fn first_missing_after(&self, seq: u64) -> u64 {
        let at = self.runs.partition_point(|&(_, last)| last <= seq);
        match self.runs.get(at) {
            Some(&(first, last)) if first <= seq + 1 => last + 1,
            _ => seq + 1,
        }
    }

    /// How many numbers of the set lie in `from..to`.
    pub fn count_between(&self, from: u64, to: u64) -> u64 {
        let start = self.runs.partition_point(|&(_, last)| last < from);
        let inside = self.runs[start..].iter().take_while(|(first, _)| *first < to);
        inside.map(|&(first, last)| (last + 1).min(to) - first.max(from)).sum()
    }

    /// How many numbers are in the set.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs, sorted, each inclusive.
    pub fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// The smallest and the largest number.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        Some((self.runs.first()?.0, self.runs.last()?.1))
    }

    /// Whether every number of `other` is also in `self`, looking only at numbers above `above`.
    pub fn covers(&self, other: &Self, above: u64) -> bool {
        other.runs.iter().filter(|(_, last)| *last > above).all(|&(first, last)| {
            let first = first.max(above + 1);
            let at = self.runs.partition_point(|&(_, end)| end < first);
            self.runs.get(at).is_some_and(|&(start, end)| start <= first && last <= end)
        })
    }

    /// Appends the packed form: the count, then per run the gap before it and its length.
    pub fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.runs.len() as u64);
        let mut before = 0;
        for &(first, last) in &self.runs {
            put_number(out, first - before);
            put_number(out, last - first);
            before = last;
        }
    }

    /// The set of these runs, which must be sorted and apart.
    #[cfg(feature = "redis")]
    pub(crate) fn from_runs(runs: Vec<(u64, u64)>) -> Option<Self> {
        let in_order = runs.iter().all(|(first, last)| first <= last);
        let apart = runs.windows(2).all(|pair| pair[0].1.saturating_add(1) < pair[1].0);
        (in_order && apart).then_some(Self { runs })
    }

    pub(crate) fn unpack(reader: &mut Reader) -> Option<Self> {
        let mut runs = Vec::new();
        let mut before = 0u64;
        for _ in 0..reader.number()? {
            let first = before.checked_add(reader.number()?)?;
            let last = first.checked_add(reader.number()?)?;
            runs.push((first, last));
            before = last;
        }
        Some(Self { runs })
    }
}

impl FromIterator<u64> for Ahead {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut set = Self::new();
        numbers.into_iter().for_each(|seq| set.insert(seq));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_holds_exactly_what_was_put_in(numbers in prop::collection::vec(1u64..60, 0..40)) {
            let set: Ahead = numbers.iter().copied().collect();
            let model: BTreeSet<u64> = numbers.into_iter().collect();
            prop_assert_eq!(set.len(), model.len() as u64);
            for seq in 0..61 {
                prop_assert_eq!(set.contains(seq), model.contains(&seq));
            }
            for pair in set.runs().windows(2) {
                prop_assert!(pair[0].1 + 1 < pair[1].0, "runs stay apart");
            }
            let mut out = Vec::new();
            set.pack(&mut out);
            prop_assert_eq!(Ahead::unpack(&mut Reader(out.into())), Some(set));
        }

        #[test]
        fn removing_and_counting_agree_with_a_plain_set(numbers in prop::collection::vec(1u64..60, 0..40),
                                                        mark in 0u64..60, from in 0u64..60, len in 0u64..60) {
            let mut set: Ahead = numbers.iter().copied().collect();
            let mut model: BTreeSet<u64> = numbers.into_iter().collect();
            prop_assert_eq!(set.count_between(from, from + len), model.range(from..from + len).count() as u64);
            prop_assert_eq!(Some(set.first_missing_after(from)), (from + 1..).find(|seq| !model.contains(seq)));
            set.remove_up_to(mark);
            model.retain(|seq| *seq > mark);
            prop_assert_eq!(set, model.into_iter().collect::<Ahead>());
        }

        #[test]
        fn covers_means_superset_above_the_mark(a in prop::collection::vec(1u64..30, 0..20),
                                                b in prop::collection::vec(1u64..30, 0..20), above in 0u64..30) {
            let big: Ahead = a.iter().copied().collect();
            let small: Ahead = b.iter().copied().collect();
            let expected = b.iter().all(|seq| *seq <= above || a.contains(seq));
            prop_assert_eq!(big.covers(&small, above), expected);
        }
    }
}
