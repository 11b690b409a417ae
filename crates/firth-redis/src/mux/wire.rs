//! The commands that a mux sends and the frames that it gets back, as bytes and as meaning. Pure.

use bytes::Bytes;

use super::event::Kind;
use crate::{
    command::{Command, cmd},
    config::Address,
    resp::{Frame, Kind as Type, ServerError, Value},
};

/// Names in one command at most, so that neither side has to swallow a giant.
const NAMES_PER_COMMAND: usize = 512;

/// What a node says to a mux.
#[derive(Debug)]
pub(crate) enum Said<'a> {
    /// `name` is what was subscribed; `channel` differs from it for patterns.
    Message {
        kind: Kind,
        name: &'a [u8],
        channel: Option<Value<'a>>,
        payload: Value<'a>,
    },
    Subscribed {
        kind: Kind,
        name: &'a [u8],
    },
    Unsubscribed {
        kind: Kind,
        name: &'a [u8],
    },
    /// The answer to a barrier.
    Barrier(u64),
    /// The refusal of a subscription.
    Error(ServerError),
    /// Nothing that concerns us: the answer to a sign-of-life PING, other pushes.
    Other,
}

fn verb(kind: Kind, on: bool) -> &'static str {
    match (kind, on) {
        (Kind::Channel, true) => "SUBSCRIBE",
        (Kind::Channel, false) => "UNSUBSCRIBE",
        (Kind::Pattern, true) => "PSUBSCRIBE",
        (Kind::Pattern, false) => "PUNSUBSCRIBE",
        (Kind::Sharded, true) => "SSUBSCRIBE",
        (Kind::Sharded, false) => "SUNSUBSCRIBE",
    }
}

/// A command that subscribes (or unsubscribes) names; the caller keeps to [`chunks`].
pub(crate) fn change<'a>(kind: Kind, on: bool, names: impl Iterator<Item = &'a Bytes>, out: &mut Vec<u8>) {
    names.fold(cmd(verb(kind, on)), Command::arg).encode(out);
}

/// A PING whose answer tells that everything before it was dealt with.
pub(crate) fn barrier(id: u64, out: &mut Vec<u8>) {
    cmd("PING").arg(id).encode(out);
}

/// Cuts a list into pieces for one command each.
pub(crate) fn chunks<T>(names: &[T]) -> impl Iterator<Item = &[T]> {
    names.chunks(NAMES_PER_COMMAND)
}

/// Understands a frame.
pub(crate) fn read(frame: &Frame) -> Said<'_> {
    match frame.kind() {
        Type::Push => push(frame).unwrap_or(Said::Other),
        Type::SimpleError | Type::BlobError => {
            ServerError::from_value(frame.value()).map_or(Said::Other, Said::Error)
        }
        Type::BlobString => {
            let id = frame.value().as_str().and_then(|s| s.parse().ok());
            id.map_or(Said::Other, Said::Barrier)
        }
        _ => Said::Other,
    }
}

fn push(frame: &Frame) -> Option<Said<'_>> {
    let mut parts = frame.value().iter();
    let what = parts.next()?.as_bytes()?;
    let name = parts.next()?.as_bytes();
    Some(match what {
        b"message" => {
            Said::Message { kind: Kind::Channel, name: name?, channel: None, payload: parts.next()? }
        }
        b"smessage" => {
            Said::Message { kind: Kind::Sharded, name: name?, channel: None, payload: parts.next()? }
        }
        b"pmessage" => {
            Said::Message { kind: Kind::Pattern, name: name?, channel: parts.next(), payload: parts.next()? }
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

/// The new owner in `MOVED slot host:port`.
pub(crate) fn moved_to(error: &ServerError) -> Option<(u16, Address)> {
    let (slot, address) = error.message.split_once(' ')?;
    let (host, port) = address.trim().rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((slot.parse().ok()?, Address::new(host, port.parse().ok()?)))
}
