//! What a server says to a subscriber: messages, confirmations, and the answers around them. The frame is taken apart
//! as soon as it is whole, so that its list of nodes is gone before the next one is made.

use bytes::{Bytes, BytesMut};

use super::{
    Frame, Kind as Type, Limits, ServerError, Value,
    quick::{Quick, quick},
};

/// Which of the three kinds of subscription a name belongs to. Equal names of different kinds have nothing to do with
/// each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A channel by its exact name (SUBSCRIBE). Every node of a cluster delivers it, except for
    /// keyspace notifications: see [`mux`](crate::mux).
    Channel,
    /// All channels that match a pattern (PSUBSCRIBE). Every node of a cluster delivers them,
    /// except for keyspace notifications: see [`mux`](crate::mux).
    Pattern,
    /// A channel that lives in one slot (SSUBSCRIBE) and moves with it.
    Sharded,
}

/// A frame on a connection of subscriptions.
#[derive(Debug)]
pub(crate) enum Said {
    /// `name` is what was subscribed; `channel` differs from it for patterns.
    Message {
        kind: Kind,
        name: Bytes,
        channel: Option<Bytes>,
        payload: Bytes,
    },
    Subscribed {
        kind: Kind,
        name: Bytes,
    },
    Unsubscribed {
        kind: Kind,
        name: Bytes,
    },
    /// The answer to a PING with a number.
    Barrier(u64),
    /// The refusal of a subscription.
    Error(ServerError),
    /// Nothing that concerns a subscriber: the answer to a plain PING, other pushes.
    Other,
}

impl Said {
    /// Understands a frame.
    pub(crate) fn read(frame: &Frame) -> Self {
        match frame.kind() {
            Type::Push => push(frame).unwrap_or(Self::Other),
            Type::SimpleError | Type::BlobError => {
                ServerError::from_value(frame.value()).map_or(Self::Other, Self::Error)
            }
            Type::BlobString => {
                let id = frame.value().as_str().and_then(|s| s.parse().ok());
                id.map_or(Self::Other, Self::Barrier)
            }
            _ => Self::Other,
        }
    }
}

/// Takes a whole message off the front of `buf`, if it begins with one: the lane that almost everything takes.
/// Invariant: what it accepts is what [`Said::read`] makes of the decoded frame.
#[inline]
pub(super) fn quick_message(limits: &Limits, buf: &mut BytesMut) -> Option<(Said, usize)> {
    const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n";
    const SHARDED: &[u8] = b">3\r\n$8\r\nsmessage\r\n";
    let (kind, start) = match () {
        () if buf.starts_with(MESSAGE) => (Kind::Channel, MESSAGE.len()),
        () if buf.starts_with(SHARDED) => (Kind::Sharded, SHARDED.len()),
        () => return None,
    };
    let Quick::Leaf(name, next) = quick(limits, buf, start) else { return None };
    let Quick::Leaf(payload, end) = quick(limits, buf, next) else { return None };
    if end > limits.frame || name.kind != Type::BlobString || payload.kind != Type::BlobString {
        return None;
    }
    let chunk = buf.split_to(end).freeze();
    let text = |node: super::frame::Node| chunk.slice(node.a as usize..node.a as usize + node.b as usize);
    let (name, payload) = (text(name), text(payload));
    Some((Said::Message { kind, name, channel: None, payload }, end))
}

fn push(frame: &Frame) -> Option<Said> {
    let mut parts = frame.value().iter();
    let what = parts.next()?.as_bytes()?;
    let name = parts.next()?.bytes();
    Some(match what {
        b"message" => {
            Said::Message { kind: Kind::Channel, name: name?, channel: None, payload: parts.next()?.bytes()? }
        }
        b"smessage" => {
            Said::Message { kind: Kind::Sharded, name: name?, channel: None, payload: parts.next()?.bytes()? }
        }
        b"pmessage" => {
            let channel = parts.next().and_then(Value::bytes);
            Said::Message { kind: Kind::Pattern, name: name?, channel, payload: parts.next()?.bytes()? }
        }
        b"subscribe" => Said::Subscribed { kind: Kind::Channel, name: name? },
        b"psubscribe" => Said::Subscribed { kind: Kind::Pattern, name: name? },
        b"ssubscribe" => Said::Subscribed { kind: Kind::Sharded, name: name? },
        b"unsubscribe" => Said::Unsubscribed { kind: Kind::Channel, name: name? },
        b"punsubscribe" => Said::Unsubscribed { kind: Kind::Pattern, name: name? },
        b"sunsubscribe" => Said::Unsubscribed { kind: Kind::Sharded, name: name? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Decoder, Tree};

    fn show(said: &Said) -> String {
        format!("{said:?}")
    }

    fn wire(words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        let blobs = words.iter().map(|w| Tree::BlobString(w.as_bytes().to_vec())).collect();
        Tree::Push(blobs).encode(&mut out);
        out
    }

    #[test]
    fn the_quick_lane_and_the_decoder_say_the_same_whatever_the_split() {
        let frames: [&[&str]; 8] = [
            &["message", "c", "hello"],
            &["smessage", "a-longer-name", ""],
            &["pmessage", "p*", "pc", "x"],
            &["subscribe", "c", "1"],
            &["sunsubscribe", "c", "0"],
            &["message", "", "\r\n$3\r\n"],
            &["invalidate", "k"],
            &["message", "c", &"x".repeat(3000)],
        ];
        let all: Vec<u8> = frames.iter().flat_map(|f| wire(f)).collect();
        let mut slow = Decoder::new(Limits::default());
        let mut buf = BytesMut::from(&all[..]);
        let mut expected = Vec::new();
        while let Some(frame) = slow.decode(&mut buf).unwrap() {
            expected.push((show(&Said::read(&frame)), frame.wire_len()));
        }
        assert_eq!(expected.len(), frames.len());
        for piece in [1, 2, 7, 64, all.len()] {
            let mut decoder = Decoder::new(Limits::default());
            let (mut buf, mut got) = (BytesMut::new(), Vec::new());
            for bytes in all.chunks(piece) {
                buf.extend_from_slice(bytes);
                while let Some((said, len)) = decoder.said(&mut buf).unwrap() {
                    got.push((show(&said), len));
                }
            }
            assert_eq!(got, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn limits_hold_on_the_quick_lane_too() {
        let limits = Limits { bulk: 10, ..Limits::default() };
        let mut decoder = Decoder::new(limits);
        let mut buf = BytesMut::from(&wire(&["message", "c", "more than ten bytes"])[..]);
        assert!(decoder.said(&mut buf).is_err());
        assert!(decoder.said(&mut buf).is_err(), "an error is final");
    }
}
