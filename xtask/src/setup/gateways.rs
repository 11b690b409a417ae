//! Peers of the router's wires that others have written: gRPC, HTTP/2 and NATS in Python.

use super::environment::Environment;

/// The tests run gateways with its `.tools/gateways/bin/python`.
pub(super) const GATEWAYS: Environment = Environment {
    what: "grpcio, hypercorn and nats-py",
    folder: "gateways",
    pinned: include_str!("gateways.txt"),
    proof: "hypercorn",
    variable: "FIRTH_GATEWAYS_PYTHON",
    instead: "a Python that has grpcio, grpcio-tools, hypercorn and nats-py",
};
