//! `cargo xtask fuzz`: runs the fuzz targets for a while each.
//!
//! cargo-fuzz is installed into `.tools/`, private to this tree. `RUSTC_BOOTSTRAP` lets a stable
//! compiler build with the sanitizer.

use crate::shell::{self, Outcome, cargo, program};
use std::fs;
use std::path::PathBuf;

/// How long each target runs unless told otherwise.
const SECONDS: u64 = 60;

/// Runs one target or all of them: `[TARGET] [SECONDS]`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let seconds = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(SECONDS);
    let all = targets()?;
    let wanted = args.iter().find(|arg| arg.parse::<u64>().is_err());
    if let Some(unknown) = wanted.filter(|name| !all.contains(name)) {
        return Err(format!("no fuzz target {unknown}; there are {}", all.join(", ")).into());
    }
    let fuzzer = fuzzer()?;
    for target in all.iter().filter(|name| wanted.is_none_or(|wanted| wanted == *name)) {
        let mut command = program(&fuzzer, &["fuzz", "run", target, "--"]);
        command.args([&format!("-max_total_time={seconds}"), "-max_len=4096"]);
        shell::run(command.env("RUSTC_BOOTSTRAP", "1"))?;
    }
    Ok(())
}

fn targets() -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(shell::root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// cargo-fuzz, installed if it is missing.
fn fuzzer() -> Outcome<PathBuf> {
    let root = shell::root().join(".tools/cargo-fuzz");
    let file = root.join("bin/cargo-fuzz");
    if !file.is_file() {
        let mut command = cargo(&["install", "cargo-fuzz", "--locked", "--root"]);
        shell::run(command.arg(&root))?;
    }
    Ok(file)
}
