//! `cargo xtask sanitize`: unit tests under a sanitizer of LLVM.
//!
//! `RUSTC_BOOTSTRAP` lets a stable compiler build with it. `address` and `leak` work with the
//! standard library as it is. `thread` must see what std does inside, or it reports its channels
//! and locks as races: it builds std from its source.

use crate::shell::{self, Outcome, cargo};
use std::path::Path;

const HELP: &str = "\
cargo xtask sanitize [address | thread | leak] [-p CRATE]…

Runs the unit tests of firth-redis, or of the crates told, under the address sanitizer or the one
told. `thread` needs the component rust-src.
";

/// Crates that are checked unless others are told.
const PURE: [&str; 1] = ["firth-redis"];

/// Leaks that are meant.
const SUPPRESSIONS: &str = ".config/leaks.txt";

/// Sanitizers that can be chosen.
const KINDS: [&str; 3] = ["address", "thread", "leak"];

/// Runs the unit tests of some crates under one sanitizer.
pub(crate) fn run(args: &[String]) -> Outcome {
    let (kind, crates) = read(args)?;
    let host = host()?;
    let mut command = cargo(&["test", "--locked", "--lib", "--target", &host]);
    if kind == "thread" {
        needs_source()?;
        command.arg("-Zbuild-std");
    }
    for name in &crates {
        command.args(["--package", name]);
    }
    command
        .env("CARGO_TARGET_DIR", shell::target().join(format!("sanitize-{kind}")))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("-Zsanitizer={kind} -Cunsafe-allow-abi-mismatch=sanitizer"))
        .env("LSAN_OPTIONS", format!("suppressions={}", shell::root().join(SUPPRESSIONS).display()))
        .env("TSAN_OPTIONS", "halt_on_error=1");
    shell::run(&mut command)
}

fn read(args: &[String]) -> Outcome<(String, Vec<String>)> {
    let mut kind = "address".to_owned();
    let mut crates = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-p" | "--package" => {
                let name = args.next().ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"))?;
                crates.push(name.clone());
            }
            told if KINDS.contains(&told) => told.clone_into(&mut kind),
            other => return Err(format!("unknown option {other}\n\n{HELP}").into()),
        }
    }
    if crates.is_empty() {
        crates.extend(PURE.map(str::to_owned));
    }
    Ok((kind, crates))
}

/// Fails unless the source of the standard library is installed.
fn needs_source() -> Outcome {
    let root = shell::read(&mut shell::program("rustc", &["--print", "sysroot"]))?;
    match Path::new(root.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file() {
        true => Ok(()),
        false => Err("the thread sanitizer needs the source of the standard library: \
                      run `rustup component add rust-src`, then try again"
            .into()),
    }
}

/// The triple of this machine: a target that is named keeps the flags away from build scripts.
fn host() -> Outcome<String> {
    let told = shell::read(&mut shell::program("rustc", &["-vV"]))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV tells no host".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coro_63_a_sanitizer_and_crates_can_be_chosen() {
        let args = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(read(&[]).unwrap(), ("address".to_owned(), PURE.map(str::to_owned).to_vec()));
        assert_eq!(read(&args("thread -p a -p b")).unwrap(), ("thread".to_owned(), args("a b")));
        assert!(read(&args("memory")).is_err() && read(&args("-p")).is_err());
    }
}
