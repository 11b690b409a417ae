//! The catalog: small shared facts (topics, routes, offers, configuration) with versions.

use super::Reply;
use crate::error::{Error, Result};
use crate::limits::MAX_ENTRY_NAME;
use crate::name::SpaceName;
use bytes::Bytes;
use std::fmt;

/// Named values in spaces, changed by compare-and-set.
///
/// A version is drawn from a counter of the space, so it never repeats there, also not after a
/// removal: who holds a version knows exactly which value it means.
pub trait Catalog {
    /// The entry, if there is one.
    fn get<'a>(&'a self, key: &'a EntryKey) -> Reply<'a, Option<Entry>>;

    /// Stores a value if the entry is as expected.
    fn put<'a>(&'a self, key: &'a EntryKey, value: Bytes, expect: Expect) -> Reply<'a, Put>;

    /// Removes an entry if it is as expected.
    fn remove<'a>(&'a self, key: &'a EntryKey, expect: Expect) -> Reply<'a, Put>;

    /// Entries of a space whose names start with `prefix` and come after `after`, sorted by name,
    /// at most `max`.
    fn list<'a>(
        &'a self,
        space: &'a SpaceName,
        prefix: &'a str,
        after: &'a str,
        max: usize,
    ) -> Reply<'a, Vec<Entry>>;
}

/// The place of an entry: a space and a name in it. Names are 1 to 512 bytes of visible ASCII.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    space: SpaceName,
    name: String,
}

impl EntryKey {
    /// Checks the name and makes the key.
    pub fn new(space: SpaceName, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() || name.len() > MAX_ENTRY_NAME {
            return Err(Error::invalid(format!(
                "catalog name has {} bytes; give 1 to {MAX_ENTRY_NAME}",
                name.len()
            )));
        }
        if !name.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::invalid("catalog name contains a character that is not visible ASCII"));
        }
        Ok(Self { space, name })
    }

    /// The space.
    pub fn space(&self) -> &SpaceName {
        &self.space
    }

    /// The name inside the space.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.space, self.name)
    }
}

/// A stored value.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name inside the space.
    pub name: String,
    /// The value.
    pub value: Bytes,
    /// Changes with each put.
    pub version: u64,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} v{} {} bytes)", self.name, self.version, self.value.len())
    }
}

/// What must be there for a change to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Anything or nothing.
    Any,
    /// Nothing.
    Absent,
    /// Exactly this version.
    Version(u64),
}

/// The answer to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// Done; the entry's new version (for a removal: the version that marks it).
    Done(u64),
    /// Not as expected: nothing changed, and this is what is there.
    Conflict(Option<Entry>),
}
