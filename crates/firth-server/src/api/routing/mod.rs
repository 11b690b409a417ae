//! `/v1/routing`: gateways and subscriptions, what the router does with them, and why.

pub(super) mod clients;
pub(super) mod gateways;
mod schemas;
pub(super) mod status;
pub(super) mod subscriptions;

pub(super) use schemas::{describe_parameter, refine};

use crate::problem::{Answer, Problem};
use crate::routing::told;
use axum::http::StatusCode;
use firth::ErrorKind;

/// The router's answer; a refused name or field is told with where it stands.
fn named<T>(field: &str, answer: firth_router::Result<T>) -> Answer<T> {
    answer.map_err(|error| {
        if error.kind() == firth_router::ErrorKind::Forbidden {
            return Problem::http(StatusCode::FORBIDDEN, ErrorKind::Unauthorized, error.context());
        }
        let problem = Problem::from(told(error));
        if problem.field.is_none() && problem.status == 400 { problem.at(field) } else { problem }
    })
}
