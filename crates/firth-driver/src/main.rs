//! The binary `firth-driver`: reads its arguments, runs one command, says on stderr what went wrong. See the library for the rest.

use firth_driver::{Args, HELP, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.is_empty() || args.iter().any(|arg| matches!(arg.as_str(), "-h" | "--help" | "help")) {
        eprint!("{HELP}");
        return if args.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let args = match Args::parse(args) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("firth-driver: {error:#}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("firth-driver: {error:#}");
            ExitCode::FAILURE
        }
    }
}
