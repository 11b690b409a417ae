//! The HTTP API: routes, what wraps each of them (limits, guard, audit, metrics), and the document
//! that describes them.

mod adopt;
mod backup;
mod body;
mod browse;
mod channels;
mod check;
mod claims;
mod client;
mod consume;
mod dead;
mod dead_topics;
mod delayed;
mod engine;
mod feed;
mod groups;
mod health;
mod hooks;
mod in_flight;
mod layers;
mod meter;
mod openapi;
mod policy;
mod records;
mod reset;
mod routing;
mod schemas;
mod sources;
mod stats;
mod stream;
mod takeovers;
mod topics;
mod unit_data;
mod workers;

pub(crate) use groups::GROUPS_AT_ONCE;
pub(crate) use layers::{Peer, refuse, within_rate};
pub(crate) use meter::Meter;

use crate::app::App;
use crate::problem::Problem;
use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware;
use firth::ErrorKind;
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The longest wait of a fetch.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// All routes on this state.
pub(crate) fn router(app: App) -> Router {
    let (routes, document) = described().split_for_parts();
    let queries = openapi::Queries::of(&document);
    let document = openapi::finish(&document);
    let console = if app.has_console() { crate::console::routes() } else { Router::new() };
    routes
        .merge(console)
        .route("/openapi.json", axum::routing::get(move || openapi::serve(document.clone())))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(middleware::from_fn_with_state((app.clone(), queries), layers::wrap))
        .with_state(app)
}

/// The routes with their descriptions.
fn described() -> OpenApiRouter<App> {
    system()
        .routes(routes!(topics::list))
        .routes(routes!(topics::show, topics::create, topics::change, topics::delete))
        .routes(routes!(topics::trim))
        .routes(routes!(adopt::adopt))
        .routes(routes!(topics::delayed))
        .routes(routes!(delayed::messages))
        .routes(routes!(delayed::cancel))
        .routes(routes!(delayed::deliver))
        .routes(routes!(records::produce, browse::browse))
        .routes(routes!(groups::list))
        .routes(routes!(groups::show, groups::create, groups::delete))
        .routes(routes!(groups::reset))
        .routes(routes!(reset::preview))
        .routes(routes!(groups::members))
        .routes(routes!(policy::show_policy, policy::set_policy, policy::drop_policy))
        .routes(routes!(groups::pending))
        .routes(routes!(in_flight::in_flight))
        .routes(routes!(groups::release))
        .routes(routes!(consume::fetch))
        .routes(routes!(consume::settle))
        .routes(routes!(stream::consume))
        .routes(routes!(dead_topics::topics))
        .routes(routes!(dead::list))
        .routes(routes!(dead::count))
        .routes(routes!(dead::follow))
        .routes(routes!(dead::replay))
        .routes(routes!(dead::delete))
        .routes(routes!(dead::edit))
        .routes(routes!(channels::publish, channels::subscribe))
        .routes(routes!(claims::list))
        .routes(routes!(claims::status, claims::create))
        .routes(routes!(claims::offers, claims::offer))
        .routes(routes!(claims::withdraw))
        .routes(routes!(claims::release))
        .routes(routes!(claims::workers))
        .routes(routes!(takeovers::takeovers))
        .routes(routes!(workers::join, workers::leave))
        .routes(routes!(workers::poll))
        .routes(routes!(workers::stream))
        .routes(routes!(workers::renew))
        .routes(routes!(workers::claim))
        .routes(routes!(workers::seize))
        .routes(routes!(workers::settle))
        .routes(routes!(unit_data::read_data))
        .routes(routes!(unit_data::settle_data))
        .routes(routes!(unit_data::stream_data))
        .routes(routes!(backup::backup))
        .routes(routes!(check::check))
        .merge(sources::routes())
        .merge(hooks::routes())
        .routes(routes!(routing::status::status))
        .routes(routes!(routing::gateways::list))
        .routes(routes!(routing::gateways::show, routing::gateways::register, routing::gateways::unregister))
        .routes(routes!(routing::gateways::heartbeat))
        .routes(routes!(routing::clients::clients))
        .routes(routes!(routing::clients::report))
        .routes(routes!(routing::subscriptions::list))
        .routes(routes!(
            routing::subscriptions::show,
            routing::subscriptions::register,
            routing::subscriptions::unregister
        ))
        .routes(routes!(routing::subscriptions::heartbeat))
        .routes(routes!(routing::subscriptions::explain))
        .routes(routes!(routing::status::health))
}

/// Those about the server itself.
fn system() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(health::about))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(engine::engine))
        .routes(routes!(stats::stats))
        .routes(routes!(feed::events))
}

async fn no_route(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}; /openapi.json describes what there is", uri.path());
    Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not take {method}", uri.path());
    Problem::http(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::Invalid, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Need, need};

    #[test]
    fn the_document_describes_every_route_with_its_failures() {
        let document = openapi::finish(&described().into_openapi());
        let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() >= 22, "{}", paths.len());
        let mut names = std::collections::BTreeSet::new();
        for (path, item) in paths {
            for (method, operation) in item.as_object().unwrap() {
                let method: Method = method.to_uppercase().parse().unwrap();
                assert!(
                    names.insert(operation["operationId"].as_str().unwrap()),
                    "{method} {path} has no name of its own"
                );
                let responses = operation["responses"].as_object().unwrap();
                let is_guarded = need(&method, path) != Need::Nothing;
                assert_eq!(responses.contains_key("401"), is_guarded, "{method} {path}");
                assert_eq!(
                    responses.contains_key("413"),
                    operation.get("requestBody").is_some(),
                    "{method} {path}"
                );
                assert!(!responses.contains_key("default"), "{method} {path}");
            }
        }
    }
}
