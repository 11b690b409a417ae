//! The store of `memory:`: ordered maps under a lock. A step runs inside the caller's task while it
//! holds the lock, so there are no threads and no timers here, and a paused tokio clock works.

use super::keys::{Key, Space};
use super::step::{Batch, Each, KeyView, MaintenanceJob, Range};
use crate::error::Result;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
pub(super) struct MemoryStore {
    spaces: HashMap<Space, BTreeMap<Key, Bytes>>,
}

impl MemoryStore {
    /// Applies a whole batch.
    pub(super) fn apply(&mut self, batch: &mut Batch) {
        for write in batch.writes.drain(..) {
            let space = self.spaces.entry(write.space).or_default();
            match write.value {
                Some(value) => space.insert(write.key, value),
                None => space.remove(&write.key),
            };
        }
        for job in batch.jobs.drain(..) {
            match job {
                MaintenanceJob::Drop(no) => {
                    self.spaces.remove(&Space::Log(no));
                }
                MaintenanceJob::Cut(no, seq) => {
                    let log = self.spaces.entry(Space::Log(no)).or_default();
                    *log = log.split_off(&super::keys::record(seq + 1));
                }
                #[cfg(feature = "embedded")]
                MaintenanceJob::Grow(_) => {}
            }
        }
    }
}

impl KeyView for MemoryStore {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.spaces.get(&space).and_then(|space| space.get(key)).cloned())
    }

    fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()> {
        let Some(space) = self.spaces.get(&space) else {
            return Ok(());
        };
        for (key, value) in space.range(range.from..range.to) {
            if !each(key, value.clone())? {
                break;
            }
        }
        Ok(())
    }
}
