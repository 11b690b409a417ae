//! The data directory around the store: made, kept private, and never opened half-made.

use super::file::KEYSPACES;
use super::rescue;
use crate::error::{Error, ErrorKind, Result};
use std::fs::{DirEntry, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// The storage library's folder in the data directory.
pub(super) const STORE: &str = "store";
/// Where a restore builds the store before it moves it into place.
pub(super) const RESTORING: &str = "store.restoring";
/// What we put into the data directory.
const OURS: &[&str] = &["firth.lock", "FORMAT", "FORMAT.new", STORE, "store.new", RESTORING];
/// Who may do what with the directory: its owner everything, others nothing.
const PRIVATE: u32 = 0o700;

/// Makes a directory and those above it, and their names durable.
pub(super) fn make_dir(dir: &Path) -> std::io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_dir(above)?;
    std::fs::DirBuilder::new().mode(PRIVATE).create(dir)?;
    rescue::sync_dir(above)
}

/// Takes the rights of others to our folders away: records are not for everyone's eyes. A directory
/// that holds anything else is left as it is, and only the store in it is closed.
pub(super) fn keep_private(dir: &Path) {
    let is_ours = |entry: std::io::Result<DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(|name| OURS.contains(&name)))
    };
    let is_all_ours = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.all(is_ours));
    for dir in is_all_ours.then(|| dir.to_owned()).into_iter().chain([dir.join(STORE)]) {
        let Ok(found) = dir.metadata() else { continue };
        if found.permissions().mode() & 0o077 != 0
            && let Err(error) = std::fs::set_permissions(&dir, Permissions::from_mode(PRIVATE))
        {
            let dir = dir.display();
            tracing::warn!(%error, %dir, "others may read this folder, and its rights cannot be changed");
        }
    }
}

/// Makes the names in a folder and in all below it durable: the library does not sync all of
/// them.
pub(super) fn sync_dirs(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_dirs(&entry.path())?;
        }
    }
    rescue::sync_dir(dir)
}

/// Refuses a store of which a power failure left only a part: the library would open it as an empty
/// one.
pub(super) fn check_made(dir: &Path) -> Result<()> {
    let store = dir.join(STORE);
    let has = |path: &str| store.join(path).exists();
    let is_begun = rescue::is_empty(&store).map_or(true, |is_empty| is_empty);
    if !store.exists() || (has("version") && has("keyspaces/0/current")) || (!has("version") && is_begun) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "the store in {} is half-made, and has records: files are missing, restore a backup with `firth restore`",
        dir.display()
    )))
}

/// Whether a store was begun in its place and never had any content, as builds before this one
/// could leave it.
pub(super) fn is_half_made(store: &Path) -> std::io::Result<bool> {
    let Ok(mut keyspaces) = std::fs::read_dir(store.join(KEYSPACES)) else { return Ok(false) };
    Ok(keyspaces.next().is_none() && !store.join("version").try_exists()?)
}

/// Bytes that are still free on the disk of a directory.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    let stats = rustix::fs::statvfs(dir).ok()?;
    Some(stats.f_bavail.saturating_mul(stats.f_frsize))
}

/// Closes a folder to others.
pub(super) fn close_to_others(dir: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(dir, Permissions::from_mode(PRIVATE))
}

/// Refuses a directory whose restore was cut short: a store that begins empty would hide that.
pub(super) fn check_restored(dir: &Path) -> Result<()> {
    if dir.join(STORE).exists() || !dir.join(RESTORING).exists() {
        return Ok(());
    }
    let dir = dir.display();
    let context = format!(
        "a restore into {dir} was cut short, and nothing of it is there: run `firth restore FILE {dir}` again, \
         or remove {dir}/{RESTORING} to start with an empty store"
    );
    Err(Error::new(ErrorKind::Unavailable, context))
}
