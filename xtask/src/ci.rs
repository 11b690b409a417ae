//! `cargo xtask ci`: what must hold before a merge.

use std::fs;
use std::time::Instant;

use crate::shell::{self, Outcome, cargo};
use crate::{test, tidy};

/// Runs every step and stops at the first that fails.
pub(crate) fn run() -> Outcome {
    let start = Instant::now();
    tidy::run()?;
    shell::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    for apart in ["bench/Cargo.toml", "fuzz/Cargo.toml"] {
        shell::run(&mut cargo(&["fmt", "--manifest-path", apart, "--check"]))?;
    }
    shell::run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))?;
    test::run(&[])?;
    docs()?;
    feature_sets()?;
    dependency_rules()?;
    eprintln!("\nall checks passed in {} s", start.elapsed().as_secs());
    Ok(())
}

fn docs() -> Outcome {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--all-features", "--locked"]);
    shell::run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Features only add, so a published crate must build with none, with its own choice, and with all.
fn feature_sets() -> Outcome {
    for name in published_crates()? {
        for features in [&["--no-default-features"][..], &[], &["--all-features"]] {
            let mut command = cargo(&["check", "--locked", "--package", &name]);
            shell::run(command.args(features))?;
        }
    }
    Ok(())
}

/// Crates under `crates/` that are not marked `publish = false`; the folder's name is the crate's.
fn published_crates() -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(shell::root().join("crates"))? {
        let entry = entry?;
        let manifest = entry.path().join("Cargo.toml");
        if manifest.is_file() && !fs::read_to_string(&manifest)?.contains("publish = false") {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn dependency_rules() -> Outcome {
    if !shell::succeeds(&mut cargo(&["deny", "--version"])) {
        eprintln!("cargo-deny is not installed: licences, sources, bans and advisories were NOT checked");
        return Ok(());
    }
    shell::run(&mut cargo(&["deny", "check", "bans", "licenses", "sources"]))?;
    if !shell::succeeds(&mut cargo(&["deny", "fetch", "db"])) {
        eprintln!("the advisory database is out of reach: advisories were NOT checked");
        return Ok(());
    }
    shell::run(&mut cargo(&["deny", "check", "advisories"]))
}
