//! The HTTP API: routes, and what wraps each of them (guard, time limit, metrics).

mod body;
mod dead;
mod groups;
mod health;
mod records;
mod topics;

use crate::app::App;
use crate::problem::Problem;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use firth::ErrorKind;
use std::time::{Duration, Instant};

/// The largest request body.
pub(crate) const MAX_BODY: usize = 32 * 1024 * 1024;
/// The longest that a request may take; fetches wait less than this.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The longest wait of a fetch.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// All routes on this state.
pub(crate) fn router(app: App) -> Router {
    let guarded = Router::new()
        .route("/v1", get(health::about))
        .route("/v1/topics", get(topics::list))
        .route("/v1/topics/{topic}", get(topics::show).put(topics::create).delete(topics::delete))
        .route("/v1/topics/{topic}/records", post(records::produce))
        .route("/v1/topics/{topic}/groups", get(groups::list))
        .route("/v1/topics/{topic}/groups/{group}", get(groups::show))
        .route("/v1/topics/{topic}/groups/{group}/fetch", post(groups::fetch))
        .route("/v1/topics/{topic}/groups/{group}/settle", post(groups::settle))
        .route("/v1/topics/{topic}/dead", get(dead::list))
        .route("/v1/topics/{topic}/dead/count", get(dead::count))
        .route("/v1/topics/{topic}/dead/replay", post(dead::replay))
        .route("/v1/topics/{topic}/dead/delete", post(dead::delete))
        .route("/metrics", get(health::metrics))
        .layer(middleware::from_fn_with_state(app.clone(), guard));
    guarded
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(middleware::from_fn(limit_and_measure))
        .with_state(app)
}

async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.guard().check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn limit_and_measure(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let _running = Running::new(&route);
    let (method, started) = (method_name(request.method()), Instant::now());
    let response = match tokio::time::timeout(TIME_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail =
                format!("no answer within {} s; it may have happened all the same", TIME_LIMIT.as_secs());
            let mut problem = Problem::http(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Timeout, detail);
            problem.may_have_happened = true;
            problem.into_response()
        }
    };
    let (status, took) = (response.status().as_u16(), started.elapsed());
    let labels = [("method", method.to_owned()), ("route", route.clone()), ("status", status.to_string())];
    metrics::counter!("firth_http_requests_total", &labels).increment(1);
    metrics::histogram!("firth_http_seconds", "route" => route.clone()).record(took.as_secs_f64());
    tracing::debug!(method, route, status, ?took, "request");
    response
}

/// Counts a request as long as it runs, also one whose client hangs up.
struct Running(metrics::Gauge);

impl Running {
    fn new(route: &str) -> Self {
        let gauge = metrics::gauge!("firth_http_requests_running", "route" => route.to_owned());
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

/// Methods as a bounded label.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

async fn no_route(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}; the API lies under /v1/topics", uri.path());
    Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not take {method}", uri.path());
    Problem::http(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::Invalid, detail)
}
