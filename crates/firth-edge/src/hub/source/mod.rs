//! A hub that follows a topic: an event's offset is the number of its record, and the epoch belongs
//! to the topic. So a position, which says how far each partition has come, means the same at every
//! gateway that follows it, and in every life of one, though each reads the partitions in an order
//! of its own.
//!
//! A client that resumes at a hub that has seen everything behind its position gets it from the
//! journal; at one that has not, it must start anew. `start` and `forgotten` say what has been
//! seen: nothing up to `start` was read, and of tenants without a journal nothing up to
//! `forgotten` is known any more.
//!
//! **A log that went back.** A crash or a failover may take the newest records of a partition back,
//! and their numbers are given again. The hub tells its clients when its consumer finds out. A
//! position that was given before, here or elsewhere, does not hold if some partition got the
//! record with its number only after the time that the position has for this partition.

use super::core::{Core, Part};
use crate::frame::Frame;
use crate::journal::{Journal, Missing};
use crate::position::{Offsets, Position};
use firth::RecordId;
use firth_router::Tenant;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Source {
    pub(super) epoch: u64,
    /// The last record of each partition that was read.
    pub(super) head: Offsets,
    /// The record before the first that was read, for each partition; `None` while none was.
    start: Vec<Option<u64>>,
    /// Events up to these may have been thrown away with their tenant's journal.
    forgotten: Offsets,
    /// When records were appended: for each partition some of their numbers and times, in order.
    times: Vec<VecDeque<(u64, u64)>>,
}

/// Records that were appended within this many milliseconds count as of one time. A server is not
/// started again in less.
const MOMENT: u64 = 20;
/// Moments that are known of each partition.
const MOMENTS: usize = 10_000;

impl Source {
    /// A record was appended.
    fn note_time(&mut self, partition: u32, id: RecordId) {
        self.head.raise_time(partition, id.ms);
        let times = self.times(partition);
        if times.back().is_none_or(|(_, ms)| id.ms >= ms + MOMENT) {
            times.push_back((id.seq, id.ms));
            if times.len() > MOMENTS {
                times.pop_front();
            }
        }
    }

    fn times(&mut self, partition: u32) -> &mut VecDeque<(u64, u64)> {
        let at = partition as usize;
        if self.times.len() <= at {
            self.times.resize_with(at + 1, VecDeque::new);
        }
        &mut self.times[at]
    }

    /// Whether some partition got the record with its offset only after the offsets were given:
    /// then it went back in between.
    fn went_back(&self, offsets: &Offsets) -> bool {
        let is_later = |(partition, times): (u32, &VecDeque<(u64, u64)>)| {
            if offsets.time_of(partition) == 0 {
                return false;
            }
            let before = times.partition_point(|(seq, _)| *seq <= offsets.get(partition));
            before.checked_sub(1).is_some_and(|at| times[at].1 > offsets.time_of(partition))
        };
        (0..).zip(&self.times).any(is_later)
    }

    /// The partition lost records, and goes on with this one.
    fn go_back(&mut self, partition: u32, id: RecordId) {
        let before = id.seq.saturating_sub(1);
        self.head.set_back(partition, before, id.ms);
        let start = self.start(partition);
        *start = Some(start.map_or(before, |start| start.min(before)));
        self.times(partition).retain(|(seq, _)| *seq <= before);
    }

    fn start(&mut self, partition: u32) -> &mut Option<u64> {
        let at = partition as usize;
        if self.start.len() <= at {
            self.start.resize(at + 1, None);
        }
        &mut self.start[at]
    }

    /// No position from before holds.
    pub(super) fn forget_all(&mut self) {
        self.forgotten.clone_from(&self.head);
    }

    /// Whether everything behind the offsets was read.
    fn has_seen(&self, offsets: &Offsets) -> bool {
        let is_seen = |(partition, start): (u32, &Option<u64>)| {
            start.is_some_and(|start| start <= offsets.get(partition))
        };
        (0..).zip(&self.start).all(is_seen)
    }
}

impl Core {
    /// Takes offsets from a topic from now on. Positions of before do not hold.
    pub(super) fn follow(&mut self, epoch: u64, partitions: usize) {
        let head = Offsets::of(partitions);
        let forgotten = Offsets::default();
        let start = vec![None; partitions];
        let times = Vec::new();
        self.source = Some(Source { epoch, head, start, forgotten, times });
        for part in self.tenants.values_mut() {
            part.journal = Journal::new(epoch, Offsets::default());
        }
        self.journal_bytes = 0;
    }

    /// A record was read. False if it came before.
    pub(super) fn arrive(&mut self, partition: u32, id: RecordId) -> bool {
        let Some(source) = &mut self.source else { return false };
        let seq = id.seq;
        let head = source.head.get(partition);
        let start = source.start(partition);
        if start.is_some() && seq <= head {
            return false;
        }
        start.get_or_insert(seq.saturating_sub(1));
        source.head.raise(partition, seq);
        source.note_time(partition, id);
        true
    }

    /// Records of the partition before this one are gone: a lossy trim removed some that were not
    /// read, or the log lost some that were. Whose they were is not known.
    pub(super) fn lose(&mut self, partition: u32, id: RecordId) {
        if let Some(source) = &mut self.source {
            let before = id.seq.saturating_sub(1);
            source.start(partition).get_or_insert(before);
            if id.seq <= source.head.get(partition) {
                source.go_back(partition, id);
            }
            source.head.raise(partition, before);
            source.head.raise_time(partition, id.ms);
        }
        self.source_gap();
    }

    /// There is nothing to read in the partition up to this record.
    pub(super) fn begin(&mut self, partition: u32, id: RecordId) {
        let Some(source) = &mut self.source else { return };
        let start = source.start(partition);
        if start.is_none() {
            *start = Some(id.seq);
            source.head.raise(partition, id.seq);
            source.head.raise_time(partition, id.ms);
        }
    }

    /// Whether events of this tenant are kept: clients that come back from elsewhere may ask for
    /// them. Half of the room is for tenants that have clients here.
    pub(super) fn keeps(&mut self, tenant: &Tenant, now: Instant) -> bool {
        if self.tenants.contains_key(tenant) {
            return true;
        }
        let Some(source) = &mut self.source else { return false };
        if self.journal_bytes >= self.config.window.total_bytes / 2 {
            source.forgotten.clone_from(&source.head);
            return false;
        }
        self.tenants.insert(tenant.clone(), Part::new(self.fresh_journal(), now));
        true
    }

    pub(super) fn fresh_journal(&self) -> Journal {
        match &self.source {
            Some(source) => Journal::new(source.epoch, source.forgotten.clone()),
            None => Journal::new(fastrand::u64(1..), Offsets::default()),
        }
    }

    /// Everything of the tenant behind the position.
    pub(super) fn history(&self, tenant: &Tenant, after: &Position) -> Result<Vec<Arc<Frame>>, Missing> {
        let journal = &self.tenants[tenant].journal;
        match &self.source {
            None => journal.after(after, &journal.head().offsets),
            Some(source) if !source.has_seen(&after.offsets) => Err(match after.epoch {
                epoch if epoch == source.epoch => Missing::TooOld,
                _ => Missing::UnknownEpoch,
            }),
            Some(source) if source.went_back(&after.offsets) => Err(Missing::UnknownEpoch),
            Some(source) => journal.after(after, &source.head),
        }
    }

    /// The place behind everything that was queued for clients of the tenant.
    pub(super) fn head_of(&self, tenant: &Tenant) -> Position {
        match &self.source {
            Some(Source { epoch, head, .. }) => Position::new(*epoch, head.clone()),
            None => self.tenants[tenant].journal.head(),
        }
    }

    /// Whether the position is of this topic, and further on than what was read here.
    pub(super) fn is_behind(&self, position: &Position) -> bool {
        let is_behind =
            |source: &Source| source.epoch == position.epoch && !source.head.covers(&position.offsets);
        self.source.as_ref().is_some_and(is_behind)
    }

    /// Forgets tenants that no client asks for.
    pub(super) fn forget_tenants(&mut self, now: Instant) {
        let window = &self.config.window;
        let source = &mut self.source;
        self.tenants.retain(|_, part| {
            part.journal.expire(window, now);
            let stays = part.sessions > 0
                || now.saturating_duration_since(part.left_at) <= window.age
                || source.is_some() && !part.journal.is_empty();
            if let (false, Some(source)) = (stays, source.as_mut()) {
                source.forgotten.raise_all(part.journal.base());
            }
            stays
        });
        self.journal_bytes = self.tenants.values().map(|part| part.journal.bytes()).sum();
    }
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
