//! `firth restore`: a new data directory of a backup.

use super::output::{json, line, plain};
use super::{calendar, progress, units};
use crate::wire::unix_ms;
use clap::Args;
use firth::backup::{Progress, Restored};
use firth::{Error, ErrorKind, Result};
use indicatif::ProgressBar;
use serde_json::json;
use std::fs::File;
use std::io::{Read, Stdin};
use std::path::{Path, PathBuf};

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth restore firth.backup ./firth-data
  zstd -dc firth.backup.zst | firth restore - ./firth-data";

#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The backup; - is the standard input
    #[arg(value_name = "FILE")]
    from: PathBuf,
    /// The data directory to make; it must be missing or empty
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// A file or the standard input.
pub(super) enum Input {
    File(File),
    Stdin(Stdin),
}

impl Input {
    /// Opens it; answers a bar for its bytes, too.
    pub(super) fn open(path: &Path) -> Result<(Self, ProgressBar)> {
        if path.as_os_str() == "-" {
            return Ok((Self::Stdin(std::io::stdin()), progress::bytes(None)));
        }
        let file = File::open(path).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, format!("{} cannot be read ({error})", path.display())).with_source(error)
        })?;
        let length = file.metadata().ok().map(|it| it.len());
        Ok((Self::File(file), progress::bytes(length)))
    }
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::File(file) => file.read(to),
            Self::Stdin(stdin) => stdin.read(to),
        }
    }
}

/// Shows how far a stream was read.
pub(super) fn show(bar: &ProgressBar, at: &Progress) {
    bar.set_position(at.bytes);
    bar.set_message(format!("{} records", units::count(at.records)));
}

pub(crate) async fn run(args: RestoreArgs) -> Result<()> {
    let RestoreArgs { from, to, json: as_json } = args;
    let (input, bar) = Input::open(&from)?;
    let dir = to.clone();
    let restored = tokio::task::block_in_place(|| {
        let restored = firth::backup::restore(input, &dir, &mut |at| show(&bar, at));
        bar.finish_and_clear();
        restored
    })?;
    report(&to, restored, as_json)
}

fn report(to: &Path, restored: Restored, as_json: bool) -> Result<()> {
    let Restored { taken, partitions, records, entries, .. } = restored;
    if as_json {
        return json(&json!({
            "dir": to, "records": records, "partitions": partitions, "entries": entries,
            "taken_ms": unix_ms(taken),
        }));
    }
    let dir = plain(&to.display().to_string());
    line(&format!(
        "{dir}: {} records of {} partitions, as of {}",
        units::count(records),
        units::count(partitions),
        calendar::show(unix_ms(taken))
    ))?;
    line(&format!("serve it with `firth serve --engine file:{dir}`"))
}
