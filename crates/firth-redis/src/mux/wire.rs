//! The commands that a mux sends, as bytes. Pure. (What it gets back is read in `resp/pubsub`.)

use super::event::SubscriptionKind;
use crate::command::{Command, cmd};
use bytes::Bytes;

/// Names in one command at most, so that neither side has to swallow a giant.
const NAMES_PER_COMMAND: usize = 512;

fn verb(kind: SubscriptionKind, on: bool) -> &'static str {
    match (kind, on) {
        (SubscriptionKind::Channel, true) => "SUBSCRIBE",
        (SubscriptionKind::Channel, false) => "UNSUBSCRIBE",
        (SubscriptionKind::Pattern, true) => "PSUBSCRIBE",
        (SubscriptionKind::Pattern, false) => "PUNSUBSCRIBE",
        (SubscriptionKind::Sharded, true) => "SSUBSCRIBE",
        (SubscriptionKind::Sharded, false) => "SUNSUBSCRIBE",
    }
}

/// A command that subscribes (or unsubscribes) names; the caller keeps to [`chunks`].
pub(crate) fn change<'a>(
    kind: SubscriptionKind,
    on: bool,
    names: impl Iterator<Item = &'a Bytes>,
    out: &mut Vec<u8>,
) {
    names.fold(cmd(verb(kind, on)), Command::arg).encode(out);
}

/// The number of a connection's own PINGs; operations have others.
pub(crate) const IDLE: u64 = 0;

/// A PING whose answer tells that everything before it was dealt with.
pub(crate) fn barrier(id: u64, out: &mut Vec<u8>) {
    cmd("PING").arg(id).encode(out);
}

/// Cuts a list into pieces for one command each.
pub(crate) fn chunks<T>(names: &[T]) -> impl Iterator<Item = &[T]> {
    names.chunks(NAMES_PER_COMMAND)
}
