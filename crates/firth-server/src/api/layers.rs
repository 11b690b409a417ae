//! What wraps every request: bounds on its head and its time, who may ask and how often, the audit
//! log, metrics and traces.

use super::openapi::Queries;
use crate::app::{App, RefusalKey};
use crate::auth::{Caller, Entry, Need, Pace, acting, is_console, need, presented, takes};
use crate::problem::{Answer, Problem};
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use firth::catalog::ChannelName;
use firth::claims::{MemberName, OfferName, ServiceName};
use firth::{ErrorKind, GroupName, TopicName};
use std::net::IpAddr;
use std::time::Instant;

/// The most headers of a request, and their bytes.
const MAX_HEADERS: usize = 100;
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How often per second one wrong token may come from one address, once its burst is used up.
const FAILURES_PER_SECOND: f64 = 0.2;

/// What every answer says to browsers: no guessing, no frames, no other site, no copy.
const SAFE: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// The address of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Around everything: bounds, time, metrics, traces, and the guard.
pub(super) async fn wrap(
    State((app, queries)): State<(App, Queries)>,
    mut request: Request,
    next: Next,
) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or("none", MatchedPath::as_str);
    let running = app.meter().begin(route);
    let method = method_name(request.method());
    let trace = app.telemetry().request(request.headers());
    request.extensions_mut().insert(trace);
    let limit = app.limits().request_time;
    let answer = async {
        let headers = request.headers();
        let sound = bounded_head(headers).and_then(|()| unambiguous(headers));
        match (sound, &matched) {
            (Err(problem), _) => problem.into_response(),
            (Ok(()), Some(route)) => match queries.check(request.method(), route.as_str(), request.uri()) {
                Ok(()) => guard(&app, route.as_str(), request, next).await,
                Err(problem) => problem.into_response(),
            },
            // What is not there is told to everyone: the fallbacks answer.
            (Ok(()), None) => next.run(request).await,
        }
    };
    let mut response = match tokio::time::timeout(limit, answer).await {
        Ok(response) => response,
        Err(_) => {
            let detail =
                format!("no answer within {} ms; it may have happened all the same", limit.as_millis());
            let mut problem = Problem::http(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Timeout, detail);
            problem.may_have_happened = true;
            problem.into_response()
        }
    };
    let headers = response.headers_mut();
    for (name, value) in SAFE {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    let status = response.status().as_u16();
    running.answered(method, status);
    app.telemetry().answered(trace, method, route, status);
    tracing::debug!(method, route, status, took = ?running.took(), "request");
    response
}

/// Who asks, how often, and whether that is allowed; changes and refusals go to the audit log.
async fn guard(app: &App, route: &str, request: Request, next: Next) -> Response {
    let need = need(request.method(), route);
    if is_console(route)
        && let Err(problem) = app.guard().check_host(request.headers())
    {
        return problem.into_response();
    }
    if matches!(need, Need::Nothing | Need::Signature) {
        return next.run(request).await;
    }
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let method = method_name(request.method());
    let path = request.uri().path().to_owned();
    let audit = |who: &str, response: &Response| {
        let from = peer.map(|peer| peer.to_string());
        let status = response.status().as_u16();
        app.audit().write(&Entry { who, from, method, path: &path, status });
    };
    let takes = takes(route) && matches!(*request.method(), Method::GET | Method::HEAD);
    let caller = match app.guard().check(request.headers(), takes) {
        Ok(caller) => caller,
        Err(problem) => {
            let (problem, is_told) = refuse(app, problem, request.headers(), peer, app.guard().has_tokens());
            let response = problem.into_response();
            if is_told {
                audit("unknown", &response);
            }
            return response;
        }
    };
    let is_audited = need.is_audited(request.method(), route);
    let response = match admit(app, &caller, need, peer, request).await {
        Ok(request) => acting(caller.clone(), peer, next.run(request)).await,
        Err(problem) => problem.into_response(),
    };
    if is_audited {
        audit(caller.name(), &response);
    }
    response
}

/// Returns the answer to an unknown caller, and whether log and audit record it. One limit bounds
/// both the records per address and the attempts with one wrong token per address. The server never
/// refuses a valid token because wrong ones came from the same address. Without tokens
/// (`by_token`), attempts are not limited.
pub(crate) fn refuse(
    app: &App,
    problem: Problem,
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    by_token: bool,
) -> (Problem, bool) {
    let now = Instant::now();
    let limit = app.limits().failures;
    let pace = Pace { rate: FAILURES_PER_SECOND, burst: f64::from(limit) };
    let why = if by_token { "token" } else { "page" };
    metrics::counter!("firth_http_refused_total", "why" => why).increment(1);
    let is_told = app.failures().take(RefusalKey::Told(peer), pace, now).is_ok();
    let asked = app.failures().take(RefusalKey::Answered(peer, presented(headers)), pace, now);
    let problem = match asked {
        Err(wait) if by_token => {
            let detail = "this wrong token came too often from this address: wait";
            let problem = Problem::http(StatusCode::TOO_MANY_REQUESTS, ErrorKind::Overloaded, detail);
            problem.at("Authorization").limit(u64::from(limit)).after(wait)
        }
        _ => problem,
    };
    (problem, is_told)
}

/// Takes one request from the caller's rate, or says when to come again.
pub(crate) fn within_rate(app: &App, caller: &Caller, peer: Option<IpAddr>) -> Answer<()> {
    let limits = app.limits();
    if limits.rate <= 0.0 {
        return Ok(());
    }
    let who = match caller {
        Caller::Holder(grant) => format!("token {}", grant.name),
        Caller::Local => peer.map_or_else(|| "inside".to_owned(), |peer| peer.to_string()),
    };
    let pace = Pace { rate: limits.rate, burst: f64::from(limits.burst) };
    app.callers().take(who, pace, Instant::now()).map_err(|wait| {
        metrics::counter!("firth_http_refused_total", "why" => "rate").increment(1);
        let detail = format!("more than {} requests per second: wait", limits.rate);
        let problem = Problem::http(StatusCode::TOO_MANY_REQUESTS, ErrorKind::Overloaded, detail);
        problem.limit(limits.rate as u64).after(wait)
    })
}

async fn admit(
    app: &App,
    caller: &Caller,
    need: Need,
    peer: Option<IpAddr>,
    request: Request,
) -> Answer<Request> {
    within_rate(app, caller, peer)?;
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params = params.map_err(|_| Problem::field("path", "the path is not UTF-8 text"))?;
    reachable(&parts.method, &params)?;
    let param = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    let topic = param("topic").map(TopicName::new).transpose()?;
    let channel = param("channel").map(ChannelName::new).transpose();
    let channel = channel.map_err(|error| Problem::from(error).at("channel"))?;
    param("group").map(GroupName::new).transpose()?;
    let service = param("service").map(ServiceName::new).transpose()?;
    param("worker").map(MemberName::new).transpose()?;
    let offer = param("offer").map(OfferName::new).transpose();
    offer.map_err(|error| Problem::from(error).at("offer"))?;
    let topic = topic.as_ref().map(TopicName::as_str);
    let about = topic.or(channel.as_ref().map(ChannelName::as_str));
    let service = service.as_ref().map(ServiceName::as_str);
    caller.check(need, about.or(service))?;
    if service.is_some() {
        caller.check(need, service)?;
    }
    parts.extensions.insert(caller.clone());
    Ok(Request::from_parts(parts, body))
}

/// Clients take `.` out of a path, so most could never name what is called so: it can be looked at
/// and deleted, if an older server made it, and nothing else.
fn reachable(method: &Method, params: &RawPathParams) -> Answer<()> {
    let dot = params.iter().find(|(_, value)| *value == ".");
    match dot.filter(|_| !matches!(*method, Method::GET | Method::HEAD | Method::DELETE)) {
        Some((field, _)) => {
            let detail =
                format!("the {field} is called \".\", which clients take out of a path: choose another name");
            Err(Problem::field(field, detail))
        }
        None => Ok(()),
    }
}

fn bounded_head(headers: &HeaderMap) -> Answer<()> {
    let wrong = |detail: String, limit: usize| {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Err(Problem::http(status, ErrorKind::Invalid, detail).at("headers").limit(limit as u64))
    };
    if headers.len() > MAX_HEADERS {
        return wrong(format!("{} headers; at most {MAX_HEADERS}", headers.len()), MAX_HEADERS);
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > MAX_HEAD_BYTES {
        return wrong(format!("headers of {bytes} bytes; at most {MAX_HEAD_BYTES}"), MAX_HEAD_BYTES);
    }
    Ok(())
}

/// Nothing that two programs on the way could read differently.
fn unambiguous(headers: &HeaderMap) -> Answer<()> {
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(Problem::field("Host", "there are several headers Host: send one"));
    }
    let codings = headers.get_all(header::TRANSFER_ENCODING);
    if codings.iter().any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        let detail = "a body is sent as it is or in chunks: no other Transfer-Encoding is known";
        let problem = Problem::http(StatusCode::NOT_IMPLEMENTED, ErrorKind::Unsupported, detail);
        return Err(problem.at("Transfer-Encoding"));
    }
    Ok(())
}

/// Methods as a bounded label.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
