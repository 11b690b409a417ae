//! `cargo xtask test`: everything that can fail on this machine, in the order of its speed.

use crate::shell::{self, Outcome, cargo};
use crate::{exceptions, setup};

/// Installs the servers, then runs all tests and doctests. With arguments, only the test runner
/// runs and takes them (`cargo xtask test -p firth-redis`), since doctests know other filters.
pub(crate) fn run(args: &[String]) -> Outcome {
    setup::run()?;
    shell::run(runner()?.args(args))?;
    if !args.is_empty() {
        return Ok(());
    }
    // What is off by default because it is heavy.
    shell::run(runner()?.args(["--package", "firth-connect", "--features", "mongodb", "mongo"]))?;
    shell::run(&mut cargo(&["test", "--workspace", "--doc", "--locked"]))
}

/// nextest where it is installed (one process per test, timeouts), else cargo's own runner. Without
/// `--workspace` both run all members of a virtual workspace, and still listen to `--package`.
fn runner() -> Outcome<std::process::Command> {
    if !shell::succeeds(&mut cargo(&["nextest", "--version"])) {
        eprintln!("cargo-nextest is not installed: using `cargo test` (slower, and no timeouts)");
        return Ok(cargo(&["test", "--all-targets", "--locked"]));
    }
    let mut command = cargo(&["nextest", "run", "--locked", "--tool-config-file"]);
    command.arg(format!("firth:{}", exceptions::nextest_config()?.display()));
    Ok(command)
}
