//! Conversions of maps, which servers send in three shapes: a RESP3 map, an array of pairs, a flat
//! array.

use super::list::size_mismatch;
use super::{ConvertError, ConvertProblem, FromValue, Segment};
use crate::resp::kind::ValueKind;
use crate::resp::value::{Children, Pairs, Value};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

/// Keys and values, from each of the three shapes.
pub(super) enum Entries<'a> {
    Flat(Pairs<'a>),
    /// Each child is an array of two, and its index.
    Nested(std::iter::Enumerate<Children<'a>>),
}

impl<'a> Entries<'a> {
    pub(super) fn of(value: Value<'a>) -> Result<Self, ConvertError> {
        // Keys are never aggregates, so that one in the first place means pairs.
        let nested =
            value.kind() != ValueKind::Map && value.get(0).is_some_and(|first| first.kind().is_aggregate());
        match value.pairs() {
            _ if nested => Ok(Self::Nested(value.iter().enumerate())),
            Some(pairs) => Ok(Self::Flat(pairs)),
            None if value.kind() == ValueKind::Array => Err(size_mismatch(value.len() + 1, value.len())),
            None => Err(ConvertError::mismatch("map", value)),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Flat(pairs) => pairs.len(),
            Self::Nested(children) => children.len(),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<(Value<'a>, Value<'a>), ConvertError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Flat(pairs) => pairs.next().map(Ok),
            Self::Nested(children) => children.next().map(|(index, child)| {
                let mut parts = child.iter();
                match (parts.next(), parts.next(), parts.next()) {
                    (Some(key), Some(value), None) => Ok((key, value)),
                    _ => Err(size_mismatch(2, child.len()).within(Segment::Index(index))),
                }
            }),
        }
    }
}

/// Reads key and value of the entry at `index`.
#[inline]
pub(super) fn pair<K: FromValue, V: FromValue>(
    index: usize,
    (key, value): (Value<'_>, Value<'_>),
) -> Result<(K, V), ConvertError> {
    Ok((
        K::from_value(key)
            .map_err(|error| error.within(Segment::Field("key")).within(Segment::Index(index)))?,
        V::from_value(value).map_err(|error| error.within(Segment::key(key, index)))?,
    ))
}

/// Reads all entries into a map by its `insert`, which says whether the key is new.
fn collect<K: FromValue, V: FromValue>(
    entries: Entries<'_>,
    mut insert: impl FnMut(K, V) -> bool,
) -> Result<(), ConvertError> {
    for (index, entry) in entries.enumerate() {
        let entry = entry?;
        let (key, value) = pair(index, entry)?;
        if !insert(key, value) {
            return Err(ConvertError::new(ConvertProblem::DuplicateKey).within(Segment::key(entry.0, index)));
        }
    }
    Ok(())
}

impl<K, V, S> FromValue for HashMap<K, V, S>
where
    K: FromValue + Eq + Hash,
    V: FromValue,
    S: BuildHasher + Default,
{
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        let entries = Entries::of(value)?;
        let mut map = Self::with_capacity_and_hasher(entries.len(), S::default());
        collect(entries, |key, value| map.insert(key, value).is_none())?;
        Ok(map)
    }
}

impl<K: FromValue + Ord, V: FromValue> FromValue for BTreeMap<K, V> {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        let mut map = Self::new();
        collect(Entries::of(value)?, |key, value| map.insert(key, value).is_none())?;
        Ok(map)
    }
}
