//! A command in a shell: it has a process group of its own, its input, and a tail of its errors.
//!
//! **Why a group of its own.** Ctrl-C at a terminal reaches the group of `firth` only, so a command
//! that runs is not interrupted. A signal to the group reaches the command and all that it started.
//! When `firth` drops a running command it kills the group; when `firth` itself is killed,
//! [`guard`](super::guard) does.

use super::guard;
use rustix::process::{Pid, Signal, kill_process_group};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

/// How much of the command's errors is kept. A stored reason holds at most 1024 bytes.
const TAIL: usize = 800;
/// How long the end of the errors is waited for: a child left behind may hold the pipe open.
const GRACE: Duration = Duration::from_millis(200);

/// A shell that will run this text.
pub(super) fn command(text: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(text).stdin(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true).process_group(0);
    command
}

/// A command that runs. Dropping it kills the command and all that it started.
pub(super) struct RunningCommand {
    child: Child,
    group: Option<Pid>,
    tail: Arc<Mutex<Vec<u8>>>,
    errors: Option<JoinHandle<()>>,
}

impl RunningCommand {
    /// Starts a command made by [`command`] and writes its input beside it.
    pub(super) fn start(mut command: Command, input: Vec<u8>) -> std::io::Result<Self> {
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            guard::watch(group);
        }
        if let Some(mut pipe) = child.stdin.take() {
            // A command that does not read its input ends it early: its exit code tells what it
            // thinks.
            tokio::spawn(async move { drop(pipe.write_all(&input).await) });
        }
        let tail = Arc::default();
        let errors = child.stderr.take().map(|pipe| tokio::spawn(forward(pipe, Arc::clone(&tail))));
        Ok(Self { child, group, tail, errors })
    }

    /// Waits for the end of the command.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        if let Some(errors) = self.errors.take() {
            let _ = tokio::time::timeout(GRACE, errors).await;
        }
        Ok(status)
    }

    /// To the command and all that it started.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended by now.
            let _ = kill_process_group(group, signal);
        }
    }

    /// How the command ended, with the last lines of its errors.
    pub(super) fn reason(&self, ended: &str) -> String {
        let tail = self.tail.lock().expect("nothing panics under this lock");
        let text = String::from_utf8_lossy(&tail);
        match text.trim() {
            "" => ended.to_owned(),
            said => format!("{ended}: {said}"),
        }
    }

    /// The command has ended: what it left behind lives on.
    pub(super) fn let_go(mut self) {
        self.release();
    }

    fn release(&mut self) -> Option<Pid> {
        let group = self.group.take();
        group.inspect(|group| guard::forget(*group))
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.release();
    }
}

/// Passes errors on as they come and keeps the end of them.
async fn forward(mut pipe: ChildStderr, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let _ = tokio::io::stderr().write_all(&buffer[..read]).await;
        keep(&mut tail.lock().expect("nothing panics under this lock"), &buffer[..read]);
    }
}

/// Appends to the tail. One that grew too long begins at a line, or where it must.
fn keep(tail: &mut Vec<u8>, more: &[u8]) {
    tail.extend_from_slice(more);
    let Some(excess) = tail.len().checked_sub(TAIL).filter(|excess| *excess > 0) else { return };
    let line = tail[excess..].iter().position(|byte| *byte == b'\n').map(|at| excess + at + 1);
    let start = line.filter(|start| *start < tail.len()).unwrap_or(excess);
    tail.drain(..start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_begins_at_a_line() {
        let mut tail = Vec::new();
        for number in 0..1000 {
            keep(&mut tail, format!("line {number}\n").as_bytes());
            assert!(tail.len() <= TAIL);
        }
        assert!(tail.starts_with(b"line ") && tail.ends_with(b"line 999\n"));
        keep(&mut tail, &[b'x'; 5000]);
        assert_eq!(tail, [b'x'; TAIL]);
    }
}
