//! Lowest live key per prefix, so that scans skip tombstones. The storage library keeps tombstones
//! until it compacts. Without a floor, a scan of a queue-like prefix walks over every key that was
//! ever removed there.
//!
//! For each prefix (a kind and a number), the floor says that no key below it exists. A scan sets
//! the floor to the first key that it finds, and a write below the floor lowers it. Only the
//! committer's view uses floors: the committer sees its own writes at once, and it is the only
//! writer. A forgotten floor costs a longer scan, never a key.

use super::keys::{self, Key};
use super::step::Range;
use std::collections::HashMap;
use std::sync::Mutex;

/// The kinds that are filled and emptied like queues.
const KINDS: &[u8] = b"dktwxvyr";
/// A kind and a number.
const PREFIX: usize = 9;
/// Most prefixes that are remembered; beyond that all are forgotten.
const REMEMBERED: usize = 65_536;

#[derive(Default)]
pub(super) struct TombstoneWatermarks(Mutex<HashMap<[u8; PREFIX], Key>>);

impl TombstoneWatermarks {
    /// A key is being written.
    pub(super) fn lower(&self, key: &[u8]) {
        if let Some(prefix) = prefix(key)
            && let Some(floor) = self.lock().get_mut(&prefix)
            && key < floor.as_slice()
        {
            *floor = key.to_vec();
        }
    }

    /// The range without what is known to be gone, and what finding its first key would teach.
    pub(super) fn above(&self, mut range: Range) -> (Range, Option<Lesson>) {
        let Some(prefix) = prefix(&range.from) else { return (range, None) };
        let end = keys::after_prefix(&prefix);
        if range.to > end {
            return (range, None);
        }
        let mut floors = self.lock();
        let begins = match floors.get(&prefix) {
            Some(floor) if range.from < *floor => {
                range.from = floor.clone().min(range.to.clone());
                true
            }
            Some(floor) => range.from == *floor,
            None => range.from.len() == PREFIX,
        };
        if floors.len() >= REMEMBERED {
            floors.clear();
        }
        let lesson = begins.then(|| Lesson { prefix, end: range.to.clone() });
        (range, lesson)
    }

    /// A scan that began at the floor found this key first, or none up to its end.
    pub(super) fn learn(&self, lesson: Lesson, first: Option<Key>) {
        self.lock().insert(lesson.prefix, first.unwrap_or(lesson.end));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; PREFIX], Key>> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

/// A scan from which a floor can be learned.
pub(super) struct Lesson {
    prefix: [u8; PREFIX],
    end: Key,
}

fn prefix(key: &[u8]) -> Option<[u8; PREFIX]> {
    let prefix = *key.first_chunk::<PREFIX>()?;
    KINDS.contains(&prefix[0]).then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Writes, removals and scans of a set with floors find what a plain set finds.
    fn check(ops: Vec<(u8, u8, u8)>) {
        let floors = TombstoneWatermarks::default();
        let mut there = BTreeSet::<Key>::new();
        let key = |number: u8, n: u8| {
            let mut key = keys::numbered(b't', u64::from(number % 2));
            key.push(n);
            key
        };
        for (op, number, n) in ops {
            match op % 4 {
                0 => {
                    floors.lower(&key(number, n));
                    there.insert(key(number, n));
                }
                1 => {
                    there.remove(&key(number, n));
                }
                kind => {
                    let start = keys::numbered(b't', u64::from(number % 2));
                    let whole = Range::prefix(start.clone());
                    let range = if kind == 2 { whole } else { Range { from: key(number, n), to: whole.to } };
                    let expected: Vec<&Key> = there.range(range.from.clone()..range.to.clone()).collect();
                    let (above, lesson) = floors.above(range);
                    let found: Vec<&Key> = there.range(above.from..above.to).collect();
                    assert_eq!(found, expected);
                    if let Some(lesson) = lesson {
                        floors.learn(lesson, found.first().map(|key| (*key).clone()));
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_key_is_ever_missed(ops: Vec<(u8, u8, u8)>) {
            check(ops);
        }
    }

    #[test]
    fn what_was_removed_is_not_walked_over_again() {
        let floors = TombstoneWatermarks::default();
        let range = || Range::prefix(keys::numbered(b't', 7));
        let (_, lesson) = floors.above(range());
        let mut first = keys::numbered(b't', 7);
        first.push(9);
        floors.learn(lesson.unwrap(), Some(first.clone()));
        assert_eq!(floors.above(range()).0.from, first);
        let mut lower = keys::numbered(b't', 7);
        lower.push(3);
        floors.lower(&lower);
        assert_eq!(floors.above(range()).0.from, lower);
        assert!(floors.above(Range::prefix(b"p".to_vec())).1.is_none());
    }
}
