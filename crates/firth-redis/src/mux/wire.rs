//! The commands that a mux sends, as bytes. Pure. (What it gets back is read in `resp/pubsub`.)

use bytes::Bytes;

use super::event::Kind;
use crate::{
    command::{Command, cmd},
    config::Address,
    resp::ServerError,
};

/// Names in one command at most, so that neither side has to swallow a giant.
const NAMES_PER_COMMAND: usize = 512;

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

/// The new owner in `MOVED slot host:port`.
pub(crate) fn moved_to(error: &ServerError) -> Option<(u16, Address)> {
    let (slot, address) = error.message.split_once(' ')?;
    let (host, port) = address.trim().rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((slot.parse().ok()?, Address::new(host, port.parse().ok()?)))
}
