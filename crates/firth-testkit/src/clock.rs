//! A clock that a test can set: the server runs under libfaketime and reads its offset from a file.
//!
//! Only the wall clock moves; the server's monotonic clock goes on as ever, as it does when
//! an operator sets the time of a machine.

use crate::needs::cannot_run;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Where the library lies, by architecture and distribution.
const PLACES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// The wall clock of one server; see
/// [`RedisServerBuilder::clock`](crate::RedisServerBuilder::clock).
#[derive(Debug)]
pub struct ServerClock {
    library: PathBuf,
    dir: TempDir,
}

impl ServerClock {
    /// A clock that is right; `None` where libfaketime is missing and [`cannot_run`] lets it pass.
    pub fn new() -> Option<Self> {
        let Some(library) = PLACES.iter().map(Path::new).find(|path| path.is_file()) else {
            cannot_run("faketime", "libfaketime is missing");
            return None;
        };
        let dir =
            tempfile::Builder::new().prefix("firth-").tempdir().expect("a temporary folder can be made");
        let clock = Self { library: library.to_owned(), dir };
        clock.jump(0);
        Some(clock)
    }

    /// Moves the clock so that it is this many seconds ahead of (or behind) the right time.
    pub fn jump(&self, seconds: i64) {
        Self::jump_by(&self.file(), seconds);
    }

    /// As [`jump`](Self::jump), for a process that knows the file of its own clock: it stands in
    /// `FAKETIME_TIMESTAMP_FILE`.
    pub fn jump_by(file: &Path, seconds: i64) {
        // Written aside and renamed: the process may read at any moment.
        let fresh = file.with_extension("new");
        fs::write(&fresh, format!("{seconds:+}\n")).expect("the temporary folder is writable");
        fs::rename(fresh, file).expect("the temporary folder is writable");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }

    /// What the environment of a process needs that goes by this clock.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let pairs = [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.file())),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }
}
