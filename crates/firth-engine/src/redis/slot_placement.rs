//! Where a partition lives in a cluster: a hash tag whose slot is chosen, not left to chance.
//!
//! Names that are merely hashed spread badly (16 partitions fell 3/3/10 on 3 nodes). Here partition
//! `i` of a topic gets a point on the circle of 16 384 slots, and its tag ends in four letters that
//! make CRC16 land exactly there. The points are those of a radical-inverse sequence, turned by the
//! topic's own hash: thirds first, then each third in halves, quarters and so on. So the first `n`
//! partitions are even for *every* `n`: on three masters with equal contiguous ranges the counts
//! never differ by more than one, on six or twelve hardly, on others by one or two.
//!
//! **Growing a topic** moves nothing: the place of partition `i` does not depend on how many there
//! are. It follows from topic and index alone, so that no process has to look it up. Resharding a
//! cluster moves slots with everything in them.

use firth_redis::slot;
use std::sync::OnceLock;

const SLOTS: u32 = 16_384;
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const SUFFIX: usize = 4;

/// What stands between the braces of a partition's keys.
pub(super) fn tag(topic: &str, index: u32) -> String {
    let mut tag = format!("{topic}/{index}/");
    let zeros = [tag.as_bytes(), &[0; SUFFIX]].concat();
    // CRC16 is linear: the slot of `tag + suffix` is that of `tag + zeros` XOR that of the suffix.
    let wanted = wanted_slot(topic, index) ^ slot(&zeros);
    let suffix = suffixes()[usize::from(wanted)];
    tag.push_str(std::str::from_utf8(&suffix).expect("letters are ASCII"));
    tag
}

/// A tag whose slot is this one.
pub(super) fn tag_in(slot: u16) -> &'static str {
    std::str::from_utf8(&suffixes()[usize::from(slot)]).expect("letters are ASCII")
}

/// The slot of partition `index`.
fn wanted_slot(topic: &str, index: u32) -> u16 {
    let turn = u32::from(slot(topic.as_bytes()));
    let third = index % 3;
    let rest = index / 3;
    // The inverse of `rest` in base 2, as a fraction of 2^32.
    let inside = rest.reverse_bits();
    let point = ((u64::from(third) << 32) + u64::from(inside)) * u64::from(SLOTS) / 3;
    (((point >> 32) as u32 + turn) % SLOTS) as u16
}

/// For each slot, letters whose own slot it is.
fn suffixes() -> &'static [[u8; SUFFIX]] {
    static TABLE: OnceLock<Vec<[u8; SUFFIX]>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec![[0; SUFFIX]; SLOTS as usize];
        let mut missing = SLOTS;
        for number in 0usize.. {
            let suffix: [u8; SUFFIX] = std::array::from_fn(|at| LETTERS[number >> (5 * at) & 31]);
            let place = &mut table[usize::from(slot(&suffix))];
            if place[0] == 0 {
                *place = suffix;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the first `count` partitions each of `masters` equal ranges gets.
    fn spread(topic: &str, count: u32, masters: u32) -> Vec<u32> {
        let mut counts = vec![0; masters as usize];
        for index in 0..count {
            let slot = u32::from(slot(format!("firth:{{{}}}:p", tag(topic, index)).as_bytes()));
            counts[(slot * masters / SLOTS) as usize] += 1;
        }
        counts
    }

    fn unevenness(counts: &[u32]) -> u32 {
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    }

    #[test]
    fn a_tag_lands_exactly_in_its_slot() {
        for (topic, index) in [("orders", 0), ("orders", 1), ("a", 77), ("orders.v2-x_y", u32::MAX)] {
            let tag = tag(topic, index);
            assert_eq!(slot(tag.as_bytes()), wanted_slot(topic, index), "{tag}");
        }
    }

    #[test]
    fn partitions_spread_evenly_over_three_masters_however_many_there_are() {
        for topic in ["orders", "payments", "a", "b.c-d", "z9"] {
            assert_eq!(spread(topic, 16, 3).iter().sum::<u32>(), 16);
            for count in 1..=64 {
                let counts = spread(topic, count, 3);
                // A range is a slot longer than a third, so that a point may fall over its edge.
                assert!(unevenness(&counts) <= 2, "{topic} {count}: {counts:?}");
            }
            assert!(spread(topic, 16, 3).iter().all(|n| (5..=6).contains(n)), "{:?}", spread(topic, 16, 3));
        }
    }

    #[test]
    fn other_numbers_of_masters_are_served_fairly() {
        for topic in ["orders", "payments", "users"] {
            for (count, masters, most) in
                [(12, 6, 1), (24, 12, 1), (16, 4, 2), (16, 2, 2), (64, 5, 4), (96, 6, 1)]
            {
                let counts = spread(topic, count, masters);
                assert!(unevenness(&counts) <= most, "{count} on {masters}: {counts:?}");
            }
        }
    }

    #[test]
    fn topics_start_in_different_places() {
        let first: std::collections::HashSet<u16> =
            (0..50).map(|n| slot(tag(&format!("topic-{n}"), 0).as_bytes())).collect();
        assert!(first.len() > 40);
    }
}
