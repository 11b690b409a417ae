//! The document at `/openapi.json`: made of what the handlers say of themselves, completed with
//! what holds for all of them.
//!
//! Every status that an operation can answer stands there. What the layers answer (`401`, `403`,
//! `408`, `413`, `429`, …) is the same everywhere, so it is added here, by what the operation
//! takes; names of topics and groups get their pattern here too.

use super::schemas::{self, LATEST};
use crate::auth::{Need, need};
use crate::problem::{Answer, Problem};
use crate::wire::latest_ms;
use axum::body::Bytes;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;
use utoipa::openapi::OpenApi;

/// Letters, digits, `.`, `_` and `-`, and no two dots in a row.
pub(super) const NAME: &str = r"^\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$";
/// Printable ASCII with spaces inside only: HTTP cuts off those around a header's value.
const HEADER_TEXT: &str = "^[!-~]([ -~]*[!-~])?$";
const METHODS: [(&str, Method); 5] = [
    ("get", Method::GET),
    ("put", Method::PUT),
    ("post", Method::POST),
    ("patch", Method::PATCH),
    ("delete", Method::DELETE),
];

/// The whole document, as it is served.
pub(super) fn finish(described: &OpenApi) -> Bytes {
    let mut document = serde_json::to_value(described).expect("the document is JSON");
    document["openapi"] = json!("3.1.0");
    document["info"] = json!({
        "title": "firth",
        "description": "Durable partitioned topics with consumer groups, retries and dead letters.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT" },
    });
    document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    schemas::refine(&mut document["components"]["schemas"]);
    if let Some(paths) = document["paths"].as_object_mut() {
        paths.insert("/openapi.json".to_owned(), own_path());
        for (path, item) in paths {
            for (name, method) in METHODS {
                if let Some(operation) = item.get_mut(name) {
                    complete(operation, path, &method);
                }
            }
        }
    }
    document.to_string().into()
}

/// Which operations take no query: they refuse one, because their handlers never see it.
#[derive(Clone)]
pub(super) struct Queries(Arc<HashSet<(String, Method)>>);

impl Queries {
    pub(super) fn of(described: &OpenApi) -> Self {
        let mut without = HashSet::new();
        let document = serde_json::to_value(described).expect("the document is JSON");
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for (name, method) in METHODS {
                let Some(operation) = item.get(name) else { continue };
                let parameters = operation["parameters"].as_array();
                let is_query = |parameter: &Value| parameter["in"] == "query";
                if !parameters.is_some_and(|parameters| parameters.iter().any(is_query)) {
                    without.insert((path.clone(), method));
                }
            }
        }
        Self(Arc::new(without))
    }

    /// Fails if a query comes where none is taken.
    pub(super) fn check(&self, method: &Method, route: &str, uri: &Uri) -> Answer<()> {
        let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(()) };
        let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
        if !self.0.contains(&(route.to_owned(), method)) {
            return Ok(());
        }
        let name = query.split(['=', '&']).next().unwrap_or_default();
        Err(Problem::field(name, format!("unknown query parameter `{name}`: this call takes none")))
    }
}

/// As it stands now: the latest time of a delay goes on with the clock.
pub(super) async fn serve(document: Bytes) -> impl IntoResponse {
    let latest = latest_ms(SystemTime::now()).to_string();
    let document = String::from_utf8_lossy(&document).replace(&LATEST.to_string(), &latest);
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], document)
}

fn own_path() -> Value {
    let ok = json!({ "description": "OpenAPI 3.1", "content": { "application/json": { "schema": { "type": "object" } } } });
    json!({ "get": {
        "tags": ["system"], "summary": "This document", "operationId": "openapi", "responses": { "200": ok },
    } })
}

fn complete(operation: &mut Value, path: &str, method: &Method) {
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    parameters.into_iter().flatten().for_each(describe_parameter);
    // Handlers have short names; with their section they are unique.
    let section = operation["tags"][0].as_str().unwrap_or_default().replace(' ', "_");
    let name = operation["operationId"].as_str().unwrap_or_default();
    operation["operationId"] = json!(format!("{section}.{name}"));
    let has_body = operation.get("requestBody").is_some();
    if has_body {
        // An empty body stands for `{}`, where that says enough.
        let needed = [
            "/records",
            "/{channel}",
            "/edit",
            "/trim",
            "/dead/replay",
            "/dead/delete",
            "/messages/cancel",
            "/messages/deliver",
            "/{subscription}",
            "/explain",
            "/offers",
            "/poll",
            "/renew",
            "/claim",
            "/seize",
            "{worker}/settle",
            "/data/{topic}/read",
            "/data/{topic}/settle",
            "/v1/hooks/{source}",
        ];
        operation["requestBody"]["required"] = json!(needed.iter().any(|end| path.ends_with(end)));
    }
    if path.ends_with("/records") && has_body {
        let one = operation["requestBody"]["content"]["application/json"]["schema"].take();
        let many = json!({ "type": "array", "items": one, "minItems": 1, "maxItems": 10_000 });
        operation["requestBody"]["content"]["application/json"]["schema"] = json!({ "oneOf": [one, many] });
        operation["requestBody"]["content"]["application/x-ndjson"]["schema"] = json!({ "type": "string", "pattern": "^\\{\"payload\":\"[a-z]{0,20}\"\\}(\\n\\{\"payload\":\"[a-z]{0,20}\"\\})*$" });
    }
    if path.ends_with("/offers") && has_body {
        let one = operation["requestBody"]["content"]["application/json"]["schema"].take();
        let many = json!({ "type": "array", "items": one, "minItems": 1, "maxItems": 10_000 });
        operation["requestBody"]["content"]["application/json"]["schema"] = json!({ "oneOf": [one, many] });
    }
    let need = need(method, path);
    let guarded = need != Need::Nothing;
    if guarded && need != Need::Signature {
        operation["security"] = json!([{}, { "token": [] }]);
    }
    // Every failure is a problem document.
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if status.as_str() >= "400" {
            *response = problem(response["description"].as_str().unwrap_or_default());
        }
    }
    for (status, why) in statuses(guarded, has_body, path.contains('{')) {
        if operation["responses"].get(status).is_none() {
            operation["responses"][status] = problem(why);
        }
    }
    for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
        if response["description"].as_str().is_none_or(str::is_empty) {
            response["description"] = json!(if status == "201" { "Created" } else { "Done" });
        }
    }
}

/// What the layers and the engine may answer to an operation.
fn statuses(guarded: bool, body: bool, named: bool) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        ("400", "The request is wrong: see field and limit"),
        ("431", "Too many or too large headers"),
        ("500", "A mistake of the server, or damaged data"),
        ("501", "The engine cannot do this, or a Transfer-Encoding that is not known"),
        ("504", "No answer in time; it may have happened all the same"),
    ];
    if named {
        all.push(("404", "It does not exist"));
    }
    if body {
        all.push(("408", "The body came too slowly"));
        all.push(("413", "The body is too large"));
        all.push(("415", "Another media type, or a compressed body"));
    }
    if guarded {
        all.push(("401", "No token, or an unknown one"));
        all.push(("403", "The token does not allow it"));
        all.push(("429", "Too many requests, streams or buffered bytes: wait as Retry-After says"));
        all.push(("502", "The engine refuses this server"));
        all.push(("503", "The engine is away, or the server closes: try again"));
    }
    all
}

fn problem(why: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    json!({ "description": why, "content": { "application/problem+json": { "schema": schema } } })
}

fn describe_parameter(parameter: &mut Value) {
    if super::routing::describe_parameter(parameter) {
        return;
    }
    match (parameter["name"].as_str(), parameter["in"].as_str()) {
        (Some("topic" | "group" | "channel" | "service" | "worker" | "offer"), Some("path")) => {
            parameter["schema"] =
                json!({ "type": "string", "pattern": NAME, "minLength": 1, "maxLength": 128 });
        }
        (Some("source"), Some("path")) => {
            parameter["schema"] =
                json!({ "type": "string", "pattern": "^[a-z0-9_]+$", "minLength": 1, "maxLength": 57 });
        }
        (Some("Idempotency-Key"), _) => {
            parameter["schema"] =
                json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": HEADER_TEXT });
        }
        (Some("Accept"), _) => {
            parameter["schema"] =
                json!({ "type": "string", "enum": ["text/event-stream", "application/x-ndjson"] });
        }
        (Some("Firth-Client"), _) => {
            parameter["schema"] =
                json!({ "type": "string", "minLength": 1, "maxLength": 128, "pattern": HEADER_TEXT });
        }
        (Some("traceparent"), _) => parameter["schema"] = json!({ "type": "string" }),
        (_, Some("query")) => {
            // An absent parameter is left out; null cannot be written in a query.
            if let Some(kinds) = parameter["schema"]["type"].as_array_mut() {
                kinds.retain(|kind| kind != "null");
                if let [only] = kinds.as_slice() {
                    parameter["schema"]["type"] = only.clone();
                }
            }
        }
        _ => {}
    }
}
