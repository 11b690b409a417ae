//! `/v1/hooks/{source}`: signed requests of other programs become events of a topic.
//!
//! The answer comes when the event is stored. A sender that repeats a request after a lost answer
//! changes nothing, if it gives its events names.

use super::body::{Json, Path, Raw};
use crate::app::{App, Sending};
use crate::auth::Pace;
use crate::problem::{Answer, Problem};
use crate::wire::HookTaken;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use firth::{ErrorKind, Message};
use firth_connect::Intake;
use firth_connect::webhook::Headers;
use firth_router::event::Event;
use std::time::{Duration, Instant};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A burst of this many seconds' requests is taken at once.
const BURST_SECONDS: f64 = 2.0;
/// When a sender shall come again to a paused webhook.
const PAUSED: Duration = Duration::from_secs(60);

/// The routes of this file.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(take))
}

/// Takes a request of the program for which a webhook source is configured, by its signature
///
/// Standard Webhooks, GitHub, Stripe, Shopify or a plain code over the body; JSON or CloudEvents.
/// The source's configuration says which, and what becomes of it.
#[utoipa::path(post, path = "/v1/hooks/{source}", tag = "sources", params(("source" = String, Path)),
    request_body(content((String = "application/json"), (String = "application/cloudevents+json"))),
    responses((status = 200, body = HookTaken),
        (status = 401, body = Problem, description = "No signature that fits, or an old one")))]
async fn take(
    State(app): State<App>,
    Path(source): Path<String>,
    request: Request,
) -> Answer<Json<HookTaken>> {
    let intake = app.connect().intake(&source).await.ok_or_else(|| {
        let detail = format!("this server has no webhook {source} in its section connect");
        Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail).at("source")
    })?;
    within_rate(&app, &intake)?;
    let raw = Raw::within(request, &app, intake.config().max_body).await?;
    let received = intake.receive(&as_text(&raw.headers), &raw.bytes).map_err(|error| refused(&error))?;
    let Some(event) = received.event else { return Ok(Json(HookTaken { stored: false, duplicate: false })) };
    match append(&app, &intake, &event, received.once).await {
        Ok(duplicate) => {
            intake.stored(&event, !duplicate);
            Ok(Json(HookTaken { stored: true, duplicate }))
        }
        Err(error) => {
            let problem =
                Problem::http(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Unavailable, error.context());
            intake.failed(error);
            Err(problem)
        }
    }
}

/// Stores the event; says whether it was there already.
async fn append(app: &App, intake: &Intake, event: &Event, once: Option<String>) -> firth::Result<bool> {
    app.broker().takes_appends()?;
    let topic = intake.config().topic.clone();
    let producer = app.producer(Sending { topic: topic.clone(), ..Sending::default() }).await?;
    let message = Message::new(event.to_compact()).key(event.message_key());
    let message = message.header("firth-source", intake.config().name.clone());
    let sent = match once {
        Some(name) => {
            let receipts = producer.send_once(&name, [message]).await;
            receipts.map(|receipts| receipts.iter().all(|receipt| receipt.duplicate))
        }
        None => producer.send(message).await.map(|_| false),
    };
    sent.inspect_err(|error| {
        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Closed) {
            app.forget_producer(&topic);
        }
    })
}

fn within_rate(app: &App, intake: &Intake) -> Answer<()> {
    let rate = f64::from(intake.config().rate);
    let pace = Pace { rate, burst: rate * BURST_SECONDS };
    let who = format!("webhook {}", intake.config().name);
    app.callers().take(who, pace, Instant::now()).map_err(|wait| {
        metrics::counter!("firth_http_refused_total", "why" => "rate").increment(1);
        let detail = format!("more than {rate} requests per second: wait");
        let problem = Problem::http(StatusCode::TOO_MANY_REQUESTS, ErrorKind::Overloaded, detail);
        problem.limit(u64::from(intake.config().rate)).after(wait)
    })
}

fn as_text(headers: &HeaderMap) -> Headers<'_> {
    let text = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    Headers::new(text)
}

fn refused(error: &firth_connect::Error) -> Problem {
    let detail = error.context();
    match error.kind() {
        firth_connect::ErrorKind::Unauthorized => {
            metrics::counter!("firth_http_refused_total", "why" => "signature").increment(1);
            Problem::http(StatusCode::UNAUTHORIZED, ErrorKind::Unauthorized, detail)
        }
        firth_connect::ErrorKind::Unavailable => {
            let problem = Problem::http(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Unavailable, detail);
            problem.after(PAUSED)
        }
        _ => Problem::field("body", detail),
    }
}
