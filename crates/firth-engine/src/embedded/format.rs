//! The version of our on-disk layout, in the file `FORMAT` of the data directory.
//!
//! Written before anything else, so that a directory with data always has one. A newer version is
//! refused with a clear message; an older one is brought up to date by `upgrade.rs`, which then
//! moves the mark.

use super::directory::STORE;
use super::file::io_error;
use super::keys::FORMAT;
use crate::error::{Error, ErrorKind, Result};
use std::io::{ErrorKind as Io, Write};
use std::path::Path;

const NAME: &str = "FORMAT";

/// The oldest version that can be brought up to date.
const OLDEST: u32 = 1;

/// The version of the data in `dir`; a new directory gets the newest one.
pub(super) fn check(dir: &Path) -> Result<u32> {
    match std::fs::read_to_string(dir.join(NAME)) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(known @ OLDEST..=FORMAT) => Ok(known),
            Ok(other) => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "data directory {} has format {other}; this build reads formats {OLDEST} to {FORMAT}: use the build that wrote it",
                    dir.display()
                ),
            )),
            Err(_) => {
                Err(Error::corrupt(format!("{} does not hold a format number", dir.join(NAME).display())))
            }
        },
        Err(error) if error.kind() == Io::NotFound => begin(dir),
        Err(error) => Err(io_error(dir, "cannot read its format", error)),
    }
}

/// Marks a new directory. A directory with a store but without a mark is not ours to touch.
fn begin(dir: &Path) -> Result<u32> {
    if dir.join(STORE).exists() {
        return Err(Error::corrupt(format!(
            "data directory {} has a store but no {NAME} file: restore a backup with `firth restore`",
            dir.display()
        )));
    }
    set(dir, FORMAT)?;
    Ok(FORMAT)
}

/// Marks the directory with a version, in one step.
pub(super) fn set(dir: &Path, version: u32) -> Result<()> {
    write_mark(dir, version).map_err(|error| io_error(dir, "cannot write to it", error))
}

fn write_mark(dir: &Path, version: u32) -> std::io::Result<()> {
    let temporary = dir.join("FORMAT.new");
    let mut file = std::fs::File::create(&temporary)?;
    writeln!(file, "{version}")?;
    file.sync_all()?;
    std::fs::rename(&temporary, dir.join(NAME))?;
    std::fs::File::open(dir)?.sync_all()
}
