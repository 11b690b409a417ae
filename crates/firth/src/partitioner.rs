//! Which partition a message goes to. Pure.
//!
//! The rule for keys is part of the topic ([`Mapping`]), so that every producer in every language
//! agrees:
//!
//! 1. `h` = FNV-1a over the key (64 bit: offset basis `0xcbf29ce484222325`, prime `0x100000001b3`),
//!    then finished with
//!    `h ^= h >> 33; h *= 0xff51afd7ed558ccd; h ^= h >> 33; h *= 0xc4ceb9fe1a85ec53; h ^= h >> 33`
//!    (wrapping).
//! 2. [`Mapping::Consistent`]: jump consistent hash of `h` over the partitions. Growing from `n` to
//!    `m` partitions moves `(m - n) / m` of the keys, each of them to a new partition.
//!    [`Mapping::Modulo`]: `h % n`; growing moves nearly all.

use crate::message::Message;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, Ordering};

/// Chooses partitions. Must be cheap: it runs in the caller of `send`.
pub trait Partitioner: Send + Sync + 'static {
    /// The partition for `message`, below `partitions` (which is at least 1); a larger answer is an
    /// error for the sender.
    fn partition(&self, message: &Message, partitions: u32) -> u32;
}

impl<F: Fn(&Message, u32) -> u32 + Send + Sync + 'static> Partitioner for F {
    fn partition(&self, message: &Message, partitions: u32) -> u32 {
        self(message, partitions)
    }
}

/// How a topic maps keys to partitions; see the [module](self) for the exact rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// Jump consistent hash: growing a topic moves as few keys as possible.
    #[default]
    Consistent,
    /// Hash modulo partitions.
    Modulo,
}

impl Mapping {
    /// The partition of a key.
    pub fn partition(self, key: &[u8], partitions: u32) -> u32 {
        let hash = key_hash(key);
        match self {
            Self::Consistent => jump(hash, partitions.max(1)),
            Self::Modulo => u32::try_from(hash % u64::from(partitions.max(1))).expect("a remainder of a u32"),
        }
    }
}

/// The stable hash of a key.
pub fn key_hash(key: &[u8]) -> u64 {
    let fnv = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// Jump consistent hash (Lamping and Veach).
fn jump(mut seed: u64, buckets: u32) -> u32 {
    let mut bucket = 0_u32;
    let mut next = 0_u64;
    while next < u64::from(buckets) {
        bucket = u32::try_from(next).expect("below a u32");
        seed = seed.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let scale = 2_147_483_648.0 / ((seed >> 33) + 1) as f64;
        next = ((f64::from(bucket) + 1.0) * scale) as u64;
    }
    bucket
}

/// The usual way: by key if there is one, else in turn.
#[derive(Debug, Default)]
pub(crate) struct ByKey {
    pub(crate) mapping: Mapping,
    turn: RoundRobin,
}

impl ByKey {
    pub(crate) fn new(mapping: Mapping) -> Self {
        Self { mapping, turn: RoundRobin::default() }
    }
}

impl Partitioner for ByKey {
    fn partition(&self, message: &Message, partitions: u32) -> u32 {
        match message.key_bytes() {
            Some(key) => self.mapping.partition(key, partitions),
            None => self.turn.partition(message, partitions),
        }
    }
}

/// Sends each message to the next partition and ignores its key. Order per key is then not kept.
#[derive(Debug, Default)]
pub struct RoundRobin(AtomicU32);

impl Partitioner for RoundRobin {
    fn partition(&self, _: &Message, partitions: u32) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) % partitions.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_hash_is_the_documented_one_for_ever() {
        let known = [
            ("", 0xefd0_1f60_ba99_2926),
            ("a", 0x82a2_a958_a9be_ce5b),
            ("customer-42", 0xe5c7_993d_f9de_03b9),
        ];
        for (key, hash) in known {
            assert_eq!(key_hash(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn keys_spread_evenly() {
        for mapping in [Mapping::Consistent, Mapping::Modulo] {
            let mut counts = [0_u32; 16];
            (0..16_000)
                .for_each(|n| counts[mapping.partition(format!("user-{n}").as_bytes(), 16) as usize] += 1);
            assert!(counts.iter().all(|count| (850..1150).contains(count)), "{mapping:?} {counts:?}");
        }
    }

    #[test]
    fn growing_moves_only_the_share_of_the_new_partitions() {
        let moved = (0..10_000).filter(|n| {
            let key = format!("user-{n}");
            let old = Mapping::Consistent.partition(key.as_bytes(), 8);
            let new = Mapping::Consistent.partition(key.as_bytes(), 10);
            assert!(old == new || new >= 8, "a key only ever moves to a new partition");
            old != new
        });
        assert!((1800..2200).contains(&moved.count()));
    }

    #[test]
    fn messages_without_a_key_take_turns() {
        let by_key = ByKey::default();
        let partitions: Vec<_> = (0..6).map(|_| by_key.partition(&Message::new("x"), 3)).collect();
        assert_eq!(partitions, [0, 1, 2, 0, 1, 2]);
    }

    proptest! {
        #[test]
        fn a_partition_is_always_in_range(key: Vec<u8>, partitions in 1_u32..5000) {
            for mapping in [Mapping::Consistent, Mapping::Modulo] {
                prop_assert!(mapping.partition(&key, partitions) < partitions);
            }
        }
    }
}
