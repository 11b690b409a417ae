//! The data directory belongs to one process: an advisory lock that the system releases when the process dies, with
//! the process id beside it for the error message.

use crate::error::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// Held as long as the directory is in use.
#[derive(Debug)]
pub(super) struct DirLock(#[expect(dead_code, reason = "held for its lock")] File);

const NAME: &str = "firth.lock";

impl DirLock {
    pub(super) fn acquire(dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| super::file::io_error(dir, "cannot write to it", error))?;
        for wait_ms in [0, 50, 200, 500] {
            // own thread: a file lock of another process has no wake-up
            std::thread::sleep(Duration::from_millis(wait_ms));
            match file.try_lock() {
                Ok(()) => {
                    let _ = note_pid(&mut file);
                    return Ok(Self(file));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(super::file::io_error(dir, "cannot lock it", error));
                }
                // A former handle of this same process may still be closing.
                Err(TryLockError::WouldBlock) if holder(&mut file) == Some(std::process::id()) => {}
                Err(TryLockError::WouldBlock) => break,
            }
        }
        Err(in_use(dir, holder(&mut file)))
    }
}

fn note_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn in_use(dir: &Path, holder: Option<u32>) -> Error {
    let who = match holder {
        Some(pid) if pid == std::process::id() => "this process already".to_owned(),
        Some(pid) => match process_name(pid) {
            Some(name) => format!("process {pid} ({name})"),
            None => format!("process {pid}"),
        },
        None => "another process".to_owned(),
    };
    Error::new(
        ErrorKind::Unavailable,
        format!("data directory {} is in use by {who}: stop it, or talk to it instead", dir.display()),
    )
}

fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned())
}
