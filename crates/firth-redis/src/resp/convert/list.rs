//! Conversions of lists: `Vec` and its kin, sets, fixed arrays, tuples.

use super::map::{self, Entries};
use super::{ConvertError, ConvertProblem, FromValue, Segment};
use crate::resp::value::{Children, Value};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};

/// Children of any aggregate: a map is the list of its keys and values in turn, which is what RESP2
/// sends.
pub(super) fn children(value: Value<'_>) -> Result<Children<'_>, ConvertError> {
    if value.kind().is_aggregate() { Ok(value.iter()) } else { Err(ConvertError::mismatch("array", value)) }
}

#[inline]
fn child<T: FromValue>(index: usize, value: Value<'_>) -> Result<T, ConvertError> {
    T::from_value(value).map_err(|error| error.within(Segment::Index(index)))
}

/// Reads each child as a `T`.
pub(super) fn vec<T: FromValue>(value: Value<'_>) -> Result<Vec<T>, ConvertError> {
    let children = children(value)?;
    // The elements are there, not only announced, so that the capacity is safe to ask for.
    let mut list = Vec::with_capacity(children.len());
    for (index, value) in children.enumerate() {
        list.push(child(index, value)?);
    }
    Ok(list)
}

/// Bytes for `Vec<u8>`, a list for all others.
impl<T: FromValue> FromValue for Vec<T> {
    #[inline]
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        T::list_from_value(value)
    }
}

macro_rules! from_vec {
    ($($type:ty),* $(,)?) => {$(
        impl<T: FromValue> FromValue for $type {
            fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
                T::list_from_value(value).map(Self::from)
            }
        }
    )*};
}
from_vec!(VecDeque<T>, Box<[T]>);

impl<T: FromValue, const N: usize> FromValue for [T; N] {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        Self::try_from(T::list_from_value(value)?).map_err(|list| size_mismatch(N, list.len()))
    }
}

#[cold]
pub(super) fn size_mismatch(expected: usize, found: usize) -> ConvertError {
    ConvertError::new(ConvertProblem::SizeMismatch { expected, found })
}

impl<T: FromValue + Eq + Hash, S: BuildHasher + Default> FromValue for HashSet<T, S> {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        children(value)?.enumerate().map(|(index, value)| child(index, value)).collect()
    }
}

impl<T: FromValue + Ord> FromValue for BTreeSet<T> {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        children(value)?.enumerate().map(|(index, value)| child(index, value)).collect()
    }
}

macro_rules! tuple {
    ($size:literal: $($name:ident $index:literal)* $(; $list:item)?) => {
        impl<$($name: FromValue),*> FromValue for ($($name,)*) {
            fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
                let mut children = children(value)?;
                if children.len() != $size {
                    return Err(size_mismatch($size, children.len()));
                }
                Ok(($({
                    let value = children.next().ok_or_else(|| size_mismatch($size, $index))?;
                    child::<$name>($index, value)?
                },)*))
            }

            $($list)?
        }
    };
}

tuple!(1: A 0);
tuple!(2: A 0 B 1;
    /// A list of pairs may come as a map, as pairs, or flat.
    fn list_from_value(value: Value<'_>) -> Result<Vec<Self>, ConvertError> {
        let entries = Entries::of(value)?;
        let mut list = Vec::with_capacity(entries.len());
        for (index, entry) in entries.enumerate() {
            list.push(map::pair(index, entry?)?);
        }
        Ok(list)
    }
);
tuple!(3: A 0 B 1 C 2);
tuple!(4: A 0 B 1 C 2 D 3);
tuple!(5: A 0 B 1 C 2 D 3 E 4);
tuple!(6: A 0 B 1 C 2 D 3 E 4 F 5);
tuple!(7: A 0 B 1 C 2 D 3 E 4 F 5 G 6);
tuple!(8: A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7);
tuple!(9: A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8);
tuple!(10: A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9);
tuple!(11: A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10);
tuple!(12: A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11);
