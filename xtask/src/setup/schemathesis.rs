//! The API tester `schemathesis`.

use super::environment::Environment;

/// The tests run its `.tools/schemathesis/bin/st`.
pub(super) const SCHEMATHESIS: Environment = Environment {
    what: "schemathesis",
    folder: "schemathesis",
    pinned: include_str!("schemathesis.txt"),
    proof: "st",
    variable: "FIRTH_SCHEMATHESIS",
    instead: "the program `st` of schemathesis 4",
};
