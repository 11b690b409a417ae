//! What a server says to a subscriber: messages, confirmations, and the answers around them. The
//! frame is taken apart as soon as it is whole, so that its list of nodes is gone before the next
//! one is made.

use super::quick::{Quick, quick};
use super::{Frame, ReplyLimits, ServerError, Value, ValueKind};
use bytes::{Bytes, BytesMut};

/// Which of the three kinds of subscription a name belongs to. Equal names of different kinds have
/// nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SubscriptionKind {
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
pub(crate) enum PubSubFrame {
    /// `name` is what was subscribed; `channel` differs from it for patterns.
    Message {
        kind: SubscriptionKind,
        name: Bytes,
        channel: Option<Bytes>,
        payload: Bytes,
    },
    Subscribed {
        kind: SubscriptionKind,
        name: Bytes,
    },
    Unsubscribed {
        kind: SubscriptionKind,
        name: Bytes,
    },
    /// The answer to a PING with a number.
    Barrier(u64),
    /// The refusal of a subscription.
    Error(ServerError),
    /// Nothing that concerns a subscriber: the answer to a plain PING, other pushes.
    Other,
}

impl PubSubFrame {
    /// Understands a frame.
    pub(crate) fn read(frame: &Frame) -> Self {
        match frame.kind() {
            ValueKind::Push => push(frame).unwrap_or(Self::Other),
            ValueKind::SimpleError | ValueKind::BlobError => {
                ServerError::from_value(frame.value()).map_or(Self::Other, Self::Error)
            }
            ValueKind::BlobString => {
                let id = frame.value().as_str().and_then(|s| s.parse().ok());
                id.map_or(Self::Other, Self::Barrier)
            }
            _ => Self::Other,
        }
    }
}

/// Takes a whole message off the front of `buf`, if it begins with one: the lane that almost
/// everything takes. Invariant: what it accepts is what [`PubSubFrame::read`] makes of the decoded
/// frame.
#[inline]
pub(super) fn quick_message(limits: &ReplyLimits, buf: &mut BytesMut) -> Option<(PubSubFrame, usize)> {
    const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n";
    const SHARDED: &[u8] = b">3\r\n$8\r\nsmessage\r\n";
    let (kind, start) = match () {
        () if buf.starts_with(MESSAGE) => (SubscriptionKind::Channel, MESSAGE.len()),
        () if buf.starts_with(SHARDED) => (SubscriptionKind::Sharded, SHARDED.len()),
        () => return None,
    };
    let Quick::Leaf(name, next) = quick(limits, buf, start) else { return None };
    let Quick::Leaf(payload, end) = quick(limits, buf, next) else { return None };
    if end > limits.frame || name.kind != ValueKind::BlobString || payload.kind != ValueKind::BlobString {
        return None;
    }
    let chunk = buf.split_to(end).freeze();
    let text =
        |node: super::frame::FrameNode| chunk.slice(node.a as usize..node.a as usize + node.b as usize);
    let name = text(name);
    let payload = text(payload);
    Some((PubSubFrame::Message { kind, name, channel: None, payload }, end))
}

fn push(frame: &Frame) -> Option<PubSubFrame> {
    let mut parts = frame.value().iter();
    let what = parts.next()?.as_bytes()?;
    let name = parts.next()?.bytes();
    Some(match what {
        b"message" => PubSubFrame::Message {
            kind: SubscriptionKind::Channel,
            name: name?,
            channel: None,
            payload: parts.next()?.bytes()?,
        },
        b"smessage" => PubSubFrame::Message {
            kind: SubscriptionKind::Sharded,
            name: name?,
            channel: None,
            payload: parts.next()?.bytes()?,
        },
        b"pmessage" => {
            let channel = parts.next().and_then(Value::bytes);
            PubSubFrame::Message {
                kind: SubscriptionKind::Pattern,
                name: name?,
                channel,
                payload: parts.next()?.bytes()?,
            }
        }
        b"subscribe" => PubSubFrame::Subscribed { kind: SubscriptionKind::Channel, name: name? },
        b"psubscribe" => PubSubFrame::Subscribed { kind: SubscriptionKind::Pattern, name: name? },
        b"ssubscribe" => PubSubFrame::Subscribed { kind: SubscriptionKind::Sharded, name: name? },
        b"unsubscribe" => PubSubFrame::Unsubscribed { kind: SubscriptionKind::Channel, name: name? },
        b"punsubscribe" => PubSubFrame::Unsubscribed { kind: SubscriptionKind::Pattern, name: name? },
        b"sunsubscribe" => PubSubFrame::Unsubscribed { kind: SubscriptionKind::Sharded, name: name? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Decoder, Tree};

    fn show(said: &PubSubFrame) -> String {
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
        let mut slow = Decoder::new(ReplyLimits::default());
        let mut buf = BytesMut::from(&all[..]);
        let mut expected = Vec::new();
        while let Some(frame) = slow.decode(&mut buf).unwrap() {
            expected.push((show(&PubSubFrame::read(&frame)), frame.wire_len()));
        }
        assert_eq!(expected.len(), frames.len());
        for piece in [1, 2, 7, 64, all.len()] {
            let mut decoder = Decoder::new(ReplyLimits::default());
            let mut buf = BytesMut::new();
            let mut got = Vec::new();
            for bytes in all.chunks(piece) {
                buf.extend_from_slice(bytes);
                while let Some((said, len)) = decoder.decode_pubsub(&mut buf).unwrap() {
                    got.push((show(&said), len));
                }
            }
            assert_eq!(got, expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn limits_hold_on_the_quick_lane_too() {
        let limits = ReplyLimits { bulk: 10, ..ReplyLimits::default() };
        let mut decoder = Decoder::new(limits);
        let mut buf = BytesMut::from(&wire(&["message", "c", "more than ten bytes"])[..]);
        assert!(decoder.decode_pubsub(&mut buf).is_err());
        assert!(decoder.decode_pubsub(&mut buf).is_err(), "an error is final");
    }
}
