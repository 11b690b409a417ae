//! `/v1/routing`: gateways and subscriptions, what the router does with them, and why.

pub(super) mod gateways;
mod schemas;
pub(super) mod status;
pub(super) mod subscriptions;

pub(super) use schemas::{describe_parameter, refine};

use crate::problem::{Answer, Problem};
use crate::routing::told;

/// The router's answer; a refused name or field is told with where it stands.
fn named<T>(field: &str, answer: firth_router::Result<T>) -> Answer<T> {
    answer.map_err(|error| {
        let problem = Problem::from(told(error));
        if problem.field.is_none() && problem.status == 400 { problem.at(field) } else { problem }
    })
}
