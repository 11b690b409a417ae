//! Every key of the embedded engine, and thereby its on-disk layout. Bump [`FORMAT`] when it
//! changes.
//!
//! Two kinds of space: one *log* per partition (key: `seq`, value: `ms` and the packed content),
//! which is only ever appended to and cut off at the front, and one *state* for everything else.
//! Small logs lie together, where the key is the partition's number and `seq`.
//!
//! | key in the state space | value |
//! |---|---|
//! | `#` | next number for partitions and groups |
//! | `p` topic 0 index | partition: its number, ends, counters |
//! | `g` partition-no group | group: its number, frontier, ahead, counters |
//! | `d` group-no id · `k` group-no id | due record by reference · with its content kept aside |
//! | `t` group-no time id | due records by time, without those that the owner has taken |
//! | `w` group-no id | due records that the owner has taken |
//! | `x` group-no id · `v` group-no time id | dead letter · by time of death |
//! | `y` partition-no time n | delayed message |
//! | `a` partition-no | delayed messages that were cancelled last |
//! | `q` partition-no producer · `r` partition-no time producer | idempotent producer · by last use |
//! | `m` partition-no source | mark of a source |
//! | `l` lease | lease |
//! | `e` pool · `h` | newest epoch of a pool · of all leases that are gone without a trace |
//! | `c` space 0 name · `s` space | catalog entry · counter of versions |
//! | `bm` claim shard · `bw` claim shard number · `bi` claim shard member | claim shard · one life of a member · the number of its newest life |
//! | `bo` claim shard offer · `bp`, `bk` | offer · its payload, its checkpoint |
//! | `bn` claim shard number offer · `bf` claim shard time offer | offers by member · free ones by when they can be granted |
//! | `n` | the clock: offset and time when it was kept |
//! | `z` number | partition or group that was deleted and is being swept |
//! | `o` partition-no | first record in the log's own files; earlier ones lie with those of others |
//! | `j` | order number below which everything in the journal was synced when this was written |
//!
//! Partitions and groups are keyed by numbers that never come back, so that a topic made again
//! under its old name cannot meet remains of the former one. Numbers are big-endian: byte order is
//! numeric order.
//!
//! Builds before source marks, or before cancelled messages, open the same format: they leave
//! these keys alone. A topic that such a build deletes leaves them behind, under a number that
//! never comes back.

use crate::facet::{ClaimShard, EntryKey};
use crate::hold::LeaseName;
use crate::id::RecordId;
use crate::name::{
    GroupName, MemberName, OfferName, Partition, PoolName, ProducerName, SourceName, SpaceName,
};

/// The version of this layout, kept in the data directory.
pub(super) const FORMAT: u32 = 3;

/// The first layout whose journals say what was synced.
pub(super) const MARKED: u32 = 3;

/// Where a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Space {
    /// Everything but records.
    State,
    /// The records of the partition with this number.
    Log(u64),
}

pub(super) type Key = Vec<u8>;

/// The kinds that belong to one partition number or one group number, and go when it goes.
pub(super) const SWEPT: &[u8] = b"gdktwxvyaqrom";

/// What the marks of moved logs start with.
pub(super) const MOVED: &[u8] = b"o";

/// The key under which a batch says what was synced before it.
pub(super) const SYNCED: &[u8] = b"j";

pub(super) fn counter() -> Key {
    b"#".to_vec()
}

pub(super) fn partition(at: &Partition) -> Key {
    let mut key = vec![b'p'];
    push_partition(&mut key, at);
    key
}

/// The partition's name from its key.
#[cfg(feature = "embedded")]
pub(super) fn partition_name(key: &[u8]) -> Option<Partition> {
    let (topic, index) = key.get(1..)?.split_at_checked(key.len().checked_sub(6)?)?;
    let topic = crate::name::TopicName::new(std::str::from_utf8(topic).ok()?).ok()?;
    Some(Partition::new(topic, u32::from_be_bytes(index.get(1..)?.try_into().ok()?)))
}

pub(super) fn group(partition: u64, group: &GroupName) -> Key {
    with_text(b'g', partition, group.as_str())
}

/// The group's name from its key.
pub(super) fn group_name(key: &[u8]) -> Option<GroupName> {
    GroupName::new(std::str::from_utf8(key.get(9..)?).ok()?).ok()
}

pub(super) fn due(group: u64, id: RecordId, kept: bool) -> Key {
    with_id(if kept { b'k' } else { b'd' }, group, id)
}

pub(super) fn due_time(group: u64, ms: u64, id: RecordId) -> Key {
    let mut key = numbered(b't', group);
    key.extend_from_slice(&ms.to_be_bytes());
    push_id(&mut key, id);
    key
}

pub(super) fn taken(group: u64, id: RecordId) -> Key {
    with_id(b'w', group, id)
}

pub(super) fn dead(group: u64, id: RecordId) -> Key {
    with_id(b'x', group, id)
}

pub(super) fn dead_time(group: u64, ms: u64, id: RecordId) -> Key {
    let mut key = numbered(b'v', group);
    key.extend_from_slice(&ms.to_be_bytes());
    push_id(&mut key, id);
    key
}

pub(super) fn delayed(partition: u64, ms: u64, n: u64) -> Key {
    let mut key = numbered(b'y', partition);
    key.extend_from_slice(&ms.to_be_bytes());
    key.extend_from_slice(&n.to_be_bytes());
    key
}

/// The delayed messages of a partition that were cancelled last.
pub(super) fn cancelled(partition: u64) -> Key {
    numbered(b'a', partition)
}

pub(super) fn producer(partition: u64, name: &ProducerName) -> Key {
    with_text(b'q', partition, name.as_str())
}

pub(super) fn source(partition: u64, source: &SourceName) -> Key {
    with_text(b'm', partition, source.as_str())
}

pub(super) fn producer_use(partition: u64, ms: u64, name: &ProducerName) -> Key {
    let mut key = numbered(b'r', partition);
    key.extend_from_slice(&ms.to_be_bytes());
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

/// The producer's name from its by-use key.
pub(super) fn used_producer(key: &[u8]) -> Option<ProducerName> {
    ProducerName::new(std::str::from_utf8(key.get(17..)?).ok()?).ok()
}

pub(super) fn lease(name: &LeaseName) -> Key {
    match name {
        LeaseName::Group { at, group } => {
            let mut key = group_leases(at);
            key.extend_from_slice(group.as_str().as_bytes());
            key
        }
        LeaseName::Pool { pool, name } => {
            let mut key = pool_leases(pool);
            key.extend_from_slice(name.as_str().as_bytes());
            key
        }
    }
}

/// The prefix of all leases of groups on a partition.
pub(super) fn group_leases(at: &Partition) -> Key {
    let mut key = vec![b'l', b'g'];
    push_partition(&mut key, at);
    key
}

/// The prefix of all leases of a pool.
pub(super) fn pool_leases(pool: &PoolName) -> Key {
    text(b"lp", pool.as_str(), &[0])
}

pub(super) fn pool_epoch(pool: &PoolName) -> Key {
    text(b"e", pool.as_str(), &[])
}

/// The clock as it was kept.
#[cfg(feature = "embedded")]
pub(super) fn clock() -> Key {
    b"n".to_vec()
}

/// The newest epoch of all leases that are gone.
pub(super) fn gone_epoch() -> Key {
    b"h".to_vec()
}

pub(super) fn entry(key: &EntryKey) -> Key {
    text(b"c", key.space().as_str(), &[&[0], key.name().as_bytes()].concat())
}

/// The prefix of all entries of a space.
pub(super) fn entries(space: &SpaceName) -> Key {
    text(b"c", space.as_str(), &[0])
}

pub(super) fn space_version(space: &SpaceName) -> Key {
    text(b"s", space.as_str(), &[])
}

pub(super) fn claim_shard(claim_shard: &ClaimShard) -> Key {
    on_claim_shard(b'm', claim_shard)
}

/// The prefix of all members of a claim shard.
pub(super) fn claim_shard_members(claim_shard: &ClaimShard) -> Key {
    on_claim_shard(b'w', claim_shard)
}

pub(super) fn claim_shard_member(claim_shard: &ClaimShard, number: u64) -> Key {
    [claim_shard_members(claim_shard), number.to_be_bytes().to_vec()].concat()
}

pub(super) fn claim_shard_life(claim_shard: &ClaimShard, member: &MemberName) -> Key {
    [on_claim_shard(b'i', claim_shard), member.as_str().as_bytes().to_vec()].concat()
}

/// The prefix of all offers of a claim shard.
pub(super) fn claim_shard_offers(claim_shard: &ClaimShard) -> Key {
    on_claim_shard(b'o', claim_shard)
}

pub(super) fn claim_shard_offer(claim_shard: &ClaimShard, name: &OfferName) -> Key {
    named(claim_shard_offers(claim_shard), name)
}

pub(super) fn claim_shard_payload(claim_shard: &ClaimShard, name: &OfferName) -> Key {
    named(on_claim_shard(b'p', claim_shard), name)
}

pub(super) fn claim_shard_checkpoint(claim_shard: &ClaimShard, name: &OfferName) -> Key {
    named(on_claim_shard(b'k', claim_shard), name)
}

/// The prefix of what a member has.
pub(super) fn claim_shard_owned_by(claim_shard: &ClaimShard, number: u64) -> Key {
    [on_claim_shard(b'n', claim_shard), number.to_be_bytes().to_vec()].concat()
}

pub(super) fn claim_shard_owned(claim_shard: &ClaimShard, number: u64, name: &OfferName) -> Key {
    named(claim_shard_owned_by(claim_shard, number), name)
}

/// The prefix of all free offers.
pub(super) fn claim_shard_frees(claim_shard: &ClaimShard) -> Key {
    on_claim_shard(b'f', claim_shard)
}

pub(super) fn claim_shard_free(claim_shard: &ClaimShard, ready_ms: u64, name: &OfferName) -> Key {
    named([claim_shard_frees(claim_shard), ready_ms.to_be_bytes().to_vec()].concat(), name)
}

/// When a free offer can be granted, from its key.
pub(super) fn claim_shard_ready(claim_shard: &ClaimShard, key: &[u8]) -> Option<u64> {
    number_at(key, claim_shard_frees(claim_shard).len())
}

/// The offer's name from any key that ends in it.
pub(super) fn claim_shard_name(key: &[u8]) -> Option<OfferName> {
    let name = key.rsplit(|byte| *byte == b'/').next()?;
    OfferName::new(std::str::from_utf8(name).ok()?).ok()
}

fn on_claim_shard(kind: u8, claim_shard: &ClaimShard) -> Key {
    let mut key = vec![b'b', kind];
    key.extend_from_slice(claim_shard.service.as_str().as_bytes());
    key.push(0);
    key.extend_from_slice(&claim_shard.shard.to_be_bytes());
    key
}

/// A slash cannot occur in a name, so that what follows the last one is the name.
fn named(mut key: Key, name: &OfferName) -> Key {
    key.push(b'/');
    key.extend_from_slice(name.as_str().as_bytes());
    key
}

pub(super) fn swept(number: u64) -> Key {
    numbered(b'z', number)
}

pub(super) fn record(seq: u64) -> Key {
    seq.to_be_bytes().to_vec()
}

/// The mark of a log that has files of its own.
pub(super) fn moved(partition: u64) -> Key {
    numbered(MOVED[0], partition)
}

/// The key of a record among those of other partitions.
pub(super) fn in_shared_keyspace(partition: u64, seq: u64) -> Key {
    [partition.to_be_bytes(), seq.to_be_bytes()].concat()
}

/// `kind` and a number: also the prefix of everything of that kind and number.
pub(super) fn numbered(kind: u8, number: u64) -> Key {
    let mut key = Vec::with_capacity(40);
    key.push(kind);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number at `at` in a key.
pub(super) fn number_at(key: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?))
}

/// The id at the end of a key.
pub(super) fn id_at_end(key: &[u8]) -> Option<RecordId> {
    let at = key.len().checked_sub(16)?;
    Some(RecordId::new(number_at(key, at)?, number_at(key, at + 8)?))
}

/// The first key after everything that starts with `prefix`.
pub(super) fn after_prefix(prefix: &[u8]) -> Key {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![u8::MAX; 32]
}

fn text(kind: &[u8], text: &str, rest: &[u8]) -> Key {
    [kind, text.as_bytes(), rest].concat()
}

fn with_text(kind: u8, number: u64, text: &str) -> Key {
    let mut key = numbered(kind, number);
    key.extend_from_slice(text.as_bytes());
    key
}

fn with_id(kind: u8, number: u64, id: RecordId) -> Key {
    let mut key = numbered(kind, number);
    push_id(&mut key, id);
    key
}

fn push_id(key: &mut Key, id: RecordId) {
    key.extend_from_slice(&id.ms.to_be_bytes());
    key.extend_from_slice(&id.seq.to_be_bytes());
}

fn push_partition(key: &mut Key, at: &Partition) {
    key.extend_from_slice(at.topic.as_str().as_bytes());
    key.push(0);
    key.extend_from_slice(&at.index.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::TopicName;
    use proptest::prelude::*;

    fn group_of(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    proptest! {
        #[test]
        fn keys_order_like_what_they_stand_for(a: (u64, u64, u64), b: (u64, u64, u64)) {
            let x = RecordId::new(a.1, a.2);
            let y = RecordId::new(b.1, b.2);
            prop_assert_eq!(due(7, x, false).cmp(&due(7, y, false)), x.cmp(&y));
            prop_assert_eq!(due_time(7, a.0, x).cmp(&due_time(7, b.0, y)), (a.0, x).cmp(&(b.0, y)));
            prop_assert_eq!(record(a.0).cmp(&record(b.0)), a.0.cmp(&b.0));
        }

        #[test]
        fn ids_and_names_are_found_again(number: u64, ms: u64, seq: u64, name in "[a-z.-]{1,20}") {
            prop_assume!(!name.contains(".."));
            let id = RecordId::new(ms, seq);
            prop_assert_eq!(id_at_end(&due_time(number, 5, id)), Some(id));
            prop_assert_eq!(id_at_end(&dead(number, id)), Some(id));
            prop_assert_eq!(group_name(&group(number, &group_of(&name))), Some(group_of(&name)));
            let producer_name = ProducerName::new(&name).unwrap();
            prop_assert_eq!(used_producer(&producer_use(number, ms, &producer_name)), Some(producer_name));
        }

        #[test]
        fn a_prefix_ends_right_after_its_last_key(prefix in prop::collection::vec(any::<u8>(), 1..6), rest: Vec<u8>) {
            prop_assume!(prefix.iter().any(|byte| *byte < 255));
            let key = [prefix.clone(), rest].concat();
            prop_assert!(key < after_prefix(&prefix));
        }
    }

    #[test]
    fn one_partition_is_never_the_prefix_of_another() {
        let at = |topic, index| Partition::new(TopicName::new(topic).unwrap(), index);
        assert!(!group_leases(&at("ab", 1)).starts_with(&group_leases(&at("a", 1))));
        assert_ne!(partition(&at("a", 1)), partition(&at("a", 256)));
    }
}
