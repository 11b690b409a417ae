//! `firth backup`: a verified file of everything, taken while everything goes on.

use super::output::{json, line, note, plain};
use super::target::ApiTarget;
use super::{calendar, progress, units};
use crate::client::{Client, Download};
use crate::wire::{invalid, unix_ms};
use clap::Args;
use firth::backup::BackupReader;
use firth::{Error, ErrorKind, Result};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth backup firth.backup
  firth backup /var/backups/firth/ --keep 7
  firth backup - | zstd > firth.backup.zst
  firth backup firth.backup --engine file:./firth-data";

#[derive(Args)]
pub(crate) struct BackupArgs {
    /// The file to write; in a directory, a file named by the time; - is the standard output
    #[arg(value_name = "FILE|DIR")]
    to: PathBuf,
    /// In a directory, keep this many backups and remove older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
}

/// What was written.
struct Written {
    bytes: u64,
    records: u64,
    partitions: u64,
    taken: SystemTime,
}

pub(crate) async fn of(target: &ApiTarget, args: BackupArgs) -> Result<()> {
    target.with_existing(async |client| run(client, args, target.json).await).await
}

async fn run(client: &Client, args: BackupArgs, as_json: bool) -> Result<()> {
    let began = Instant::now();
    if args.to.as_os_str() == "-" {
        if args.keep.is_some() {
            return Err(invalid("--keep is for a directory"));
        }
        return to_stdout(client).await;
    }
    let dir = args.to.is_dir().then(|| args.to.clone());
    if dir.is_none() && (args.keep.is_some() || args.to.as_os_str().as_encoded_bytes().ends_with(b"/")) {
        let why = format!("{} is no directory: make it first with mkdir", args.to.display());
        return Err(invalid(why));
    }
    let file = match &dir {
        Some(dir) => dir.join(name(SystemTime::now())),
        None => args.to.clone(),
    };
    let written = to_file(client, &file).await?;
    let removed = match (&dir, args.keep) {
        (Some(dir), Some(keep)) => prune(dir, usize::try_from(keep).unwrap_or(usize::MAX))?,
        _ => Vec::new(),
    };
    report(&file, &written, &removed, began.elapsed(), as_json)
}

fn report(file: &Path, written: &Written, removed: &[PathBuf], took: Duration, as_json: bool) -> Result<()> {
    let Written { bytes, records, partitions, taken } = written;
    if as_json {
        return json(&json!({
            "file": file, "bytes": bytes, "records": records, "partitions": partitions,
            "taken_ms": unix_ms(*taken), "took_ms": units::millis(took), "removed": removed,
        }));
    }
    line(&format!(
        "{}: {} records of {} partitions, {} bytes, as of {}",
        plain(&file.display().to_string()),
        units::count(*records),
        units::count(*partitions),
        units::count(*bytes),
        calendar::show(unix_ms(*taken))
    ))?;
    removed.iter().try_for_each(|old| line(&format!("removed {}", plain(&old.display().to_string()))))
}

/// The name of a backup in a directory: its order is that of time.
fn name(now: SystemTime) -> String {
    format!("firth-{}.backup", calendar::show(unix_ms(now)).replace(':', "-"))
}

/// Removes all backups in a directory but the newest ones.
fn prune(dir: &Path, keep: usize) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(|error| unwritable(dir, error))?;
    let mut found: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_named).collect();
    found.sort();
    found.truncate(found.len().saturating_sub(keep));
    for old in &found {
        std::fs::remove_file(old).map_err(|error| unwritable(old, error))?;
    }
    Ok(found)
}

/// Whether a file is called as [`name`] calls them: only such are ever removed.
#[expect(clippy::ptr_arg, reason = "a filter of paths")]
fn is_named(path: &PathBuf) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let time = name.strip_prefix("firth-").and_then(|rest| rest.strip_suffix(".backup"));
    time.is_some_and(|time| {
        let is_of_time = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'T' | b'Z');
        time.len() == "2026-11-17T06-30-00Z".len() && time.bytes().all(is_of_time)
    })
}

/// Writes beside the file, and gives it its name once it is whole and on the disk.
async fn to_file(client: &Client, file: &Path) -> Result<Written> {
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let download = client.download("/v1/backup").await?;
    let out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial);
    let mut out = out.map_err(|error| unwritable(&partial, error))?;
    let written = match copy(download, &mut out).await {
        Ok(written) => into_place(&out, &partial, file).map(|()| written),
        Err(error) => Err(error),
    };
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written
}

fn into_place(out: &File, partial: &Path, file: &Path) -> Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let moved = out
        .sync_all()
        .and_then(|()| std::fs::rename(partial, file))
        .and_then(|()| File::open(dir)?.sync_all());
    moved.map_err(|error| unwritable(file, error))
}

async fn to_stdout(client: &Client) -> Result<()> {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        return Err(invalid("a backup is no text for a terminal: name a file, or pipe it into a command"));
    }
    let download = client.download("/v1/backup").await?;
    let written = copy(download, &mut out).await?;
    note(&format!(
        "{} records of {} partitions",
        units::count(written.records),
        units::count(written.partitions)
    ));
    Ok(())
}

/// Copies the stream and verifies it on the way.
async fn copy(mut download: Download, out: &mut (impl Write + Send)) -> Result<Written> {
    let mut reader = BackupReader::new();
    let bar = progress::records();
    let copied = async {
        loop {
            let next = download.next().await;
            // A stream that failed says why in its last block, before the connection breaks off.
            let Some(piece) = next? else { break };
            reader.push(&piece);
            while reader.block()?.is_some() {}
            tokio::task::block_in_place(|| out.write_all(&piece)).map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the backup cannot be written").with_source(error)
            })?;
            let at = reader.progress();
            if let Some(plan) = at.plan.filter(|_| bar.length().is_none()) {
                progress::of_records(&bar, plan.records);
            }
            bar.set_position(at.records);
            bar.set_message(format!("{} MiB", at.bytes >> 20));
        }
        out.flush().map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the backup cannot be written").with_source(error)
        })?;
        reader.finish()
    };
    let totals = copied.await;
    bar.finish_and_clear();
    let totals = totals?;
    let at = reader.progress();
    Ok(Written {
        bytes: at.bytes,
        records: totals.records,
        partitions: at.plan.map_or(0, |plan| plan.partitions),
        taken: reader.taken().unwrap_or(SystemTime::UNIX_EPOCH),
    })
}

fn unwritable(path: &Path, error: std::io::Error) -> Error {
    let context = format!("{} cannot be written ({error})", path.display());
    Error::new(ErrorKind::Unavailable, context).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_backup_is_called_is_ever_removed() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> =
            (0..4).map(|n| name(SystemTime::UNIX_EPOCH + Duration::from_secs(n))).collect();
        let others = [
            "firth-notes.backup",
            "firth-2026.backup",
            "important",
            "firth-1970-01-01T00-00-00Z.backup.partial",
        ];
        for name in names.iter().map(String::as_str).chain(others) {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        assert_eq!(prune(dir.path(), 3).unwrap(), [dir.path().join(&names[0])]);
        assert_eq!(prune(dir.path(), 1).unwrap().len(), 2);
        assert!(prune(dir.path(), 1).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), others.len() + 1);
    }
}
