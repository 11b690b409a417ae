//! Programs of others that a test talks to: a Python script that prints JSON lines, and ends with
//! its [`Peer`].

use crate::bins::tool;
use crate::server::process::{spawn_from_lasting_thread, tied_to_us};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The Python that has the peers' libraries.
///
/// # Panics
/// If `cargo xtask setup` has not installed them.
pub fn python() -> PathBuf {
    tool("FIRTH_GATEWAYS_PYTHON", "gateways/bin/python", None)
}

/// A running script. It must end when its input does; it is killed if it lives on.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts a script of the peers' Python.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(script: &Path, args: &[String]) -> Self {
        let mut command = tied_to_us(&python());
        command.arg(script).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        // No files of the interpreter beside the scripts.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let mut child = spawn_from_lasting_thread(command).expect("Python can be started");
        let output = BufReader::new(child.stdout.take().expect("its output is ours"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { input: child.stdin.take(), child, lines, reader: Some(reader) }
    }

    /// Everything that it has printed so far.
    ///
    /// # Panics
    /// If it has ended although the test did not ask it to.
    pub fn lines(&mut self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ended = self.child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none(), "the peer ended with {ended:?} after {lines:?}; its words are above");
        lines
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
