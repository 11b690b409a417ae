//! What is known of subscriptions, by shard of the catalog: one shard is compared with the catalog
//! without a look at the others.

use super::catalog::{SHARDS, shard_of};
use super::state::{Key, Known};
use foldhash::fast::RandomState;
use std::collections::HashMap;

pub(super) struct Shards(Vec<HashMap<Key, Known, RandomState>>);

impl Default for Shards {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| HashMap::default()).collect())
    }
}

impl Shards {
    pub(super) fn get(&self, key: &Key) -> Option<&Known> {
        self.0[place(key)].get(key)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Known> {
        self.0[place(key)].get_mut(key)
    }

    pub(super) fn insert(&mut self, key: Key, known: Known) {
        self.0[place(&key)].insert(key, known);
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Known> {
        self.0[place(key)].remove(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().flat_map(HashMap::keys)
    }

    /// All of one shard.
    pub(super) fn of(&self, shard: u64) -> impl Iterator<Item = (&Key, &Known)> {
        self.0.get(shard as usize).into_iter().flatten()
    }
}

fn place(key: &Key) -> usize {
    shard_of(&key.0, &key.1) as usize
}
