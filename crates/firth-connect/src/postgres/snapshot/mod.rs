//! [`Copier`]: copies the rows that a source found, beside its change stream. Pure.
//!
//! Rows are read in chunks by key, in short transactions. While a chunk is read, the stream stands
//! still. Then it goes on, and the rows wait until it has passed every transaction that the query
//! saw; rows that a later one changes are dropped. So the topic has for each document a
//! history in order, and the rows are what the table held at their place in it.
//!
//! Before the first row of a chunk goes to the topic, the borders of its groups are stored. A
//! successor reads the open groups again, and gives each to the partitions that lack it.

mod held;
#[cfg(test)]
mod model;
mod query;
pub(crate) mod read;
mod visibility;

pub use held::{Group, ReadRow};
pub use visibility::Visibility;

use crate::copy_state::{CopyState, RowKey, TableCopy};
use crate::error::{Error, Result};
use firth_router::event::Event;
use held::Held;

/// Records of a group, at most: a partition takes them in one step.
const GROUP_ROWS: usize = 1_000;
/// Bytes of a group, unless it is a single row.
const GROUP_BYTES: usize = 4 << 20;
/// Transactions that are remembered until a query saw them, at most.
const MAX_DELIVERED: usize = 1 << 20;

/// What the copier needs next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Which transactions are over now.
    Look,
    /// The next rows of a table.
    Chunk {
        /// The table.
        copy: TableCopy,
        /// Rows behind this one.
        after: Option<RowKey>,
        /// Up to this one; without it as many as a chunk holds.
        upto: Option<RowKey>,
    },
}

/// A chunk as it was read.
#[derive(Debug)]
pub struct Chunk {
    /// Which transactions it saw.
    pub visibility: Visibility,
    /// A place in the log behind all of them.
    pub high: u64,
    /// Its rows, by key.
    pub rows: Vec<ReadRow>,
    /// Whether there are no more rows up to where it was asked for.
    pub is_whole: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Copier {
    /// What is stored durably.
    saved: CopyState,
    /// What must be, before more is given out.
    state: CopyState,
    /// The newest group that each partition holds.
    held_by: Vec<u64>,
    phase: Phase,
    /// Transactions that the stream told and that no chunk saw yet.
    delivered: Vec<u32>,
    /// Whether some of these were forgotten.
    has_forgotten: bool,
    txn: u32,
    /// Rows of the chunk under way.
    rows: u64,
    /// How many groups more there are in it than there were before it was read again.
    parts: u64,
}

#[derive(Debug)]
enum Phase {
    /// Transactions that the stream told before this session may still be hidden from queries.
    Unsettled(Option<u64>),
    Ready,
    Reading,
    Waiting(Box<Held>),
    /// Groups up to this number are on their way to the topic.
    Storing(u64),
}

impl Copier {
    /// For partitions that hold groups up to these numbers.
    pub fn new(saved: CopyState, held_by: Vec<u64>) -> Self {
        let mut state = saved.clone();
        let newest = held_by.iter().max().copied().unwrap_or_default();
        if newest > state.stored + state.open.len() as u64 {
            // What the source saved is older than the topic.
            (state.stored, state.open) = (newest, Vec::new());
        }
        state.settle(held_by.iter().min().copied().unwrap_or_default());
        Self {
            saved,
            state,
            held_by,
            phase: Phase::Unsettled(None),
            delivered: Vec::new(),
            has_forgotten: false,
            txn: 0,
            rows: 0,
            parts: 0,
        }
    }

    /// What to ask the database for, if anything.
    pub fn wanted(&self) -> Option<Wanted> {
        let copy = self.state.queue.front()?.clone();
        match &self.phase {
            Phase::Unsettled(_) => Some(Wanted::Look),
            Phase::Ready => {
                let upto = self.state.open.first().cloned().flatten();
                Some(Wanted::Chunk { copy, after: self.state.after.clone(), upto })
            }
            Phase::Reading | Phase::Waiting(_) | Phase::Storing(_) => None,
        }
    }

    /// A chunk is being read: the stream must stand still until it is [`read`](Self::read) or
    /// [given up](Self::give_up).
    pub fn begin_reading(&mut self) {
        self.phase = Phase::Reading;
    }

    /// Whether the stream must stand still.
    pub fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Reading)
    }

    /// The chunk could not be read.
    pub fn give_up(&mut self) {
        self.rest_if(self.is_reading());
    }

    /// These transactions are over now. Every one that the stream told before this session is,
    /// once all that ran at the first look are.
    pub fn looked(&mut self, visibility: &Visibility) {
        match self.phase {
            Phase::Unsettled(None) if visibility.oldest < visibility.end => {
                self.phase = Phase::Unsettled(Some(visibility.end));
            }
            Phase::Unsettled(end) if end.is_none_or(|end| visibility.oldest >= end) => {
                self.phase = Phase::Ready;
            }
            _ => {}
        }
    }

    /// The stream tells a transaction.
    pub fn begin(&mut self, xid: u32) {
        self.txn = xid;
        if self.state.queue.is_empty() {
            return;
        }
        if self.delivered.len() == MAX_DELIVERED {
            self.delivered.clear();
            self.has_forgotten = true;
            self.rest_if(matches!(self.phase, Phase::Ready));
        }
        self.delivered.push(xid);
    }

    /// Ends a phase: the next chunk may be read, unless transactions were forgotten.
    fn rest_if(&mut self, is_over: bool) {
        if is_over {
            let has_forgotten = std::mem::take(&mut self.has_forgotten);
            self.phase = if has_forgotten { Phase::Unsettled(None) } else { Phase::Ready };
        }
    }

    /// Takes in what an operator asked for under this number.
    pub fn request(&mut self, number: u64, copies: Vec<TableCopy>) {
        if self.state.queue.is_empty() {
            // Until now no transaction was remembered.
            self.phase = Phase::Unsettled(None);
        }
        self.state.request = number;
        self.state.queue.extend(copies);
    }

    /// The open transaction changes a document; `change` numbers the row's change in it.
    pub fn touch(&mut self, change: u32, event: &mut Event) -> Result<()> {
        match &mut self.phase {
            Phase::Waiting(held) => held.touch(self.txn, change, event),
            _ => Ok(()),
        }
    }

    /// The open transaction removes all rows of a table.
    pub fn truncate(&mut self, table: &str) {
        if let Phase::Waiting(held) = &mut self.phase {
            held.truncate(self.txn, table);
        }
    }

    /// The chunk that was wanted; false if it must be read again because it lacks what the stream
    /// told already.
    pub fn read(&mut self, chunk: Chunk) -> Result<bool> {
        debug_assert!(self.is_reading(), "it was asked for");
        self.rest_if(true);
        let Chunk { visibility, high, rows, is_whole } = chunk;
        self.delivered.retain(|xid| !visibility.sees(*xid));
        let Some(copy) = self.state.queue.front().filter(|_| self.delivered.is_empty()) else {
            return Ok(false);
        };
        let table = copy.table.clone();
        self.rows = rows.len() as u64;
        let (mut bounds, groups) = cut(rows)?;
        if is_whole {
            // It ends where it was asked to end.
            let end = self.state.open.first().cloned().flatten();
            *bounds.last_mut().expect("there is a group, maybe an empty one") = end;
        }
        let known = usize::from(is_whole).min(self.state.open.len());
        // A partition that holds the group which is read again holds all of its parts.
        self.parts = if self.state.open.is_empty() { 0 } else { (bounds.len() - known) as u64 };
        self.state.open.splice(..known, bounds);
        self.phase = Phase::Waiting(Box::new(Held::new(table, visibility, high, groups)));
        Ok(true)
    }

    /// What must be saved, if it is not yet.
    pub fn unsaved(&self) -> Option<&CopyState> {
        Some(&self.state).filter(|state| **state != self.saved)
    }

    /// This is stored durably now.
    pub fn saved(&mut self, state: CopyState) {
        self.saved = state;
    }

    /// The stream has told every transaction before this place, and stands between two of them.
    /// Answers the groups that are due now.
    pub fn passed(&mut self, place: u64) -> Option<Vec<Group>> {
        match std::mem::replace(&mut self.phase, Phase::Ready) {
            Phase::Waiting(held) if place >= held.high && self.saved == self.state => {
                let groups = held.into_groups(self.state.stored + 1);
                let (stored, parts) = (self.state.stored, std::mem::take(&mut self.parts));
                self.held_by.iter_mut().filter(|held| **held > stored).for_each(|held| *held += parts);
                self.phase = Phase::Storing(self.state.stored + groups.len() as u64);
                Some(groups)
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Whether the partition lacks this group.
    pub fn lacks(&self, partition: usize, number: u64) -> bool {
        number > self.held_by[partition]
    }

    /// The groups that were [due](Self::passed) are handed over: from here on, all marks name them.
    pub fn handed_over(&mut self) {
        if let Phase::Storing(number) = self.phase {
            self.held_by.iter_mut().for_each(|held| *held = number.max(*held));
        }
    }

    /// The groups that were handed over are stored in every partition: `tell` is called with their
    /// table and rows.
    pub fn stored(&mut self, tell: impl FnOnce(&str, u64)) {
        if let Phase::Storing(number) = self.phase {
            self.state.rows += self.rows;
            if let Some(copy) = self.state.queue.front() {
                tell(&copy.table, self.rows);
            }
            self.state.settle(number);
            self.rest_if(true);
        }
    }

    /// Whether groups are on their way to the topic.
    pub fn is_storing(&self) -> bool {
        matches!(self.phase, Phase::Storing(_))
    }

    /// The newest group that a partition holds, for its mark.
    pub fn mark(&self, partition: usize) -> u64 {
        self.held_by[partition]
    }

    /// Whether no group is open, so that partitions may be added.
    pub fn is_quiet(&self) -> bool {
        self.state.open.is_empty() && matches!(self.phase, Phase::Unsettled(_) | Phase::Ready)
    }

    /// Whether nothing is left to copy, and that is saved.
    pub fn is_done(&self) -> bool {
        self.state.queue.is_empty() && self.saved == self.state
    }

    /// Notes the new number of partitions. All of them hold every group.
    pub fn grow(&mut self, partitions: usize) {
        debug_assert!(self.is_quiet(), "no group is open");
        self.held_by =
            vec![self.state.stored.max(self.held_by.iter().max().copied().unwrap_or_default()); partitions];
    }

    /// What is to be copied.
    pub fn state(&self) -> &CopyState {
        &self.state
    }
}

/// Where groups end, and what is in them.
type Cut = (Vec<Option<RowKey>>, Vec<Vec<Event>>);

/// Cuts rows into groups, and names the last row of each. There is at least one group, and rows of
/// one key stay together.
fn cut(rows: Vec<ReadRow>) -> Result<Cut> {
    let mut bounds = vec![None];
    let mut groups = vec![Vec::new()];
    let mut bytes = 0;
    let mut rows = rows.into_iter().peekable();
    while let Some(first) = rows.next() {
        let key = first.key;
        let mut size = first.size;
        let mut events: Vec<Event> = first.event.into_iter().collect();
        while let Some(same) = rows.next_if(|row| row.key == key) {
            size += same.size;
            events.extend(same.event);
        }
        let fits = |count, bytes| count <= GROUP_ROWS && (bytes <= GROUP_BYTES || count <= 1);
        if !fits(events.len(), size) {
            return Err(Error::refused(
                "`key` does not tell the rows of a table apart: too many of them have the same key",
            ));
        }
        let group = groups.last_mut().expect("there is one");
        let bound = bounds.last_mut().expect("there is one");
        if bound.is_none() || fits(group.len() + events.len(), bytes + size) {
            group.extend(events);
            *bound = Some(key);
            bytes += size;
        } else {
            groups.push(events);
            bounds.push(Some(key));
            bytes = size;
        }
    }
    Ok((bounds, groups))
}
