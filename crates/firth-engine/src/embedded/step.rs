//! [`Step`]: what a step sees and what it wants changed.
//!
//! A step is a plain function over a `Step`: it reads through a [`KeyView`], decides, and collects
//! writes in a [`Batch`]. It never sees its own writes, never waits, and returns an error *before*
//! it collected anything that matters: the driver drops the batch of a failed step. The same
//! functions run on memory and on files.

use super::hooks::{Hooks, Mutation};
use super::keys::{self, Key, Space};
use super::values::{GroupMeta, PartitionMeta, Value};
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::name::{GroupName, Partition};
use crate::watch::HintKey;
use bytes::Bytes;
use std::time::Duration;

/// Something that can be read in key order.
pub(super) trait KeyView {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `each` for the keys in `range` in order (or in reverse) until it answers false.
    fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()>;
}

/// Takes a key and its value; answers whether to go on.
pub(super) type Each<'a> = dyn FnMut(&[u8], Bytes) -> Result<bool> + 'a;

/// Keys from `from` up to but without `to`.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) from: Key,
    pub(super) to: Key,
}

impl Range {
    pub(super) fn prefix(prefix: Key) -> Self {
        let to = keys::after_prefix(&prefix);
        Self { from: prefix, to }
    }

    /// What starts with `prefix` and comes after the key `after`.
    pub(super) fn prefix_after(prefix: Key, mut after: Key) -> Self {
        after.push(0);
        Self { from: after, to: keys::after_prefix(&prefix) }
    }
}

/// One write: a value, or a removal.
pub(super) struct Write {
    pub(super) space: Space,
    pub(super) key: Key,
    pub(super) value: Option<Bytes>,
}

/// Work on the files of a log that follows a committed batch and may be lost in a crash: opening
/// repeats it.
#[derive(Clone, Copy, Debug)]
pub(super) enum MaintenanceJob {
    /// The log of this partition number is gone.
    Drop(u64),
    /// Records up to this `seq` are gone.
    Cut(u64, u64),
    /// The log of this partition number should have files of its own.
    #[cfg(feature = "embedded")]
    Grow(u64),
}

/// The changes of one step: applied together or not at all.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) writes: Vec<Write>,
    /// Who should look again once it is durable.
    pub(super) hints: Vec<HintKey>,
    pub(super) jobs: Vec<MaintenanceJob>,
    /// What its answer means, if not what the engine promises anyway.
    pub(super) durability: Option<Durability>,
    /// Losing it in a power failure does no harm (renewals, taken marks): no fsync for its sake.
    pub(super) relaxed: bool,
    /// It makes room or only settles: allowed also when the disk is nearly full.
    pub(super) frugal: bool,
}

/// The engine's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) us: u64,
}

impl Now {
    pub(super) fn ms(self) -> u64 {
        self.us / 1000
    }

    /// The millisecond that lies `after` from now, rounded up: never early. No delay is no delay.
    pub(super) fn later_ms(self, after: Duration) -> u64 {
        if after.is_zero() {
            return self.ms();
        }
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.us.saturating_add(us).div_ceil(1000)
    }

    /// How long until `ms`; zero if it has passed.
    pub(super) fn until(self, ms: u64) -> Duration {
        Duration::from_micros(ms.saturating_mul(1000).saturating_sub(self.us))
    }

    /// How long since `ms`.
    pub(super) fn since(self, ms: u64) -> Duration {
        Duration::from_micros(self.us.saturating_sub(ms.saturating_mul(1000)))
    }
}

/// One step in progress.
pub(super) struct Step<'a> {
    pub(super) view: &'a dyn KeyView,
    pub(super) now: Now,
    pub(super) batch: Batch,
    pub(super) hooks: &'a Hooks,
}

impl<'a> Step<'a> {
    pub(super) fn new(view: &'a dyn KeyView, now: Now, hooks: &'a Hooks) -> Self {
        Self { view, now, batch: Batch::default(), hooks }
    }

    /// Whether the bug `mutation` is planted (only ever in tests).
    pub(super) fn planted(&self, mutation: Mutation) -> bool {
        self.hooks.planted(mutation)
    }

    pub(super) fn load<V: Value>(&self, key: &[u8]) -> Result<Option<V>> {
        self.view.get(Space::State, key)?.map(V::read).transpose()
    }

    pub(super) fn store(&mut self, key: Key, value: &impl Value) {
        self.store_raw(key, value.packed());
    }

    pub(super) fn store_raw(&mut self, key: Key, value: Bytes) {
        self.batch.writes.push(Write { space: Space::State, key, value: Some(value) });
    }

    pub(super) fn remove(&mut self, key: Key) {
        self.batch.writes.push(Write { space: Space::State, key, value: None });
    }

    pub(super) fn hint(&mut self, key: HintKey) {
        self.batch.hints.push(key);
    }

    pub(super) fn scan(&self, range: Range, each: &mut Each<'_>) -> Result<()> {
        self.view.scan(Space::State, range, each)
    }

    /// The first key of a range, if any.
    pub(super) fn first_key(&self, range: Range) -> Result<Option<Key>> {
        let mut found = None;
        self.scan(range, &mut |key, _| {
            found = Some(key.to_vec());
            Ok(false)
        })?;
        Ok(found)
    }

    pub(super) fn partition(&self, at: &Partition) -> Result<PartitionMeta> {
        self.load(&keys::partition(at))?
            .ok_or_else(|| Error::not_found(format!("partition {at} does not exist: create the topic first")))
    }

    pub(super) fn group(&self, at: &Partition, partition: u64, group: &GroupName) -> Result<GroupMeta> {
        self.load(&keys::group(partition, group))?
            .ok_or_else(|| Error::not_found(format!("group {group} does not exist on {at}")))
    }

    /// A number that no partition or group ever had.
    pub(super) fn fresh_number(&mut self) -> Result<u64> {
        let number = self.load::<u64>(&keys::counter())?.unwrap_or(0) + 1;
        self.store(keys::counter(), &number);
        Ok(number)
    }
}
