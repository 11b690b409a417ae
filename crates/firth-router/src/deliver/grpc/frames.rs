//! Messages between bytes: one byte that says whether it is compressed (never here), four of
//! length, the message.

use crate::deliver::connect::MAX_ANSWER;
use crate::error::{Error, ErrorKind, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

const HEAD: usize = 5;

pub(crate) fn frame(message: &impl Message) -> Bytes {
    frame_of(message.encoded_len(), |out| message.encode_raw(out))
}

/// A frame around a message of this length.
pub(super) fn frame_of(length: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    write(&mut frame);
    debug_assert_eq!(frame.len(), HEAD + length);
    frame.freeze()
}

/// Takes the next whole message out of what has arrived.
pub(super) fn next<M: Message + Default>(arrived: &mut BytesMut) -> Result<Option<M>> {
    let Some(head) = arrived.first_chunk::<HEAD>() else { return Ok(None) };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != 0 {
        return Err(broken("the answer is compressed, which nobody asked for"));
    }
    if length > MAX_ANSWER {
        return Err(broken(format!("the answer has {length} bytes; at most {MAX_ANSWER} are read")));
    }
    if arrived.len() < HEAD + length {
        return Ok(None);
    }
    arrived.advance(HEAD);
    let message = M::decode(arrived.split_to(length));
    message
        .map(Some)
        .map_err(|error| broken("the answer is not the message of our .proto").with_source(error))
}

/// The one message of a whole answer.
pub(crate) fn only<M: Message + Default>(body: Bytes) -> Result<M> {
    let mut arrived = BytesMut::from(body);
    match next(&mut arrived)? {
        Some(message) if arrived.is_empty() => Ok(message),
        _ => Err(broken("the answer is not one whole gRPC message")),
    }
}

pub(super) fn broken(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, context)
}

#[cfg(test)]
mod tests {
    use super::super::messages::DeliveryAck;
    use super::*;

    #[test]
    fn an_answer_that_is_no_message_is_not_taken_for_one() {
        let ack = DeliveryAck { accepted: 1, ..DeliveryAck::default() };
        let good = frame(&ack);
        assert_eq!(only::<DeliveryAck>(good.clone()).unwrap(), ack);
        for bad in [
            &b""[..],
            b"\0\0\0",
            b"\x01\0\0\0\0",
            b"\0\0\0\0\x09",
            b"\0\0\0\0\x01\xff",
            b"\0\xff\xff\xff\xff",
        ] {
            assert!(only::<DeliveryAck>(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn messages_come_out_whole_however_they_arrive() {
        let one = DeliveryAck { accepted: 1, ..Default::default() };
        let two = DeliveryAck { accepted: 300, ..Default::default() };
        let bytes = [frame(&one), frame(&two)].concat();
        let mut arrived = BytesMut::new();
        let mut seen = Vec::new();
        for byte in bytes {
            arrived.put_u8(byte);
            seen.extend(next::<DeliveryAck>(&mut arrived).unwrap());
        }
        assert_eq!(seen, [one, two]);
    }
}
