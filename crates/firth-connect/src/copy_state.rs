//! [`CopyState`]: how far rows are copied: what a crash must not lose. Pure.
//!
//! Rows go to the topic in groups. A group ends at a key, so that a successor can read it again
//! with the same borders. Groups are numbered over the life of a source, and the mark of a
//! partition names the newest group that it holds: no partition gets a group twice.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The key of a row, as the database writes its columns.
pub type RowKey = Vec<String>;

/// The tables that are still to be copied, and how far the first of them is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CopyState {
    /// The tables, the one that is being copied first.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub queue: VecDeque<TableCopy>,
    /// How many groups every partition holds.
    pub stored: u64,
    /// Up to which row the first table is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<RowKey>,
    /// Where the groups end that some partitions may hold already; none is the table's end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<Option<RowKey>>,
    /// Rows of the first table that are stored.
    pub rows: u64,
    /// The newest request for a copy that was taken in.
    pub request: u64,
}

/// A table to be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableCopy {
    /// `schema.table`.
    pub table: String,
    /// Which of its rows, as a condition of SQL; all if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

impl CopyState {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Puts whole tables at the end of the queue, unless they wait there already.
    pub fn add<'a>(&mut self, tables: impl IntoIterator<Item = &'a String>) {
        for table in tables {
            // The first one may be half done: its rows so far can be older than this wish.
            let mut waiting = self.queue.iter().skip(1);
            if !waiting.any(|copy| copy.table == *table && copy.filter.is_none()) {
                self.queue.push_back(TableCopy { table: table.clone(), filter: None });
            }
        }
    }

    /// Groups up to this number are in every partition that may get their rows.
    pub(crate) fn settle(&mut self, number: u64) {
        while self.stored < number && !self.open.is_empty() {
            self.stored += 1;
            match self.open.remove(0) {
                Some(bound) => self.after = Some(bound),
                None => self.end_table(),
            }
        }
    }

    /// The first table is done.
    fn end_table(&mut self) {
        self.queue.pop_front();
        (self.after, self.rows) = (None, 0);
        self.open.clear();
    }

    /// Keeps only these tables in the queue.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        if self.queue.front().is_some_and(|copy| !is_wanted(&copy.table)) {
            // The numbers of its open groups are used up.
            self.stored += self.open.len() as u64;
            self.end_table();
        }
        self.queue.retain(|copy| is_wanted(&copy.table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(open: Vec<Option<RowKey>>) -> CopyState {
        let mut state = CopyState { open, ..CopyState::default() };
        state.add(&["a".to_owned(), "b".to_owned()]);
        state
    }

    #[test]
    fn groups_that_are_stored_move_the_start_and_the_last_one_ends_the_table() {
        let mut state = state(vec![Some(vec!["5".into()]), Some(vec!["9".into()]), None]);
        state.settle(2);
        assert_eq!((state.stored, &state.after, state.open.len()), (2, &Some(vec!["9".into()]), 1));
        state.settle(9);
        assert_eq!((state.stored, &state.after, &*state.queue[0].table), (3, &None, "b"));
    }

    #[test]
    fn a_table_that_is_no_longer_wanted_leaves_its_numbers_behind() {
        let mut state = state(vec![Some(vec!["5".into()]), None]);
        state.retain(|table| table == "b");
        assert_eq!((state.stored, state.queue.len(), state.open.len()), (2, 1, 0));
    }

    #[test]
    fn a_table_is_queued_once_but_again_behind_one_that_is_half_done() {
        let mut state = state(Vec::new());
        state.add(&["a".to_owned(), "b".to_owned()]);
        let queue: Vec<_> = state.queue.iter().map(|copy| &*copy.table).collect();
        assert_eq!(queue, ["a", "b", "a"]);
    }
}
