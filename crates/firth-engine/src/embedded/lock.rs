//! The data directory belongs to one process: an advisory lock that the system releases when the
//! process dies, with a note of its holder beside it for the error message.
//!
//! The note is the process id, a token of the process, and the host. **Why a token:** in containers
//! the id says little, because the first process of each has the same one.

use crate::error::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::OnceLock;
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
                    let _ = Holder::me().note(&mut file);
                    return Ok(Self(file));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(super::file::io_error(dir, "cannot lock it", error));
                }
                // A former handle of this same process may still be closing.
                Err(TryLockError::WouldBlock) if Holder::read(&mut file).is_some_and(|it| it.is_me()) => {}
                Err(TryLockError::WouldBlock) => break,
            }
        }
        Err(in_use(dir, Holder::read(&mut file).as_ref()))
    }
}

/// Who has the directory.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// Of the process; 0 if an older build wrote the note.
    token: u64,
    host: String,
}

impl Holder {
    fn me() -> Self {
        static TOKEN: OnceLock<u64> = OnceLock::new();
        let token = *TOKEN.get_or_init(|| fastrand::u64(1..));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { pid: std::process::id(), token, host: host.trim().to_owned() }
    }

    fn is_me(&self) -> bool {
        *self == Self::me()
    }

    fn note(&self, file: &mut File) -> std::io::Result<()> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(format!("{} {:016x} {}\n", self.pid, self.token, self.host).as_bytes())
    }

    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).ok()?;
        file.read_to_string(&mut text).ok()?;
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let token = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0);
        Some(Self { pid, token, host: words.next().unwrap_or_default().to_owned() })
    }

    /// What people know it by.
    fn describe(&self) -> String {
        let Self { pid, token, host } = self;
        let me = Self::me();
        if self.is_me() {
            return "this process already".to_owned();
        }
        if *pid == me.pid || (*token != 0 && *host != me.host) {
            return format!("process {pid} of another container or host {host}").trim_end().to_owned();
        }
        match process_name(*pid) {
            Some(name) => format!("process {pid} ({name})"),
            None => format!("process {pid}"),
        }
    }
}

fn in_use(dir: &Path, holder: Option<&Holder>) -> Error {
    let who = holder.map_or_else(|| "another process".to_owned(), Holder::describe);
    Error::new(
        ErrorKind::Unavailable,
        format!("data directory {} is in use by {who}: stop it, or talk to it instead", dir.display()),
    )
}

fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q20_the_first_process_of_another_container_is_not_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let held = DirLock::acquire(dir.path()).unwrap();
        let refusal = || DirLock::acquire(dir.path()).unwrap_err();
        assert!(refusal().context().contains("this process already"), "{}", refusal());
        let note = |text: &str| std::fs::write(dir.path().join(NAME), text).unwrap();
        let me = Holder::me();
        note(&format!("{} {:016x} {}\n", me.pid, me.token ^ 1, "pod-7"));
        let told = refusal();
        assert!(told.context().contains(&format!("process {} of another container", me.pid)), "{told}");
        assert!(told.context().contains("pod-7"), "{told}");
        // An older build noted its id only.
        note(&format!("{}\n", me.pid));
        assert!(refusal().context().contains("of another container or host:"), "{}", refusal());
        note("1\n");
        assert!(refusal().context().contains("process 1 ("), "{}", refusal());
        note("");
        assert!(refusal().context().contains("another process"), "{}", refusal());
        drop(held);
        drop(DirLock::acquire(dir.path()).unwrap());
    }
}
