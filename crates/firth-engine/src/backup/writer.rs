//! Writes the stream: heads, bodies, the chain of checksums.

use super::{BLOCK_HEAD, HEAD, MAGIC, Totals, VERSION};
use crate::codec::{put_number, put_run};
use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What stands at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamHead {
    /// The layout of the store.
    pub(crate) layout: u32,
    /// The engine's time, in µs, and the wall clock's, in ms, at the same moment.
    pub(crate) engine_us: u64,
    pub(crate) wall_ms: u64,
}

/// Writes blocks one after the other.
pub(crate) struct BlockWriter {
    chain: u64,
    totals: Totals,
}

impl BlockWriter {
    /// A writer, and the head of its stream.
    pub(crate) fn begin(head: StreamHead) -> (Self, Bytes) {
        let mut out = Vec::with_capacity(HEAD);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&head.layout.to_be_bytes());
        out.extend_from_slice(&head.engine_us.to_be_bytes());
        out.extend_from_slice(&head.wall_ms.to_be_bytes());
        let chain = xxh3_64(&out);
        out.extend_from_slice(&chain.to_be_bytes());
        (Self { chain, totals: Totals::default() }, out.into())
    }

    pub(crate) fn entries(&mut self, count: u64, body: &[u8]) -> Bytes {
        self.totals.entries += count;
        self.block(b'S', body)
    }

    pub(crate) fn changes(&mut self, count: u64, body: &[u8]) -> Bytes {
        self.totals.changes += count;
        self.block(b'C', body)
    }

    pub(crate) fn plan(&mut self, partitions: u64, records: u64, bytes: u64) -> Bytes {
        let mut body = Vec::new();
        [partitions, records, bytes].into_iter().for_each(|number| put_number(&mut body, number));
        self.block(b'P', &body)
    }

    pub(crate) fn records(&mut self, count: u64, body: &[u8]) -> Bytes {
        self.totals.records += count;
        self.block(b'L', body)
    }

    pub(crate) fn end(&mut self) -> Bytes {
        let Totals { entries, changes, records, bytes } = self.totals;
        let mut body = Vec::new();
        [entries, changes, records, bytes].into_iter().for_each(|number| put_number(&mut body, number));
        self.block(b'E', &body)
    }

    pub(crate) fn failed(&mut self, why: &str) -> Bytes {
        self.block(b'F', why.as_bytes())
    }

    fn block(&mut self, kind: u8, body: &[u8]) -> Bytes {
        self.totals.bytes += body.len() as u64;
        let mut out = Vec::with_capacity(BLOCK_HEAD + body.len() + 8);
        out.push(kind);
        let length = u32::try_from(body.len()).expect("a body is a block or a single entry");
        out.extend_from_slice(&length.to_be_bytes());
        let head = xxh3_64_with_seed(&out, self.chain) as u32;
        out.extend_from_slice(&head.to_be_bytes());
        out.extend_from_slice(body);
        self.chain = xxh3_64_with_seed(&out, self.chain);
        out.extend_from_slice(&self.chain.to_be_bytes());
        out.into()
    }
}

/// An entry of the state, or a removal, as it stands in a body.
pub(crate) fn body_of(out: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>, is_change: bool) {
    if is_change {
        out.push(u8::from(value.is_some()));
    }
    put_run(out, key);
    if let Some(value) = value {
        put_run(out, value);
    }
}
