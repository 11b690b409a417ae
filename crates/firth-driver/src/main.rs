//! The binary `firth-driver`: reads its arguments, runs one command, says on stderr what went
//! wrong. See the library for the rest.

use clap::Parser as _;
use firth_driver::{Args, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("firth-driver: {error:#}");
            ExitCode::FAILURE
        }
    }
}
