//! Compressed payloads: made by producers that ask for it, opened where a record reaches a reader.
//! Pure.
//!
//! LZ4, because it costs next to nothing to open (gigabytes per second) and its crate is already
//! part of the embedded storage. The record itself says that its payload is compressed
//! ([`Encoding`]), so consumers need no setting and topics may hold both kinds. Nothing larger than
//! the engine's limit is ever opened: a length that a damaged or hostile record claims is checked
//! first.

use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use firth_engine::limits::MAX_PAYLOAD;
use firth_engine::{Content, Encoding};
use lz4_flex::block;

/// Compresses the payload, unless that saves less than an eighth of it.
pub(crate) fn compress(content: &mut Content) {
    let size = content.payload.len();
    if content.encoding != Encoding::Plain || size > MAX_PAYLOAD {
        return;
    }
    let packed = block::compress_prepend_size(&content.payload);
    if packed.len() < size - size / 8 {
        (content.payload, content.encoding) = (packed.into(), Encoding::Lz4);
    }
}

/// How many bytes a content takes once it is opened, all of it counted.
pub(crate) fn opened_len(content: &Content) -> usize {
    let stored = content.payload.len();
    let opened = match content.encoding {
        Encoding::Plain => stored,
        // What cannot be opened stays as it is.
        _ => match block::uncompressed_size(&content.payload) {
            Ok((size, _)) if size <= MAX_PAYLOAD => size,
            _ => stored,
        },
    };
    content.packed_len() - stored + opened
}

/// Puts the original in place of a compressed payload; the content stays as it is if that fails.
pub(crate) fn open(content: &mut Content) -> Result<()> {
    if content.encoding == Encoding::Plain {
        return Ok(());
    }
    let (size, packed) = block::uncompressed_size(&content.payload).map_err(damaged)?;
    if size > MAX_PAYLOAD {
        let context = format!("a compressed payload claims {size} bytes; at most {MAX_PAYLOAD} are possible");
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    let mut plain = vec![0; size];
    let found = block::decompress_into(packed, &mut plain).map_err(damaged)?;
    if found != size {
        let context = format!("a compressed payload has {found} bytes instead of {size}");
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    (content.payload, content.encoding) = (Bytes::from(plain), Encoding::Plain);
    Ok(())
}

fn damaged(error: block::DecompressError) -> Error {
    Error::new(ErrorKind::Corrupt, "a compressed payload is damaged").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_shrink_stays_plain() {
        let noise: Vec<u8> = (0..4096).map(|_| fastrand::u8(..)).collect();
        for payload in [noise, b"short".to_vec(), Vec::new()] {
            let mut content = Content::new(payload.clone());
            compress(&mut content);
            assert_eq!((content.encoding, &content.payload[..]), (Encoding::Plain, &payload[..]));
        }
    }

    #[test]
    fn a_bomb_is_refused_before_anything_is_allocated() {
        let claim = |size: u32| [&size.to_le_bytes()[..], &[0x1f, 0, 1, 0, 255, 255, 255]].concat();
        for size in [u32::MAX, 1 << 25] {
            let mut content = Content { encoding: Encoding::Lz4, ..Content::new(claim(size)) };
            let error = open(&mut content).unwrap_err();
            assert!(error.context().contains("at most"), "{error}");
            assert_eq!(content.encoding, Encoding::Lz4, "it stays as it was");
        }
    }

    proptest! {
        #[test]
        fn a_payload_is_the_same_after_the_journey(unit: Vec<u8>, times in 0usize..200) {
            let payload = Bytes::from(unit.repeat(times));
            let mut content = Content::new(payload.clone());
            compress(&mut content);
            prop_assert!(content.payload.len() <= payload.len());
            open(&mut content).unwrap();
            prop_assert_eq!(content, Content::new(payload));
        }

        #[test]
        fn any_bytes_open_or_fail_without_panic(bytes: Vec<u8>) {
            let _ = open(&mut Content { encoding: Encoding::Lz4, ..Content::new(bytes) });
        }
    }
}
