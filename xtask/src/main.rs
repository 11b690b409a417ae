//! `cargo xtask`: the project's own commands, in plain Rust, so that they work wherever cargo does.

mod bench;
mod chaos;
mod check;
mod ci;
mod coverage;
mod dist;
mod exceptions;
mod fuzz;
mod sanitize;
mod setup;
mod shell;
mod stress;
mod test;
mod tidy;

use crate::shell::Outcome;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  setup              install what the tests need (servers, Node, a browser)
  test [ARGS…]       setup, then all tests and doctests; ARGS go to the test runner instead
  check              build what tests do not: docs, feature sets, bench/ and fuzz/
  ci                 everything that must hold before a merge: format, lints, tests, `check`,
                     `fuzz`, `sanitize`, a short `stress`, dependency rules
  bench NAME [ARGS…] run a benchmark of bench/ as the product ships (`bench --help` lists them)
  chaos [ARGS…]      kill consumers, producers and servers at random for minutes and judge the history
                     (--minutes N, --engine URL, --seed S)
  fuzz [TARGET] [S]  run the fuzz targets, or one, for S seconds each (60)
  stress FILTER      repeat tests side by side on a busy machine, without retries
                     (-p CRATE, --times N, --jobs J)
  coverage [ARGS…]   run the tests with counters and show which share of the lines they run
  sanitize [KIND]    run unit tests under the address sanitizer, or `leak` or `thread` (-p CRATE)
  dist [--try]       make what a release ships: archive, Debian package, list of crates, checksums;
                     --try installs, uses and purges the package in a clean Debian root
  tidy               check the source tree's own rules (also part of `test`)
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next();
    let rest: Vec<String> = args.collect();
    match dispatch(command.as_deref(), &rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Option<&str>, rest: &[String]) -> Outcome {
    match command {
        Some("setup") => setup::run(),
        Some("test") => test::run(rest),
        Some("check") => check::run(),
        Some("ci") => ci::run(),
        Some("bench") => bench::run(rest),
        Some("chaos") => chaos::run(rest),
        Some("fuzz") => fuzz::run(rest),
        Some("stress") => stress::run(rest),
        Some("coverage") => coverage::run(rest),
        Some("dist") => dist::run(rest),
        Some("sanitize") => sanitize::run(rest),
        Some("tidy") => tidy::run(),
        None | Some("help" | "-h" | "--help") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => Err(format!("unknown command `{other}`\n\n{HELP}").into()),
    }
}
