//! Every key name of the Redis engine, and nowhere else.
//!
//! All keys of one partition share one hash tag, so that each step is one script in one slot. So do
//! all keys of a pool and of a space of the catalog. The tag of a partition ends in a suffix that
//! puts it into its slot (`slot_placement.rs`). Suffix and slot follow from topic and index alone,
//! so that no process has to look them up. Names cannot contain `:`, `{` or `}`.
//!
//! | key | kind | what |
//! |---|---|---|
//! | `P:{topic/index/suffix}:p` | hash | partition: `l`ast and `t`rimmed id, `v`ersion, largest blob `m`, delayed `y`, their counter `n`, sizes added up so far `zi`, `zb`, newest epoch of deleted groups' leases `ge`, `c`lock, marks of sources `s:…` (epoch in 8 bytes, then the mark) and their number `sn`, the stream that it follows `as`, `ai`, `ak`, `ap`, `ax`, from where `a0`, and by whose rank `ar` |
//! | `…:s` | stream | records: one entry per blob, named by the id of its last record |
//! | `…:y` | sorted set | delayed blobs by time |
//! | `…:w`, `…:u` | hash, sorted set | idempotent producers: their last batches, and when they were last heard of |
//! | `…:r` | hash | groups by name: 1, or 0 if there is only a lease |
//! | `…:v` | string | changes of hands of group leases |
//! | `…:g:group` | hash | a group's progress (`f`, `a`, `o`, `x`, `c`, `cs`, `n`, `r`) and lease (`le`, `lt`, `lh`, `ld`, `lb`, `ln`) |
//! | `…:d:group`, `…:e:group` | sorted set, hash | due records by time (or taken); attempt, crashes and reason of each |
//! | `…:i:group`, `…:k:group` | sorted set, hash | due records by number (kept ones negative); contents kept aside |
//! | `…:x:group`, `…:t:group`, `…:b:group` | sorted sets, hash | dead letters by number, by time of death, and their bodies |
//! | `P:pool:{pool}:l`, `:n`, `:m` | hashes | leases of a pool, their holders and notes, newest epoch, version, `c`lock |
//! | `P:pools:{slot}` | hash | newest epoch `e` of the pools of a slot that have vanished |
//! | `P:board:{service/shard/suffix}:` | | a claim shard: `m` hash of newest epoch, version, roster, `c`lock; `w` hash of lives, `d` and `x` sorted sets of those that are there and gone, `i` hash of newest lives; `o` and `f` sorted sets of owned and free offers, `h`, `p`, `c` hashes of offers, payloads, checkpoints, `n` sorted set of names |
//! | `P:cat:{space}:c`, `:i`, `:v` | hash, sorted set, string | entries of a space, their names in order, version |
//! | `P:bus:channel` | sharded channel | the bus |
//! | `P:probe` | string | written and removed by the check at the start |

use super::slot_placement;
use super::unit_clock::UnitClock;
use crate::error::{Error, Result};
use crate::facet::ClaimShard;
use crate::name::{ChannelName, GroupName, Partition, PoolName, SpaceName};
use firth_redis::slot;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The prefix unless another is asked for.
pub(super) const DEFAULT_PREFIX: &str = "firth";
/// The longest prefix.
const MAX_PREFIX: usize = 64;
/// Partitions whose names are kept ready; beyond that they are made anew.
const CACHED: usize = 65_536;

/// Makes key names under one prefix.
pub(super) struct KeyNames {
    prefix: String,
    partitions: Mutex<HashMap<Partition, Arc<PartitionKeys>>>,
    /// Clocks of claim shards and pools, by their hash tag.
    clocks: Mutex<HashMap<String, Arc<UnitClock>>>,
}

impl KeyNames {
    pub(super) fn new(prefix: &str) -> Result<Self> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':');
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || !prefix.bytes().all(is_plain) {
            return Err(Error::invalid(format!(
                "the key prefix must be 1 to {MAX_PREFIX} letters, digits, '.', '_', '-' or ':'"
            )));
        }
        Ok(Self { prefix: prefix.to_owned(), partitions: Mutex::default(), clocks: Mutex::default() })
    }

    /// The names of a partition.
    pub(super) fn partition(&self, at: &Partition) -> Arc<PartitionKeys> {
        let mut known = self.partitions.lock().expect("nothing panics while it holds this lock");
        if let Some(keys) = known.get(at) {
            return keys.clone();
        }
        if known.len() >= CACHED {
            known.clear();
        }
        let keys = Arc::new(PartitionKeys::new(&self.prefix, at));
        known.insert(at.clone(), keys.clone());
        keys
    }

    pub(super) fn pool_clock(&self, pool: &PoolName) -> Arc<UnitClock> {
        self.clock(format!("pool:{pool}"))
    }

    pub(super) fn claim_shard_clock(&self, claim_shard: &ClaimShard) -> Arc<UnitClock> {
        self.clock(format!("board:{}/{}", claim_shard.service, claim_shard.shard))
    }

    fn clock(&self, unit: String) -> Arc<UnitClock> {
        let mut known = self.clocks.lock().expect("nothing panics while it holds this lock");
        if known.len() >= CACHED && !known.contains_key(&unit) {
            known.clear();
        }
        known.entry(unit).or_default().clone()
    }

    pub(super) fn pool(&self, pool: &PoolName) -> PoolKeys {
        let stem = format!("{}:pool:{{{pool}}}", self.prefix);
        let leases = format!("{stem}:l");
        let gone = format!("{}:pools:{{{}}}", self.prefix, slot_placement::tag_in(slot(leases.as_bytes())));
        PoolKeys { leases, notes: format!("{stem}:n"), meta: format!("{stem}:m"), gone }
    }

    pub(super) fn space(&self, space: &SpaceName) -> SpaceKeys {
        let stem = format!("{}:cat:{{{space}}}", self.prefix);
        SpaceKeys { entries: format!("{stem}:c"), index: format!("{stem}:i"), version: format!("{stem}:v") }
    }

    /// The names of a claim shard, in the order in which its scripts take them.
    pub(super) fn claim_shard(&self, claim_shard: &ClaimShard) -> [String; 11] {
        let stem = self.claim_shard_stem(claim_shard);
        ["m", "w", "d", "x", "i", "o", "f", "h", "p", "c", "n"].map(|kind| format!("{stem}:{kind}"))
    }

    pub(super) fn claim_shard_meta(&self, claim_shard: &ClaimShard) -> String {
        format!("{}:m", self.claim_shard_stem(claim_shard))
    }

    fn claim_shard_stem(&self, claim_shard: &ClaimShard) -> String {
        format!(
            "{}:board:{{{}}}",
            self.prefix,
            slot_placement::tag(claim_shard.service.as_str(), claim_shard.shard)
        )
    }

    pub(super) fn channel(&self, channel: &ChannelName) -> String {
        format!("{}:bus:{channel}", self.prefix)
    }

    pub(super) fn probe(&self) -> String {
        format!("{}:probe", self.prefix)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The names of one partition.
#[derive(Debug)]
pub(super) struct PartitionKeys {
    /// Everything up to the kind of the key.
    stem: String,
    pub(super) meta: String,
    pub(super) stream: String,
    pub(super) delayed: String,
    pub(super) producers: String,
    pub(super) producer_use: String,
    pub(super) groups: String,
    pub(super) lease_version: String,
    pub(super) clock: Arc<UnitClock>,
    /// What reading has taught about the size of blobs.
    pub(super) sizes: super::read::Sizes,
    /// How closely appends follow each other.
    pub(super) bursts: super::burst_detector::BurstDetector,
}

impl PartitionKeys {
    fn new(prefix: &str, at: &Partition) -> Self {
        let stem = format!("{prefix}:{{{}}}", slot_placement::tag(at.topic.as_str(), at.index));
        let key = |kind: &str| format!("{stem}:{kind}");
        Self {
            meta: key("p"),
            stream: key("s"),
            delayed: key("y"),
            producers: key("w"),
            producer_use: key("u"),
            groups: key("r"),
            lease_version: key("v"),
            clock: Arc::default(),
            sizes: super::read::Sizes::default(),
            bursts: super::burst_detector::BurstDetector::default(),
            stem,
        }
    }

    /// What stands before the group in its keys of this kind.
    pub(super) fn group_stem(&self, kind: char) -> String {
        format!("{}:{kind}:", self.stem)
    }

    /// The names of a group.
    pub(super) fn group(&self, group: &GroupName) -> GroupKeys {
        let key = |kind: char| format!("{}:{kind}:{group}", self.stem);
        GroupKeys {
            meta: key('g'),
            due: key('d'),
            entries: key('e'),
            index: key('i'),
            kept: key('k'),
            dead: key('x'),
            dead_times: key('t'),
            bodies: key('b'),
        }
    }
}

/// The kinds of keys that each group has.
pub(super) const GROUP_KINDS: [char; 8] = ['g', 'd', 'e', 'i', 'k', 'x', 't', 'b'];

/// The names of one group in one partition.
pub(super) struct GroupKeys {
    pub(super) meta: String,
    pub(super) due: String,
    pub(super) entries: String,
    pub(super) index: String,
    pub(super) kept: String,
    pub(super) dead: String,
    pub(super) dead_times: String,
    pub(super) bodies: String,
}

/// The names of one pool.
pub(super) struct PoolKeys {
    pub(super) leases: String,
    pub(super) notes: String,
    pub(super) meta: String,
    /// The newest epoch of the pools of this slot that have vanished.
    pub(super) gone: String,
}

/// The names of one space of the catalog.
pub(super) struct SpaceKeys {
    pub(super) entries: String,
    pub(super) index: String,
    pub(super) version: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::TopicName;

    #[test]
    fn all_keys_of_a_partition_share_its_slot() {
        let keys = KeyNames::new("tenant:a").unwrap();
        let at = Partition::new(TopicName::new("orders.v2").unwrap(), 7);
        let part = keys.partition(&at);
        let group = part.group(&GroupName::new("mail").unwrap());
        let home = slot(part.meta.as_bytes());
        let stem = part.group_stem('d') + "mail";
        assert_eq!(stem, group.due);
        for key in [
            &part.stream,
            &part.delayed,
            &part.producers,
            &part.producer_use,
            &part.groups,
            &part.lease_version,
        ]
        .into_iter()
        .chain([&group.meta, &group.due, &group.entries, &group.index, &group.kept])
        .chain([&group.dead, &group.dead_times, &group.bodies])
        {
            assert_eq!(slot(key.as_bytes()), home, "{key}");
            assert!(key.starts_with("tenant:a:{orders.v2/7/"));
        }
    }

    #[test]
    fn no_two_things_share_a_key() {
        let keys = KeyNames::new("firth").unwrap();
        let part = keys.partition(&Partition::new(TopicName::new("a").unwrap(), 0));
        let group = part.group(&GroupName::new("p").unwrap());
        assert_ne!(group.meta, part.meta);
        let pool = keys.pool(&PoolName::new("a").unwrap());
        let space = keys.space(&SpaceName::new("a").unwrap());
        assert_ne!(pool.leases, space.entries);
        assert_eq!(slot(pool.gone.as_bytes()), slot(pool.leases.as_bytes()));
    }

    #[test]
    fn a_prefix_that_could_change_the_hash_tag_is_refused() {
        for bad in ["", "a{b}", "a b", "a*", &"x".repeat(65)] {
            assert!(KeyNames::new(bad).is_err(), "{bad:?}");
        }
    }
}
