//! Laws of the codec, by subject; conversions have theirs beside them.

mod hostile;
mod kinds;
mod properties;
mod views;

use super::*;
use bytes::BytesMut;

/// Feeds the pieces one by one and gives the frames and the error that came out.
fn decode_all<'a>(
    limits: &ReplyLimits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Frame>, Option<ProtocolError>) {
    let mut decoder = Decoder::new(limits.clone());
    let mut buf = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buf) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// The one frame that `wire` is.
pub(super) fn whole(wire: &[u8]) -> Frame {
    let (mut frames, error) = decode_all(&ReplyLimits::default(), [wire]);
    assert_eq!((frames.len(), error), (1, None), "{:?}", String::from_utf8_lossy(wire));
    let frame = frames.remove(0);
    assert_eq!(frame.wire_len(), wire.len());
    frame
}

fn tree(wire: &[u8]) -> Tree {
    whole(wire).value().into()
}

/// The error that `wire` ends in, given whole and byte by byte.
fn error(limits: &ReplyLimits, wire: &[u8]) -> ProtocolError {
    let (frames, error) = decode_all(limits, [wire]);
    assert!(frames.is_empty());
    assert_eq!(decode_all(limits, wire.chunks(1)).1, error, "{:?}", String::from_utf8_lossy(wire));
    error.unwrap_or_else(|| panic!("accepted {:?}", String::from_utf8_lossy(wire)))
}

fn text(text: &str) -> Tree {
    Tree::BlobString(text.into())
}
