//! `/v1/claims/{service}/workers/{worker}`: a worker in any language. It joins, is told of its
//! claims by long poll or stream, settles them, and renews.
//!
//! Every call under the session renews it; `valid_ms` says how long the claims hold, counted from
//! when the client sent the call. If a client stops calling, for any reason, it must stop working
//! when that time is up. One TTL after its last call, other workers have its claims.

use super::MAX_WAIT;
use super::body::{Json, JsonBody, Path, Query, within};
use super::stream::{ALIVE, AsyncNext, Form};
use crate::app::{App, StreamPermit};
use crate::problem::{Answer, Problem};
use crate::wire::{
    ClaimTaken, ClaimsSettled, Joined, MAX_COUNT, MAX_MS, NotDone, Poll, Polled, Renew, Renewed,
    SettleClaims, Take, WorkNews, WorkState, WorkerJoin, millis,
};
use crate::worker_sessions::{ClaimNews, ClaimRow, WorkerSession};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use firth::Result;
use firth::claims::{Claim, OfferName, WorkerConfig};
use firth::limits::{MAX_CHECKPOINT, MAX_REST, MAX_TTL};
use futures_util::StreamExt;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use utoipa::IntoParams;

const TTL: Duration = Duration::from_secs(15);
const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_CLAIMS: u64 = 100_000;
const MAX_NEWS: u64 = 500;
/// The most verdicts of one list.
const MAX_VERDICTS: usize = 500;
/// Verdicts that are stored at a time.
const AT_ONCE: usize = 32;

type Place = Path<(String, String)>;

/// Joins a service as a worker; a session that had this name before is over, and its claims go to
/// others
#[utoipa::path(put, path = "/v1/claims/{service}/workers/{worker}", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path)), request_body = WorkerJoin, responses((status = 200, body = Joined)))]
pub(crate) async fn join(
    State(app): State<App>,
    Path((service, worker)): Place,
    JsonBody(request): JsonBody<WorkerJoin>,
) -> Answer<Json<Joined>> {
    let ttl = within("ttl_ms", request.ttl_ms.unwrap_or(millis(TTL)), millis(MIN_TTL), millis(MAX_TTL))?;
    let handover = request.handover_ms.map(|ms| within("handover_ms", ms, 0, millis(MAX_TTL))).transpose()?;
    let mut config = WorkerConfig {
        ttl: Duration::from_millis(ttl),
        max_claims: within("max_claims", request.max_claims.unwrap_or(100), 1, MAX_CLAIMS)?,
        automatic: !request.by_name_only,
        ..WorkerConfig::default()
    };
    if let Some(handover) = handover {
        config.handover = Duration::from_millis(handover);
    }
    let (session, valid) = app.worker_sessions().join((&service, &worker), config).await?;
    Ok(Json(Joined { session, ttl_ms: ttl, valid_ms: millis(valid) }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SessionQuery {
    /// The session that joining gave.
    session: String,
}

/// Leaves the service: all claims are free at once
#[utoipa::path(delete, path = "/v1/claims/{service}/workers/{worker}", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path), SessionQuery), responses((status = 204, description = "Left")))]
pub(crate) async fn leave(
    State(app): State<App>,
    Path((service, worker)): Place,
    Query(which): Query<SessionQuery>,
) -> Answer<StatusCode> {
    let (session, _) = app.worker_sessions().session((&service, &worker), &which.session)?;
    app.worker_sessions().leave((&service, &worker), &session).await;
    Ok(StatusCode::NO_CONTENT)
}

/// What happened to the worker's claims since it asked last, waiting for the first if there is
/// nothing yet
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/poll", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path)), request_body = Poll, responses((status = 200, body = Polled)))]
pub(crate) async fn poll(
    State(app): State<App>,
    Path((service, worker)): Place,
    JsonBody(request): JsonBody<Poll>,
) -> Answer<Json<Polled>> {
    let max = within("max", request.max.unwrap_or(100), 1, MAX_NEWS)?;
    let wait = within("wait_ms", request.wait_ms.unwrap_or(0), 0, millis(MAX_WAIT))?;
    let after = within("after", request.after, 0, MAX_COUNT)?;
    let (session, beat) = app.worker_sessions().session((&service, &worker), &request.session)?;
    session.with_table(|table| table.confirm(after));
    let how = (after, usize::try_from(max).unwrap_or(1), Duration::from_millis(wait));
    let news = app.worker_sessions().news(&session, how, show).await?;
    Ok(Json(Polled { news, valid_ms: millis(session.valid_after(beat)) }))
}

/// A sign of life; at least every third of the TTL is wise
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/renew", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path)), request_body = Renew, responses((status = 200, body = Renewed)))]
pub(crate) async fn renew(
    State(app): State<App>,
    Path((service, worker)): Place,
    JsonBody(request): JsonBody<Renew>,
) -> Answer<Json<Renewed>> {
    let after = within("after", request.after, 0, MAX_COUNT)?;
    let (session, beat) = app.worker_sessions().session((&service, &worker), &request.session)?;
    session.with_table(|table| table.confirm(after));
    let health = session.worker().health();
    Ok(Json(Renewed {
        valid_ms: millis(session.valid_after(beat)),
        claims: health.claims,
        healthy: health.is_healthy,
        offers: health.offers,
        free: health.free,
        orphaned: health.orphaned,
    }))
}

/// Takes a unit by name, free or orphaned, at once
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/claim", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path)), request_body = Take, responses((status = 200, body = ClaimTaken),
        (status = 409, body = Problem, description = "A living worker has it, or this one is over")))]
pub(crate) async fn claim(
    State(app): State<App>,
    Path(place): Place,
    JsonBody(request): JsonBody<Take>,
) -> Answer<Json<ClaimTaken>> {
    take(&app, place, request, false).await
}

/// Takes a unit by name, also from a living owner, which loses it at once
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/seize", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path)), request_body = Take, responses((status = 200, body = ClaimTaken),
        (status = 409, body = Problem, description = "This worker is over")))]
pub(crate) async fn seize(
    State(app): State<App>,
    Path(place): Place,
    JsonBody(request): JsonBody<Take>,
) -> Answer<Json<ClaimTaken>> {
    take(&app, place, request, true).await
}

async fn take(
    app: &App,
    (service, worker): (String, String),
    request: Take,
    seize: bool,
) -> Answer<Json<ClaimTaken>> {
    OfferName::new(&request.name).map_err(|error| Problem::from(error).at("name"))?;
    let (session, beat) = app.worker_sessions().session((&service, &worker), &request.session)?;
    let claim = app.worker_sessions().take(&session, (&request.name, seize), show).await?;
    Ok(Json(ClaimTaken { claim, valid_ms: millis(session.valid_after(beat)) }))
}

/// Stores verdicts on claims: checkpoints, then releases, then what is done
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/settle", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path)), request_body = SettleClaims, responses((status = 200, body = ClaimsSettled)))]
pub(crate) async fn settle(
    State(app): State<App>,
    Path((service, worker)): Place,
    JsonBody(verdicts): JsonBody<SettleClaims>,
) -> Answer<Json<ClaimsSettled>> {
    check(&verdicts)?;
    let (session, beat) = app.worker_sessions().session((&service, &worker), &verdicts.session)?;
    let worker_sessions = app.worker_sessions();
    let session = &*session;
    let mut checkpoints = Vec::new();
    for checkpoint in verdicts.checkpoint {
        let (handle, state) = checkpoint.into_parts()?;
        if state.len() > MAX_CHECKPOINT {
            let detail =
                format!("a checkpoint has {} bytes; at most {MAX_CHECKPOINT} are allowed", state.len());
            return Err(Problem::field("checkpoint.state", detail).limit(MAX_CHECKPOINT as u64));
        }
        checkpoints.push((handle, state));
    }
    let mut report = ClaimsSettled { settled: 0, failed: Vec::new(), valid_ms: 0 };
    let stored = checkpoints.into_iter().map(|(handle, state)| async move {
        let outcome = match worker_sessions.claim(session, &handle) {
            Ok(claim) => claim.checkpoint(state).await,
            Err(error) => Err(error),
        };
        (handle, outcome)
    });
    note(&mut report, stored).await;
    let released = verdicts.release.into_iter().map(|request| async move {
        let outcome = match worker_sessions.claim(session, &request.claim) {
            Ok(claim) => claim.release_for(Duration::from_millis(request.rest_ms.unwrap_or(0))).await,
            Err(error) => Err(error),
        };
        (request.claim, outcome)
    });
    note(&mut report, released).await;
    let done = verdicts.done.into_iter().map(|handle| async move {
        let outcome = match worker_sessions.claim(session, &handle) {
            Ok(claim) => worker_sessions.done(session, &claim).await,
            Err(error) => Err(error),
        };
        (handle, outcome)
    });
    note(&mut report, done).await;
    report.valid_ms = millis(session.valid_after(beat));
    Ok(Json(report))
}

fn check(verdicts: &SettleClaims) -> Answer<()> {
    let counts = [
        ("done", verdicts.done.len()),
        ("release", verdicts.release.len()),
        ("checkpoint", verdicts.checkpoint.len()),
    ];
    for (field, count) in counts {
        if count > MAX_VERDICTS {
            let detail = format!("{field} has {count} entries; give at most {MAX_VERDICTS}");
            return Err(Problem::field(field, detail).limit(MAX_VERDICTS as u64));
        }
    }
    for request in &verdicts.release {
        within("release.rest_ms", request.rest_ms.unwrap_or(0), 0, millis(MAX_REST))?;
    }
    Ok(())
}

/// Stores them side by side, and notes what became of each.
async fn note<F>(report: &mut ClaimsSettled, steps: impl Iterator<Item = F> + Send)
where
    F: Future<Output = (String, Result<()>)> + Send,
{
    let mut stored = std::pin::pin!(futures_util::stream::iter(steps).buffered(AT_ONCE));
    while let Some((claim, outcome)) = stored.next().await {
        match outcome {
            Ok(()) => report.settled += 1,
            Err(error) => {
                let kind = error.kind().as_str().to_owned();
                let detail = error.context().to_owned();
                report.failed.push(NotDone { claim, kind, detail });
            }
        }
    }
}

/// A row as clients see it.
fn show(place: u64, handle: Option<String>, row: &ClaimRow<Claim>) -> WorkNews {
    let (event, last_owner) = match &row.news {
        ClaimNews::Granted => (WorkState::Granted, None),
        ClaimNews::Recalled => (WorkState::Recalled, None),
        ClaimNews::Lost => (WorkState::Lost, None),
        ClaimNews::Released => (WorkState::Released, None),
        ClaimNews::Orphaned { last_owner } => (WorkState::Orphaned, Some(last_owner.clone())),
    };
    let mut news = WorkNews::new(place, event);
    (news.name, news.claim, news.epoch, news.last_owner) = (row.name.clone(), handle, row.epoch, last_owner);
    if let Some(claim) = &row.claim {
        news.describe(claim);
    }
    news
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NewsQuery {
    /// The session that joining gave.
    session: String,
    /// The last `place` that was seen and acted on; 0, the default, tells everything that stands.
    #[param(maximum = 9_007_199_254_740_991_u64)]
    after: Option<u64>,
    /// End after this long.
    #[param(maximum = 3_155_760_000_000_u64)]
    for_ms: Option<u64>,
}

struct Telling {
    app: App,
    session: Arc<WorkerSession>,
    after: u64,
    form: Form,
    until: Option<Instant>,
    is_over: bool,
    _permit: StreamPermit,
}

struct NextNews;

impl AsyncNext<Telling> for NextNews {
    async fn call(&self, state: &mut Telling) -> Option<Bytes> {
        let left =
            state.until.map_or(ALIVE, |until| until.saturating_duration_since(Instant::now()).min(ALIVE));
        if state.is_over || left.is_zero() {
            return None;
        }
        let news = state.app.worker_sessions().news(&state.session, (state.after, 1, left), show).await;
        match news.map(|mut news| news.pop()) {
            Ok(Some(news)) => {
                state.after = news.place;
                Some(state.form.entry(news.event.as_str(), &news))
            }
            Ok(None) => Some(state.form.alive()),
            Err(error) => {
                state.is_over = true;
                let mut end = WorkNews::new(state.after, WorkState::End);
                end.why = Some(error.context().to_owned());
                Some(state.form.entry("end", &end))
            }
        }
    }
}

/// What happens to the worker's claims, as it happens
///
/// A stream does not renew the session: send `renew` beside it, with the last `place` that was
/// acted on. A stream that broke off goes on with `after`.
#[utoipa::path(get, path = "/v1/claims/{service}/workers/{worker}/stream", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path), NewsQuery,
        ("Accept" = Option<String>, Header, description = "text/event-stream or application/x-ndjson")),
    responses((status = 200, description = "Events `granted`, `recalled`, `lost`, `released`, `orphaned` and `end`",
        content((WorkNews = "text/event-stream"), (WorkNews = "application/x-ndjson"))),
        (status = 406, body = Problem, description = "Neither form is accepted")))]
pub(crate) async fn stream(
    State(app): State<App>,
    Path((service, worker)): Place,
    Query(from): Query<NewsQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let form = Form::accepted(&headers)?;
    let after = within("after", from.after.unwrap_or(0), 0, MAX_COUNT)?;
    let for_ms = from.for_ms.map(|ms| within("for_ms", ms, 0, MAX_MS)).transpose()?;
    let permit = app.permit()?;
    let (session, _) = app.worker_sessions().session((&service, &worker), &from.session)?;
    session.with_table(|table| table.confirm(after));
    let until = for_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    let telling = Telling { app: app.clone(), session, after, form, until, is_over: false, _permit: permit };
    Ok(form.answer(telling, NextNews))
}
