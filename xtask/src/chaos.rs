//! `cargo xtask chaos`: minutes of random deaths under load, judged by the history checker.

use crate::setup;
use crate::shell::{self, Outcome, cargo};

const HELP: &str = "\
cargo xtask chaos [--minutes N] [--engine URL] [--seed S]

Kills consumers, producers and servers at random for N minutes (3 unless told) and judges what came of it: on Redis alone, under sentinels,
over HTTP on files, on Valkey and in a cluster in turn, or on the engine at URL, whose servers are left alone. The seed, which is printed, names the blows.
";

/// Runs the long form of the driver's chaos tests.
pub(crate) fn run(args: &[String]) -> Outcome {
    let mut command = cargo(&["test", "--locked", "--package", "firth-driver", "--test", "it"]);
    command.args([
        "--",
        "--ignored",
        "--exact",
        "chaos::minutes_of_random_deaths_break_no_promise",
        "--nocapture",
    ]);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let variable = match arg.as_str() {
            "--minutes" => "FIRTH_CHAOS_MINUTES",
            "--engine" => "FIRTH_CHAOS_ENGINE",
            "--seed" => "FIRTH_CHAOS_SEED",
            _ => return Err(format!("unknown option {arg}\n\n{HELP}").into()),
        };
        let value = args.next().ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"))?;
        if variable != "FIRTH_CHAOS_ENGINE" && value.parse::<u64>().is_err() {
            return Err(format!("{arg} {value} is no number\n\n{HELP}").into());
        }
        command.env(variable, value);
    }
    setup::run()?;
    shell::run(&mut command)
}
