//! `cargo xtask ci`: what must hold before a merge.

use crate::shell::{self, Outcome, cargo};
use crate::{check, fuzz, sanitize, stress, test, tidy};
use std::time::Instant;

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
    check::run()?;
    fuzz::run(&[])?;
    sanitize::run(&[])?;
    stress::run(&["-p", "firth-redis", "--times", "5", "mux::"].map(str::to_owned))?;
    dependency_rules()?;
    eprintln!("\nall checks passed in {} s", start.elapsed().as_secs());
    Ok(())
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
