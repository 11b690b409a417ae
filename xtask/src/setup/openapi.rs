//! The validator of OpenAPI documents.

use super::environment::Environment;

/// The tests run its `.tools/openapi/bin/openapi-spec-validator`.
pub(super) const OPENAPI: Environment = Environment {
    what: "openapi-spec-validator",
    folder: "openapi",
    pinned: include_str!("openapi.txt"),
    proof: "openapi-spec-validator",
    variable: "FIRTH_OPENAPI_VALIDATOR",
    instead: "the program `openapi-spec-validator`",
};
