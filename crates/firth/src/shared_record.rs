//! [`SharedRecord`]: a record in an allocation that it shares with others.
//!
//! **Why shared.** Records come and go by the thousand: an allocation for each costs a fifth of a
//! client's time.

use firth_engine::Record;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Most records of one allocation: it is freed when the last of them is dropped.
pub(crate) const MAX_SHARED: usize = 32;

/// Handle of one record in a shared allocation. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct SharedRecord {
    records: Arc<Vec<Record>>,
    index: usize,
}

impl SharedRecord {
    /// A record in an allocation of its own.
    pub(crate) fn alone(record: Record) -> Self {
        Self { records: Arc::new(vec![record]), index: 0 }
    }

    /// Handles of records that share one allocation from now on.
    pub(crate) fn all(records: Vec<Record>) -> impl DoubleEndedIterator<Item = Self> {
        let records = Arc::new(records);
        (0..records.len()).map(move |index| Self { records: Arc::clone(&records), index })
    }
}

impl Deref for SharedRecord {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.records[self.index]
    }
}

impl fmt::Debug for SharedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
