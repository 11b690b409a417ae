//! Running other programs: echoed, checked, and with errors that say which one failed.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command's result; the error is a text for people.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace root").to_owned()
}

/// Where cargo builds this workspace.
pub(crate) fn target() -> PathBuf {
    let chosen = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(chosen)
}

/// `cargo` with these arguments, in the workspace root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Any program with these arguments, in the workspace root.
pub(crate) fn program(name: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(name.as_ref());
    command.args(args).current_dir(root());
    command
}

/// Echoes and runs a command; fails if it does.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let line = line_of(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})").into()) }
}

/// What a command prints; fails if it does. Nothing is echoed.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    let line = line_of(command);
    let output = command.output().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` failed ({})\n{errors}", output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a command runs and succeeds; nothing is shown.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// First executable of this name on `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A command as one would type it, without folders.
fn line_of(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
