//! Headers of a record, kept in their packed form: cloning and storing them costs nothing per
//! header.
//!
//! Order is kept and a name may repeat. Names are text, values are bytes.

use crate::codec::{Reader, put_run};
use crate::error::{Error, Result};
use crate::limits::{MAX_HEADER_BYTES, MAX_HEADERS};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// An ordered list of (name, value), bounded by [`MAX_HEADERS`] and [`MAX_HEADER_BYTES`].
///
/// One word wide, and nothing behind it for the many records without headers: records are moved
/// often.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Option<Arc<Packed>>);

#[derive(PartialEq, Eq)]
struct Packed {
    raw: Bytes,
    count: usize,
}

static NOTHING: Bytes = Bytes::new();

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Packs `list`, or says which limit it breaks.
    pub fn from_pairs<N: AsRef<str>, V: AsRef<[u8]>>(list: impl IntoIterator<Item = (N, V)>) -> Result<Self> {
        let mut raw = Vec::new();
        let mut count = 0;
        for (name, value) in list {
            let name = name.as_ref();
            let value = value.as_ref();
            if name.is_empty() {
                return Err(Error::invalid("a header has an empty name").with_field("headers"));
            }
            put_run(&mut raw, name.as_bytes());
            put_run(&mut raw, value);
            count += 1;
        }
        let headers = Self::of(raw.into(), count);
        headers.check()?;
        Ok(headers)
    }

    /// The first value under `name`.
    pub fn get(&self, name: &str) -> Option<Bytes> {
        let mut reader = Reader(self.raw().clone());
        while !reader.is_empty() {
            let key = reader.run()?;
            let value = reader.run()?;
            if key == name.as_bytes() {
                return Some(value);
            }
        }
        None
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (String, Bytes)> + '_ {
        let mut reader = Reader(self.raw().clone());
        std::iter::from_fn(move || (!reader.is_empty()).then(|| Some((reader.text()?, reader.run()?)))?)
    }

    /// These headers with one more, in place of those of its name; or says which limit that
    /// breaks.
    pub fn with(&self, name: &str, value: &[u8]) -> Result<Self> {
        let others = self.iter().filter(|(of, _)| of != name);
        Self::from_pairs(others.chain([(name.to_owned(), Bytes::copy_from_slice(value))]))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |packed| packed.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn raw(&self) -> &Bytes {
        self.0.as_ref().map_or(&NOTHING, |packed| &packed.raw)
    }

    fn of(raw: Bytes, count: usize) -> Self {
        Self((count > 0).then(|| Arc::new(Packed { raw, count })))
    }

    /// Takes packed headers back from storage, checking that they really are headers.
    pub(crate) fn from_raw(raw: Bytes) -> Option<Self> {
        let mut reader = Reader(raw.clone());
        let mut count = 0;
        while !reader.is_empty() {
            std::str::from_utf8(&reader.run()?).ok().filter(|name| !name.is_empty())?;
            reader.run()?;
            count += 1;
        }
        Some(Self::of(raw, count))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let count = self.len();
        let size = self.raw().len();
        if count > MAX_HEADERS {
            let context = format!("{count} headers; at most {MAX_HEADERS} are allowed");
            return Err(Error::beyond("headers", MAX_HEADERS, context));
        }
        if size > MAX_HEADER_BYTES {
            let context = format!("headers take {size} bytes; at most {MAX_HEADER_BYTES} are allowed");
            return Err(Error::beyond("headers", MAX_HEADER_BYTES, context));
        }
        Ok(())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Headers({} in {} bytes)", self.len(), self.raw().len())
    }
}
