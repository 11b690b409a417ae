//! `cargo xtask coverage`: which lines of the product the tests run.
//!
//! rustc writes what LLVM's own tools read, so they must be of the compiler's LLVM: those of the
//! component `llvm-tools`, or of Debian's package of the same version.

use crate::setup::apt;
use crate::shell::{self, Outcome, cargo, program};
use std::fs;
use std::path::{Path, PathBuf};

/// The least share of functions and of lines that tests run, in percent.
const FUNCTIONS: f64 = 60.0;
const LINES: f64 = 75.0;

/// Files that are no product: tests, tools, dependencies.
const NOT_PRODUCT: &str = "(/tests/|/tests\\.rs$|/registry/|/rustc/|/xtask/|/firth-testkit/|/firth-laws/)";

/// Runs the tests with counters, prints the share of each file, and fails below the limits. `args`
/// go to the test runner (`-p firth-redis`).
pub(crate) fn run(args: &[String]) -> Outcome {
    let tools = tools()?;
    let target = shell::target().join("coverage");
    let counters = target.join("counters");
    let _ = fs::remove_dir_all(&counters); // those of an earlier run
    fs::create_dir_all(&counters)?;
    let with = |words: &[&str]| {
        let mut command = cargo(words);
        command.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-Cinstrument-coverage");
        // One file for every program and slot, into which its processes add up.
        command.env("LLVM_PROFILE_FILE", counters.join("%8m.profraw"));
        command
    };
    shell::run(with(&["nextest", "run", "--locked"]).args(args))?;
    let built = with(&["nextest", "run", "--locked", "--no-run", "--cargo-message-format", "json"]);
    let programs = programs(&mut { built }, args)?;
    let all = counters.join("all.profdata");
    let mut merge = program(tools.join("llvm-profdata"), &["merge", "-sparse", "-o"]);
    shell::run(merge.arg(&all).args(files(&counters, "profraw")?))?;
    let mut report = program(tools.join("llvm-cov"), &["report", "--ignore-filename-regex", NOT_PRODUCT]);
    report.arg(format!("--instr-profile={}", all.display()));
    for program in programs {
        report.arg(format!("--object={program}"));
    }
    let report = shell::read(&mut report)?;
    println!("{report}");
    judge(&report)
}

/// The tools of the compiler's LLVM, installed where that can be.
fn tools() -> Outcome<PathBuf> {
    let version = shell::read(&mut program("rustc", &["-vV"]))?;
    let read = |name: &str| version.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let host = read("host: ");
    let llvm = read("LLVM version: ").split('.').next().unwrap_or_default();
    let root = shell::read(&mut program("rustc", &["--print", "sysroot"]))?;
    let component = Path::new(root.trim()).join("lib/rustlib").join(host).join("bin");
    let package = PathBuf::from(format!("/usr/lib/llvm-{llvm}/bin"));
    let found = || [&component, &package].into_iter().find(|place| place.join("llvm-cov").is_file()).cloned();
    if let Some(tools) = found() {
        return Ok(tools);
    }
    eprintln!("LLVM's tools are missing; `rustup component add llvm-tools` would install them, too");
    apt::install(&[&format!("llvm-{llvm}")])?;
    found().ok_or_else(|| format!("llvm-cov of LLVM {llvm} is in none of its places").into())
}

/// What the build made that can run: test programs, and the programs that tests start.
fn programs(command: &mut std::process::Command, args: &[String]) -> Outcome<Vec<String>> {
    let packages = args.windows(2).filter(|pair| matches!(pair[0].as_str(), "-p" | "--package"));
    let told = shell::read(command.args(packages.flatten()))?;
    Ok(executables(&told))
}

/// The executables that cargo's messages name.
fn executables(messages: &str) -> Vec<String> {
    let named = messages.split("\"executable\":\"").skip(1);
    let mut all: Vec<_> = named.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect();
    all.sort();
    all.dedup();
    all
}

fn files(folder: &Path, ending: &str) -> Outcome<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let all: Vec<_> = paths.collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|path| path.extension().is_some_and(|found| found == ending)).collect())
}

/// Fails if the report's last line is below the limits.
fn judge(report: &str) -> Outcome {
    let [_, functions, lines, ..] = shares(report)[..] else {
        return Err("the report has no line TOTAL".into());
    };
    if functions < FUNCTIONS || lines < LINES {
        return Err(format!(
            "tests run {functions} % of the functions and {lines} % of the lines; {FUNCTIONS} % and {LINES} % are wanted"
        )
        .into());
    }
    Ok(())
}

/// The shares of regions, functions, lines and branches in all files, in percent.
fn shares(report: &str) -> Vec<f64> {
    let total = report.lines().find(|line| line.starts_with("TOTAL")).unwrap_or_default();
    total.split_whitespace().filter_map(|word| word.strip_suffix('%')?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coro_63_too_small_a_share_is_refused() {
        let report = |functions: &str, lines: &str| {
            format!(
                "a.rs 9 1 88.88% 1 0 100.00% 1 0 100.00% 0 0 -\nTOTAL 9 1 88.88% 4 1 {functions}% 9 1 {lines}% 0 0 -\n"
            )
        };
        assert!(judge(&report("60.00", "75.00")).is_ok());
        assert!(judge(&report("59.99", "99.00")).is_err());
        assert!(judge(&report("99.00", "74.99")).is_err());
        assert!(judge("").is_err());
    }

    #[test]
    fn coro_63_the_programs_of_a_build_are_found_once() {
        let messages = "{\"executable\":\"/t/b\",\"fresh\":true}\n{\"executable\":null}\n\
                        {\"executable\":\"/t/a\"}\n{\"executable\":\"/t/b\"}\n";
        assert_eq!(executables(messages), ["/t/a", "/t/b"]);
    }
}
