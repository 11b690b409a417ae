//! Benches of firth beside its peers. `bench <BENCH> [options]` starts its own server, measures
//! every subject in a process of its own (`bench cell …`, see [`cell`]) and prints a table or JSON
//! lines.

mod alloc;
mod args;
mod cell;
mod claims;
mod client;
mod connect;
mod edge;
mod engine;
mod measure;
mod mux;
mod plot;
mod pubsub;
mod queue;
mod raw;
mod report;
mod router;
mod server;
mod serving;
mod suite;
mod table;
mod turns;
mod verdict;

use anyhow::{Result, bail};
use args::{Options, USAGE};
use cell::Cell;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    match args.next().as_deref() {
        Some(client::NAME) => client::suite().run(&Options::parse(args)?),
        Some(engine::NAME) => engine::suite().run(&Options::parse(args)?),
        Some(mux::NAME) => mux::suite().run(&Options::parse(args)?),
        Some(pubsub::NAME) => pubsub::suite().run(&Options::parse(args)?),
        Some(queue::NAME) => queue::suite().run(&Options::parse(args)?),
        Some("queue-victim") => queue::victim(args),
        Some(serving::NAME) => serving::run(&Options::parse(args)?),
        Some("bare-server") => serving::serve_bare(),
        Some(edge::NAME) => edge::suite().run(&Options::parse(args)?),
        Some("edge-server") => edge::serve(args),
        Some(connect::NAME) => connect::suite().run(&Options::parse(args)?),
        Some(router::NAME) => router::suite().run(&Options::parse(args)?),
        Some(claims::NAME) => claims::suite().run(&Options::parse(args)?),
        Some("publish") => pubsub::publish(args),
        Some("cell") => {
            let row = measure(&Cell::parse(&args.next().unwrap_or_default())?)?;
            println!("{}", serde_json::to_string(&row)?);
            Ok(())
        }
        Some("--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("no bench {other}\n\n{USAGE}"),
        None => bail!("which bench?\n\n{USAGE}"),
    }
}

/// The child's side of a cell.
fn measure(cell: &Cell) -> Result<measure::Row> {
    match cell.bench.as_str() {
        client::NAME => client::measure(cell),
        engine::NAME => engine::measure(cell),
        mux::NAME => mux::measure(cell),
        pubsub::NAME => pubsub::measure(cell),
        queue::NAME => queue::measure(cell),
        edge::NAME => edge::measure(cell),
        serving::NAME => serving::measure(cell),
        claims::NAME => claims::measure(cell),
        router::NAME => router::measure(cell),
        connect::NAME => connect::measure(cell),
        other => bail!("no bench {other}"),
    }
}
