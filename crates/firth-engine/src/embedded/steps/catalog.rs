//! Catalog entries with versions.

use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{CatalogEntry, Value};
use crate::error::Result;
use crate::facet::{Entry, EntryKey, Expect, Put};
use crate::limits::MAX_READ;
use crate::name::SpaceName;
use crate::watch::HintKey;
use bytes::Bytes;

pub(in crate::embedded) fn get(step: &Step<'_>, key: &EntryKey) -> Result<Option<Entry>> {
    let stored: Option<CatalogEntry> = step.load(&keys::entry(key))?;
    Ok(stored.map(|stored| Entry {
        name: key.name().to_owned(),
        value: stored.value,
        version: stored.version,
    }))
}

/// Puts a value, or removes the entry when there is none.
pub(in crate::embedded) fn change(
    step: &mut Step<'_>,
    key: &EntryKey,
    value: Option<Bytes>,
    expect: Expect,
) -> Result<Put> {
    let current = get(step, key)?;
    let as_expected = match expect {
        Expect::Any => true,
        Expect::Absent => current.is_none(),
        Expect::Version(version) => current.as_ref().is_some_and(|entry| entry.version == version),
    };
    if !as_expected && !step.planted(Mutation::IgnoreVersion) {
        return Ok(Put::Conflict(current));
    }
    let counter = keys::space_version(key.space());
    let version = step.load::<u64>(&counter)?.unwrap_or(0) + 1;
    step.store(counter, &version);
    match value {
        Some(value) => step.store(keys::entry(key), &CatalogEntry { version, value }),
        None => step.remove(keys::entry(key)),
    }
    step.hint(HintKey::Space(key.space().clone()));
    Ok(Put::Done(version))
}

/// Which part of a space to list.
pub(in crate::embedded) struct Listing {
    pub(in crate::embedded) space: SpaceName,
    pub(in crate::embedded) prefix: String,
    pub(in crate::embedded) after: String,
    pub(in crate::embedded) max: usize,
}

pub(in crate::embedded) fn list(step: &Step<'_>, listing: &Listing) -> Result<Vec<Entry>> {
    let space = keys::entries(&listing.space);
    let prefix = [&space[..], listing.prefix.as_bytes()].concat();
    let after = [&space[..], listing.after.as_bytes()].concat();
    let range = if listing.after >= listing.prefix && !listing.after.is_empty() {
        Range::prefix_after(prefix, after)
    } else {
        Range::prefix(prefix)
    };
    let max = listing.max.clamp(1, MAX_READ);
    let mut found = Vec::new();
    if range.from >= range.to {
        return Ok(found);
    }
    step.scan(range, &mut |key, value| {
        let stored = CatalogEntry::read(value)?;
        let name = String::from_utf8_lossy(&key[space.len()..]).into_owned();
        found.push(Entry { name, value: stored.value, version: stored.version });
        Ok(found.len() < max)
    })?;
    Ok(found)
}
