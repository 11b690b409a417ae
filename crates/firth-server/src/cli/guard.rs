//! `firth guard`: a small process that kills the commands of a `firth` that was killed.
//!
//! `kill -9` leaves no time to end commands, and a command that lives on would run beside the one
//! of its successor. So `firth` tells a guard the process groups of its commands over a pipe. The
//! pipe ends with `firth`; then the guard kills what is left and ends too.

use super::output::note;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

pub(crate) const EXAMPLES: &str = "Example:\n  firth guard   # only firth itself starts it";

/// The guard of this process, once there is one.
static GUARD: Mutex<Option<Child>> = Mutex::new(None);

/// Starts the guard of this process.
pub(super) fn start() {
    let spawned = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        // A group of its own, so that Ctrl-C does not end the guard before the commands.
        command.arg("guard").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0).spawn()
    });
    match spawned {
        Ok(child) => *lock() = Some(child),
        Err(error) => note(&format!("commands will outlive a `kill -9` of this process: {error}")),
    }
}

/// The guard kills this group if this process dies.
pub(super) fn watch(group: Pid) {
    tell('+', group);
}

/// The group has ended.
pub(super) fn forget(group: Pid) {
    tell('-', group);
}

fn tell(sign: char, group: Pid) {
    if let Some(pipe) = lock().as_mut().and_then(|guard| guard.stdin.as_mut()) {
        // Without a guard the commands run all the same.
        let _ = writeln!(pipe, "{sign}{}", group.as_raw_nonzero());
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Child>> {
    GUARD.lock().expect("nothing panics under this lock")
}

/// The guard itself: reads groups until the pipe ends, then kills those that are left.
pub(crate) fn run(input: impl BufRead) {
    let mut groups = HashSet::new();
    for line in input.lines().map_while(Result::ok) {
        match (line.get(..1), line.get(1..).and_then(|id| id.parse().ok()).and_then(Pid::from_raw)) {
            (Some("+"), Some(group)) => drop(groups.insert(group)),
            (Some("-"), Some(group)) => drop(groups.remove(&group)),
            _ => {}
        }
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
}
