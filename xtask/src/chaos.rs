//! `cargo xtask chaos`: minutes of random deaths under load, judged by the history checker.

use crate::setup;
use crate::shell::{self, Outcome, cargo};

const HELP: &str = "\
cargo xtask chaos [--minutes N] [--seed S] [--engine URL | --routers]

Kills consumers, producers and servers at random for N minutes (3 unless told) and judges what came of it: on Redis alone, under sentinels,
over HTTP on files, on Valkey and in a cluster in turn, or on the engine at URL, whose servers are left alone. The seed, which is printed, names the blows.

--routers: kills router nodes and gateways instead, and their server, on Redis and Valkey in turn; in the end every gateway must have every event once and in order,
and the books of every node must balance.
";

/// Runs the long form of the driver's chaos tests.
pub(crate) fn run(args: &[String]) -> Outcome {
    let is_routers = |arg: &String| arg == "--routers";
    let (package, test) = match args.iter().any(is_routers) {
        true => ("firth-router", "storm::minutes_of_deaths_of_nodes_and_gateways_lose_nothing"),
        false => ("firth-driver", "chaos::minutes_of_random_deaths_break_no_promise"),
    };
    let mut command = cargo(&["test", "--locked", "--package", package, "--test", "it"]);
    command.args(["--", "--ignored", "--exact", test, "--nocapture"]);
    let mut args = args.iter().filter(|arg| !is_routers(arg));
    while let Some(arg) = args.next() {
        let variable = match arg.as_str() {
            "--minutes" => "FIRTH_CHAOS_MINUTES",
            "--engine" if package == "firth-router" => {
                return Err(
                    format!("--routers starts servers of its own: leave --engine out\n\n{HELP}").into()
                );
            }
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
