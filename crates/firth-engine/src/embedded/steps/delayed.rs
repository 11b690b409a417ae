//! Delayed messages: listed, cancelled and delivered before their time.

use super::log::{split, write_records};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys::{self, Space};
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{Cancelled, PartitionMeta};
use crate::error::{Error, Result};
use crate::facet::{
    CANCELLED_WINDOW, DelayedAction, DelayedContent, DelayedOutcome, DelayedPage, DelayedState, ReadLimit,
};
use crate::id::RecordId;
use crate::limits::MAX_READ;
use crate::name::Partition;
use crate::record::Content;

pub(in crate::embedded) fn page(
    step: &Step<'_>,
    at: &Partition,
    after: RecordId,
    max: ReadLimit,
) -> Result<DelayedPage> {
    let part = step.partition(at)?;
    let prefix = keys::numbered(b'y', part.no);
    let range = match after {
        RecordId::ZERO => Range::prefix(prefix),
        after => Range::prefix_after(prefix, keys::delayed(part.no, after.ms, after.seq)),
    };
    let mut page = DelayedPage::default();
    let mut bytes = 0;
    let mut last = after;
    let limit = max.records.clamp(1, MAX_READ);
    step.scan(range, &mut |key, value| {
        let place = keys::number_at(key, 9).zip(keys::number_at(key, 17));
        let (ms, n) = place.ok_or_else(|| Error::corrupt("a delayed message has a damaged key"))?;
        bytes += value.len();
        let is_full = page.messages.len() >= limit || bytes > max.bytes;
        if is_full && !page.messages.is_empty() {
            page.next = Some(last);
            return Ok(false);
        }
        let (_, content) = split(n, value)?;
        last = RecordId::new(ms, n);
        let ripe_in = step.now.until(ms);
        let content = Content::unpack(content)?;
        page.messages.push(DelayedContent { id: last, ripe_in, content });
        Ok(true)
    })?;
    Ok(page)
}

pub(in crate::embedded) fn change(
    step: &mut Step<'_>,
    at: &Partition,
    id: RecordId,
    action: DelayedAction,
) -> Result<DelayedOutcome> {
    let mut part = step.partition(at)?;
    // A cancelled message frees space, also on a disk that is nearly full.
    step.batch.frugal = action == DelayedAction::Cancel;
    let mut cancelled: Cancelled = step.load(&keys::cancelled(part.no))?.unwrap_or_default();
    let key = keys::delayed(part.no, id.ms, id.seq);
    let Some(stored) = step.view.get(Space::State, &key)? else {
        return Ok(DelayedOutcome::found(cancelled.state(&part, id)));
    };
    let record = match action {
        DelayedAction::Cancel => {
            cancelled.note(id);
            step.store(keys::cancelled(part.no), &cancelled);
            None
        }
        DelayedAction::Deliver => Some(write_records(step, at, &mut part, vec![Vec::from(stored)])),
    };
    if !step.planted(Mutation::KeepChangedDelayed) {
        step.remove(key);
        part.delayed -= 1;
    }
    step.store(keys::partition(at), &part);
    let state = record.map_or(DelayedState::Cancelled, |_| DelayedState::Delivered);
    Ok(DelayedOutcome { state, changed: true, record })
}

impl Cancelled {
    /// Where a message is that does not wait any more.
    fn state(&self, part: &PartitionMeta, id: RecordId) -> DelayedState {
        if self.last.contains(&id) {
            DelayedState::Cancelled
        } else if id.seq == 0 || id.seq > part.delayed_ever || id.ms <= self.forgotten_ms {
            DelayedState::Missing
        } else {
            DelayedState::Delivered
        }
    }

    /// Remembers one more; the one whose time comes first is forgotten.
    fn note(&mut self, id: RecordId) {
        let place = self.last.partition_point(|other| *other < id);
        self.last.insert(place, id);
        if self.last.len() > CANCELLED_WINDOW {
            self.forgotten_ms = self.forgotten_ms.max(self.last.remove(0).ms);
        }
    }
}
