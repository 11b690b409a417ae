//! One child process that never outlives us.
//!
//! Dropping a [`Process`] kills and reaps it, also during a panic. When this process itself is
//! killed, the kernel ends the child: it is started through `setpriv --pdeathsig` where that exists
//! (no unsafe code needed), from a thread that lives as long as the process does, because the
//! kernel watches the thread that forked.

use crate::bins::on_path;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// A running or ended, but not yet forgotten, child.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts `binary`, its output appended to `log`.
    pub(crate) fn spawn(
        binary: &Path,
        args: &[OsString],
        environment: &[(String, String)],
        log: &Path,
    ) -> Self {
        let output =
            OpenOptions::new().create(true).append(true).open(log).expect("the log file can be opened");
        let errors = output.try_clone().expect("a file handle can be cloned");
        let mut command = tied_to_us(binary);
        command
            .args(args)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        match spawn_from_lasting_thread(command) {
            Ok(child) => Self { child },
            Err(error) => panic!("cannot start {}: {error}", binary.display()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Sends a signal; a process that has already ended is left alone.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("process ids are positive i32"));
        // ESRCH cannot hit a stranger: the pid stays ours until the child is reaped
        let _ = signal::kill(pid, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for this program that ends when this process does, where the system can do that.
pub(crate) fn tied_to_us(binary: &Path) -> Command {
    match on_path("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
            command
        }
        None => Command::new(binary),
    }
}

/// Starts a command whose child may be tied to us.
pub(crate) fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("testkit-spawner".into())
            .spawn(move || {
                for (mut command, reply) in inbox {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        jobs
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).expect("the spawner thread never ends");
    answer.recv().expect("the spawner thread answers every job")
}
