//! `cargo xtask stress`: repeats tests side by side on a busy machine, to find those that fail at
//! times.

use crate::setup;
use crate::shell::{self, Outcome, cargo};
use std::hint::black_box;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const HELP: &str = "\
cargo xtask stress [-p CRATE] [--times N] [--jobs J] FILTER

Runs the tests of FILTER N times (20 unless told), J runs at a time (4), while every core is kept
busy. Nothing is retried: one failure is a failure, and its output is shown.
";

/// What to repeat, and how.
#[derive(Debug, PartialEq)]
struct Plan {
    package: Option<String>,
    times: usize,
    jobs: usize,
    filters: Vec<String>,
}

/// Builds once, then repeats.
pub(crate) fn run(args: &[String]) -> Outcome {
    let plan = Plan::of(args)?;
    setup::run()?;
    let arguments = plan.arguments();
    shell::run(cargo(&["nextest", "run", "--no-run"]).args(&arguments))?;
    plan.repeat(&arguments)
}

impl Plan {
    fn of(args: &[String]) -> Outcome<Self> {
        let mut plan = Self { package: None, times: 20, jobs: 4, filters: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"));
            match arg.as_str() {
                "-p" | "--package" => plan.package = Some(value()?.clone()),
                "--times" => plan.times = number(arg, value()?)?,
                "--jobs" => plan.jobs = number(arg, value()?)?,
                other if other.starts_with('-') => {
                    return Err(format!("unknown option {other}\n\n{HELP}").into());
                }
                filter => plan.filters.push(filter.to_owned()),
            }
        }
        match plan.filters.is_empty() {
            true => Err(format!("name the tests to repeat\n\n{HELP}").into()),
            false => Ok(plan),
        }
    }

    fn arguments(&self) -> Vec<String> {
        let package = self.package.iter().flat_map(|name| ["--package".to_owned(), name.clone()]);
        package.chain(["--locked".to_owned()]).chain(self.filters.iter().cloned()).collect()
    }

    fn repeat(&self, arguments: &[String]) -> Outcome {
        let rest = AtomicUsize::new(self.times);
        let failed = Mutex::new(Vec::new());
        let is_over = AtomicBool::new(false);
        let take = || rest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
                scope.spawn(|| keep_busy(&is_over));
            }
            let runs: Vec<_> = (0..self.jobs)
                .map(|_| {
                    scope.spawn(|| {
                        while take() {
                            if let Err(output) = once(arguments) {
                                failed.lock().expect("nothing panics under this lock").push(output);
                            }
                        }
                    })
                })
                .collect();
            let ended: Vec<_> = runs.into_iter().map(thread::ScopedJoinHandle::join).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok), "a run panicked");
        });
        let failed = failed.into_inner().expect("nothing panics under this lock");
        let Some(first) = failed.first() else {
            eprintln!("\n{} runs passed", self.times);
            return Ok(());
        };
        Err(format!("{first}\n{} of {} runs failed; the first is shown", failed.len(), self.times).into())
    }
}

/// One run; its output if it fails.
fn once(arguments: &[String]) -> Result<(), String> {
    let mut command = cargo(&["nextest", "run", "--retries", "0", "--no-fail-fast", "--cargo-quiet"]);
    match command.args(arguments).output() {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(Output { stdout, stderr, .. }) => {
            Err([stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
        }
        Err(error) => Err(format!("cannot run cargo nextest: {error}")),
    }
}

/// Takes the time of a core from those that need it.
fn keep_busy(is_over: &AtomicBool) {
    let mut number = 1_u64;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..10_000 {
            number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

fn number(option: &str, text: &str) -> Outcome<usize> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{option} {text} is no number above 0\n\n{HELP}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Outcome<Plan> {
        Plan::of(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn coro_63_a_stress_run_is_told_what_to_repeat() {
        let told = plan("-p firth-redis --times 3 cut reconnect").unwrap();
        assert_eq!((told.times, told.jobs), (3, 4));
        assert_eq!(told.arguments(), ["--package", "firth-redis", "--locked", "cut", "reconnect"]);
        for wrong in ["", "--times 3", "--times x cut", "--times 0 cut", "--color cut", "cut --jobs"] {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }
}
