//! Laws of stored values, for fuzzers; see `crate::fuzzing`.

use super::claim_shard_values::{ClaimShardMeta, MemberEntry, OfferEntry};
use super::values::{
    Cancelled, CatalogEntry, DeadEntry, DueEntry, GroupMeta, KeptClock, LeaseEntry, PartitionMeta,
    ProducerState, Value,
};
use crate::facet::SourceMark;
use bytes::Bytes;

/// Any bytes, read as each kind of value: no panic, and what was read can be written and read
/// again.
pub(crate) fn values(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    law::<PartitionMeta>(&data);
    law::<SourceMark>(&data);
    law::<Cancelled>(&data);
    law::<GroupMeta>(&data);
    law::<DueEntry>(&data);
    law::<DeadEntry>(&data);
    law::<ProducerState>(&data);
    law::<LeaseEntry>(&data);
    law::<CatalogEntry>(&data);
    law::<KeptClock>(&data);
    law::<ClaimShardMeta>(&data);
    law::<MemberEntry>(&data);
    law::<OfferEntry>(&data);
    law::<u64>(&data);
}

fn law<V: Value>(data: &Bytes) {
    let Ok(value) = V::read(data.clone()) else { return };
    let packed = value.packed();
    let again = V::read(packed.clone()).expect("what was written can be read");
    assert_eq!(again.packed(), packed, "a {} changes when it is written again", V::WHAT);
}
