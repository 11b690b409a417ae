//! Backups of files: taken while the store is written to, made into a new data directory, checked.
//! The stream itself is described in `crate::backup`.

mod changes;
mod check;
mod dump;
mod inspect;
mod restore;
mod set_aside;

pub(super) use changes::ChangeLog;
pub use check::{CheckReport, DamagedPartition, check_dir, check_file};
pub(super) use dump::Dump;
pub use restore::{Restored, restore};
pub use set_aside::{SetAside, set_aside};

use super::keys;

/// About how large a block is.
const BLOCK: usize = 256 << 10;

/// Whether a key of the state belongs into a backup. Where records lie, and what was synced, holds
/// only for the files of one store.
fn is_kept(key: &[u8]) -> bool {
    !key.starts_with(keys::MOVED) && key != keys::SYNCED
}
