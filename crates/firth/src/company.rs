//! [`Companion`]: a record in the memory of its company. Records come and go by the thousand: a piece of memory for each would make all memory
//! dear.

use firth_engine::Record;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// How many records should share a piece at most: it is held until the last of them is let go.
pub(crate) const COMPANY: usize = 32;

/// One of the records that share a piece of memory. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Companion {
    company: Arc<Vec<Record>>,
    place: usize,
}

impl Companion {
    /// A record by itself.
    pub(crate) fn alone(record: Record) -> Self {
        Self { company: Arc::new(vec![record]), place: 0 }
    }

    /// Records that share a piece from now on.
    pub(crate) fn all(records: Vec<Record>) -> impl DoubleEndedIterator<Item = Self> {
        let company = Arc::new(records);
        (0..company.len()).map(move |place| Self { company: Arc::clone(&company), place })
    }
}

impl Deref for Companion {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.company[self.place]
    }
}

impl fmt::Debug for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
