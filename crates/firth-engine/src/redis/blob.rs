//! Blobs: several packed records in one run of bytes, which is one entry of the stream.
//!
//! One entry per record would cost the server 1.7 times the CPU on append and more than twice on
//! read. A blob is the number of records in one byte, their lengths in four bytes each
//! (big-endian), then the records; the scripts can take one out or cut a blob in two
//! (`lua/lib/blob.lua`). Blobs stay within a page of memory, so that a single record is cheap to
//! reach.

use crate::record::Content;
use bytes::{Buf, Bytes};

/// The most records of a blob.
const RECORDS: usize = 64;
/// A blob with more than one record is at most this big: with its overhead it fills a stream node
/// of 4 KiB.
const BYTES: usize = 4000;

/// Packs contents into blobs, in order.
pub(super) fn pack<'a>(contents: impl IntoIterator<Item = &'a Content>) -> Vec<Vec<u8>> {
    let mut blobs = Vec::new();
    let mut lengths = Vec::with_capacity(RECORDS);
    let mut data = Vec::with_capacity(BYTES);
    for content in contents {
        let start = data.len();
        content.pack(&mut data);
        let length = data.len() - start;
        let is_full = lengths.len() == RECORDS || data.len() > BYTES;
        if is_full && start > 0 {
            blobs.push(seal(&lengths, &data[..start]));
            lengths.clear();
            data.drain(..start);
        }
        lengths.push(length);
    }
    if !lengths.is_empty() {
        blobs.push(seal(&lengths, &data));
    }
    blobs
}

fn seal(lengths: &[usize], data: &[u8]) -> Vec<u8> {
    let mut blob = Vec::with_capacity(1 + 4 * lengths.len() + data.len());
    blob.push(u8::try_from(lengths.len()).expect("a blob has at most 64 records"));
    for length in lengths {
        blob.extend_from_slice(&u32::try_from(*length).expect("a record is at most 16 MiB").to_be_bytes());
    }
    blob.extend_from_slice(data);
    blob
}

/// How many records a blob says that it holds.
pub(super) fn count(blob: &[u8]) -> usize {
    blob.first().copied().map_or(0, usize::from)
}

/// The packed records of a blob, sharing its memory; `None` if it is damaged.
pub(super) fn unpack(mut blob: Bytes) -> Option<Vec<Bytes>> {
    let count = usize::from(blob.try_get_u8().ok()?);
    let mut lengths = blob.try_split(4 * count)?;
    let mut records = Vec::with_capacity(count);
    while let Ok(length) = lengths.try_get_u32() {
        records.push(blob.try_split(length as usize)?);
    }
    (blob.is_empty() && count > 0).then_some(records)
}

trait TrySplit {
    fn try_split(&mut self, len: usize) -> Option<Bytes>;
}

impl TrySplit for Bytes {
    fn try_split(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.len()).then(|| self.split_to(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blobs_hold_all_records_in_order(sizes in prop::collection::vec(0usize..3000, 1..200)) {
            let contents: Vec<Content> = sizes.iter().map(|size| Content::new(vec![b'x'; *size])).collect();
            let blobs = pack(&contents);
            let mut found = Vec::new();
            for blob in blobs {
                prop_assert!(blob.len() <= BYTES + 4 * RECORDS + 1);
                let records = unpack(blob.into()).unwrap();
                prop_assert!(records.len() <= RECORDS);
                found.extend(records.into_iter().map(|record| Content::unpack(record).unwrap()));
            }
            prop_assert_eq!(found, contents);
        }

        #[test]
        fn any_bytes_unpack_or_fail_without_panic(bytes: Vec<u8>) {
            let _ = unpack(bytes.into());
        }
    }

    #[test]
    fn a_big_record_has_a_blob_of_its_own() {
        let contents = [Content::new("a"), Content::new(vec![0; 100_000]), Content::new("b")];
        assert_eq!(pack(&contents).iter().map(|blob| blob[0]).collect::<Vec<_>>(), [1, 1, 1]);
    }
}
