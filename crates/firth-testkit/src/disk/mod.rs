//! Power cuts: a recording of what a program wrote and synced, and the disk that a cut leaves
//! behind.
//!
//! [`Recording::of`] runs a program under `strace`, which notes every write, sync, rename and so on
//! under one folder. [`Recording::cut`] replays the notes up to some moment on a modelled disk
//! ([`model`]) and lays out what a power cut at that moment can leave: pages that were not synced
//! are there or not, each by itself; names that were not synced with their folder are there or not.
//!
//! **Why not a file system in user space.** One recording serves any number of cuts, at any system
//! call, and each is repeatable by its seed. `strace` needs no device and no mount.
//!
//! **Why it can be believed.** After each run the model, with nothing lost, is compared with the
//! real folder, byte by byte.

mod model;
mod trace;

use model::Disk;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use trace::Op;

/// A sync that fails with EIO, as a broken disk makes it: its pages are lost, and look clean.
#[derive(Clone, Copy, Debug)]
pub enum FailedSync {
    /// The n-th `fdatasync` of each thread, counted from 1.
    Data(u32),
    /// The n-th `fsync` of each thread, counted from 1.
    All(u32),
}

impl FailedSync {
    fn inject(self) -> String {
        match self {
            Self::Data(nth) => format!("inject=fdatasync:error=EIO:when={nth}"),
            Self::All(nth) => format!("inject=fsync:error=EIO:when={nth}"),
        }
    }
}

/// What a program did to one folder.
pub struct Recording {
    before: Disk,
    calls: Vec<Op>,
    /// How the program ended.
    pub status: ExitStatus,
    /// What it wrote to its standard error.
    pub errors: String,
}

impl Recording {
    /// Runs `program` until it ends, and records what it does under the folder `root`.
    ///
    /// # Panics If there is no `strace`, or if the recording does not explain what lies in `root`
    /// afterwards.
    pub fn of(root: &Path, program: &str, args: &[&str], failing: Option<FailedSync>) -> Self {
        let root = root.canonicalize().expect("the folder exists");
        let before = Disk::of(&root);
        let notes = tempfile::NamedTempFile::new().expect("a file for the recording");
        let mut strace = Command::new(strace());
        strace.args(["-f", "-qq", "-xx", "-s", "16777216", "-o"]).arg(notes.path());
        strace.args(["-e", &format!("trace={}", trace::CALLS)]);
        if let Some(failing) = failing {
            strace.args(["-e", &failing.inject()]);
        }
        let run = strace.arg(program).args(args).output().expect("strace runs");
        let text = std::fs::read_to_string(notes.path()).expect("strace writes text");
        let errors = String::from_utf8_lossy(&run.stderr).into_owned();
        let recording = Self { before, calls: trace::parse(&text, &root), status: run.status, errors };
        recording.replay(recording.calls.len(), 0).assert_equals(&root);
        recording
    }

    /// How many moments there are to cut the power at.
    pub fn moments(&self) -> usize {
        self.calls.len()
    }

    /// What the program had said on its standard output up to this moment.
    pub fn said(&self, until: usize) -> String {
        let said = self.calls[..until].iter().filter_map(|call| match call {
            Op::Say(text) => Some(text.as_slice()),
            _ => None,
        });
        String::from_utf8(said.flatten().copied().collect()).expect("the program speaks UTF-8")
    }

    /// Cuts the power after `moment` system calls and lays out what is left on the disk in `to`, an
    /// empty folder. The seed decides which of the unsynced pages and names survive.
    pub fn cut(&self, moment: usize, seed: u64, to: &Path) {
        self.replay(moment, seed).cut(to);
    }

    fn replay(&self, calls: usize, seed: u64) -> Disk {
        let mut disk = self.before.clone().seeded(seed);
        self.calls[..calls].iter().for_each(|call| disk.apply(call));
        disk
    }
}

fn strace() -> PathBuf {
    crate::bins::on_path("strace")
        .unwrap_or_else(|| panic!("found no strace on PATH; run `cargo xtask setup` to install it"))
}
