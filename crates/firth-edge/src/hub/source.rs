//! A hub that follows a topic: an event's offset is the number of its record, and the epoch belongs to the topic. So a position means the same at
//! every gateway that follows it, and in every life of one.
//!
//! Whoever resumes at a hub that has seen everything behind its position gets it from the journal; at one that has not, it must start
//! anew. `start` and `forgotten` say what has been seen: nothing up to `start` was read, and of tenants without a journal nothing up to
//! `forgotten` is known any more.

use super::core::{Core, Part};
use crate::frame::Frame;
use crate::journal::{Journal, Missing};
use crate::position::Position;
use firth_router::Tenant;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Source {
    pub(super) epoch: u64,
    /// The last record that was read.
    pub(super) head: u64,
    /// The record before the first that was read; `None` while none was.
    start: Option<u64>,
    /// Events up to this one may have been thrown away with their tenant's journal.
    forgotten: u64,
}

impl Core {
    /// Takes offsets from a topic from now on. Positions of before do not hold.
    pub(super) fn follow(&mut self, epoch: u64) {
        self.source = Some(Source { epoch, head: 0, start: None, forgotten: 0 });
        for part in self.tenants.values_mut() {
            part.journal = Journal::new(epoch, 0);
        }
        self.journal_bytes = 0;
    }

    /// A record was read. False if it came before.
    pub(super) fn arrive(&mut self, seq: u64) -> bool {
        let Some(source) = &mut self.source else { return false };
        if source.start.is_some() && seq <= source.head {
            return false;
        }
        source.start.get_or_insert(seq.saturating_sub(1));
        source.head = seq;
        true
    }

    /// There is nothing to read up to this record.
    pub(super) fn begin(&mut self, seq: u64) {
        if let Some(source) = self.source.as_mut().filter(|source| source.start.is_none()) {
            (source.start, source.head) = (Some(seq), seq);
        }
    }

    /// Whether events of this tenant are kept: clients that come back from elsewhere may ask for them. Half of the room is for tenants that have
    /// clients here.
    pub(super) fn keeps(&mut self, tenant: &Tenant, now: Instant) -> bool {
        if self.tenants.contains_key(tenant) {
            return true;
        }
        let Some(source) = &mut self.source else { return false };
        if self.journal_bytes >= self.config.window.total_bytes / 2 {
            source.forgotten = source.head;
            return false;
        }
        self.tenants.insert(tenant.clone(), Part::new(self.fresh_journal(), now));
        true
    }

    pub(super) fn fresh_journal(&self) -> Journal {
        match &self.source {
            Some(source) => Journal::new(source.epoch, source.forgotten),
            None => Journal::new(fastrand::u64(1..), 0),
        }
    }

    /// Everything of the tenant behind the position.
    pub(super) fn history(&self, tenant: &Tenant, after: Position) -> Result<Vec<Arc<Frame>>, Missing> {
        let journal = &self.tenants[tenant].journal;
        match &self.source {
            None => journal.after(after, journal.head().offset),
            Some(source) if source.start.is_none_or(|start| after.offset < start) => Err(match after.epoch {
                epoch if epoch == source.epoch => Missing::TooOld,
                _ => Missing::UnknownEpoch,
            }),
            Some(source) => journal.after(after, source.head),
        }
    }

    /// The place behind everything that was queued for clients of the tenant.
    pub(super) fn head_of(&self, tenant: &Tenant) -> Position {
        match &self.source {
            Some(Source { epoch, head, .. }) => Position { epoch: *epoch, offset: *head },
            None => self.tenants[tenant].journal.head(),
        }
    }

    /// Whether the position is of this topic, and further on than what was read here.
    pub(super) fn is_behind(&self, position: Position) -> bool {
        self.source
            .as_ref()
            .is_some_and(|source| source.epoch == position.epoch && source.head < position.offset)
    }

    /// Forgets tenants that nobody asks for.
    pub(super) fn forget_tenants(&mut self, now: Instant) {
        let (window, source) = (&self.config.window, &mut self.source);
        self.tenants.retain(|_, part| {
            part.journal.expire(window, now);
            let stays = part.sessions > 0
                || now.saturating_duration_since(part.left_at) <= window.age
                || source.is_some() && !part.journal.is_empty();
            if let (false, Some(source)) = (stays, source.as_mut()) {
                source.forgotten = source.forgotten.max(part.journal.base());
            }
            stays
        });
        self.journal_bytes = self.tenants.values().map(|part| part.journal.bytes()).sum();
    }
}

#[cfg(test)]
mod tests;
