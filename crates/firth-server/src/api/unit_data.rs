//! `/v1/claims/{service}/workers/{worker}/data/{topic}`: a unit's own data, a partition of a topic,
//! read and settled under its claim.
//!
//! The next owner of the unit goes on where the last one was. The server refuses verdicts of a
//! former owner. The token must cover both the service and the topic.

use super::MAX_WAIT;
use super::body::{Json, JsonBody, Path, Query, within};
use super::stream::{ALIVE, AsyncNext, Form};
use crate::app::{App, StreamPermit};
use crate::problem::{Answer, Problem};
use crate::wire::{
    MAX_COUNT, MAX_MS, NewGroup, NotStored, ReadUnitData, SettleUnitData, Shown, Start, UnitDataPage,
    UnitDataSettled, UnitRecord, millis,
};
use crate::worker_sessions::{DataSource, DataVerdicts, HeldData, MAX_UNSETTLED, WhenFull, WorkerSession};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use firth::{ErrorKind, GroupName, Record, StartAt};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use utoipa::IntoParams;

const MAX_PARTITION: u64 = 4095;

type Place = Path<(String, String, String)>;

/// Reads a unit's own data under its claim, waiting for the first record if there is none yet
///
/// What was read comes again, under the same place, until it is settled.
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/data/{topic}/read", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path), ("topic" = String, Path)), request_body = ReadUnitData,
    responses((status = 200, body = UnitDataPage),
        (status = 409, body = Problem, description = "The claim is over, or the group has consumers")))]
pub(crate) async fn read_data(
    State(app): State<App>,
    Path((service, worker, topic)): Place,
    JsonBody(request): JsonBody<ReadUnitData>,
) -> Answer<Json<UnitDataPage>> {
    let max = within("max", request.max.unwrap_or(100), 1, MAX_UNSETTLED as u64)?;
    let wait = Duration::from_millis(within("wait_ms", request.wait_ms.unwrap_or(0), 0, millis(MAX_WAIT))?);
    let after = within("after", request.after, 0, MAX_COUNT)?;
    let start = start(request.start, request.age_ms)?;
    let source = source(topic, request.partition, request.group)?;
    let (session, beat) = app.worker_sessions().session((&service, &worker), &request.session)?;
    let held = held(&app, &session, &request.claim, (source, start)).await?;
    let until = Instant::now() + wait.min(session.ttl() / 3);
    let how = (after, usize::try_from(max).unwrap_or(1));
    let read = held.read(how, until, WhenFull::Refuse);
    let records = app.worker_sessions().during(&session, read).await?;
    let records = records.iter().map(shown).collect();
    let recalled = held.is_recalled();
    let valid_ms = millis(session.valid_after(beat));
    Ok(Json(UnitDataPage { records, recalled, valid_ms }))
}

/// Settles records of a unit's own data; the answer comes when the verdicts are stored
#[utoipa::path(post, path = "/v1/claims/{service}/workers/{worker}/data/{topic}/settle", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path), ("topic" = String, Path)), request_body = SettleUnitData,
    responses((status = 200, body = UnitDataSettled),
        (status = 409, body = Problem, description = "The claim is over, or a newer owner has the unit: nothing is stored")))]
pub(crate) async fn settle_data(
    State(app): State<App>,
    Path((service, worker, topic)): Place,
    JsonBody(request): JsonBody<SettleUnitData>,
) -> Answer<Json<UnitDataSettled>> {
    for (field, count) in [("ack", request.ack.len()), ("reject", request.reject.len())] {
        if count > MAX_UNSETTLED {
            let detail = format!("{field} has {count} entries; give at most {MAX_UNSETTLED}");
            return Err(Problem::field(field, detail).limit(MAX_UNSETTLED as u64));
        }
    }
    let ack_to = request.ack_to.map(|place| within("ack_to", place, 0, MAX_COUNT)).transpose()?;
    let source = source(topic, request.partition, request.group)?;
    let (session, beat) = app.worker_sessions().session((&service, &worker), &request.session)?;
    let held = held(&app, &session, &request.claim, (source, StartAt::Oldest)).await?;
    let why = |reason: Option<String>| reason.unwrap_or_else(|| "no reason given".to_owned());
    let reject = request.reject.into_iter().map(|hopeless| (hopeless.id, why(hopeless.reason))).collect();
    let outcome = held.settle(DataVerdicts { ack_to, ack: request.ack, reject }).await?;
    let failed = outcome.failed.into_iter().map(|(id, error)| NotStored {
        id,
        kind: error.kind().as_str().to_owned(),
        detail: error.context().to_owned(),
    });
    Ok(Json(UnitDataSettled {
        settled: outcome.settled,
        failed: failed.collect(),
        valid_ms: millis(session.valid_after(beat)),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FromWhere {
    /// The session that joining gave.
    session: String,
    /// The claim's handle.
    claim: String,
    /// Which partition is the unit's; 0 unless set.
    #[param(maximum = 4095)]
    partition: Option<u64>,
    /// The group whose progress it is; the service's own unless set.
    #[param(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$")]
    group: Option<String>,
    /// Where the unit's first owner begins.
    #[param(inline)]
    start: Option<Start>,
    /// Instead of `start`: with records that are not older than this.
    #[param(maximum = 3_155_760_000_000_u64)]
    age_ms: Option<u64>,
    /// The last `place` that was seen; 0, the default, tells everything that is not settled.
    #[param(maximum = 9_007_199_254_740_991_u64)]
    after: Option<u64>,
    /// At most this many unsettled records at a time; 100 unless set.
    #[param(minimum = 1, maximum = 500)]
    max: Option<u64>,
    /// End after this long.
    #[param(maximum = 3_155_760_000_000_u64)]
    for_ms: Option<u64>,
}

/// A unit's own data as it comes, as server-sent events or one JSON object per line
///
/// A stream does not renew the session: settling does, and `renew`. It ends when the claim is
/// wanted back or over.
#[utoipa::path(get, path = "/v1/claims/{service}/workers/{worker}/data/{topic}/stream", tag = "work",
    params(("service" = String, Path), ("worker" = String, Path), ("topic" = String, Path), FromWhere,
        ("Accept" = Option<String>, Header, description = "text/event-stream or application/x-ndjson")),
    responses((status = 200, description = "Events `record`, `end` and `problem`, or records one per line",
        content((UnitRecord = "text/event-stream"), (UnitRecord = "application/x-ndjson"))),
        (status = 406, body = Problem, description = "Neither form is accepted"),
        (status = 409, body = Problem, description = "The claim is over, or the group has consumers")))]
pub(crate) async fn stream_data(
    State(app): State<App>,
    Path((service, worker, topic)): Place,
    Query(from): Query<FromWhere>,
    headers: HeaderMap,
) -> Answer<Response> {
    let form = Form::accepted(&headers)?;
    let after = within("after", from.after.unwrap_or(0), 0, MAX_COUNT)?;
    let max = within("max", from.max.unwrap_or(100), 1, MAX_UNSETTLED as u64)?;
    let for_ms = from.for_ms.map(|ms| within("for_ms", ms, 0, MAX_MS)).transpose()?;
    let start = start(from.start.unwrap_or_default(), from.age_ms)?;
    let source = source(topic, from.partition.unwrap_or(0), from.group)?;
    let permit = app.permit()?;
    let (session, _) = app.worker_sessions().session((&service, &worker), &from.session)?;
    let held = held(&app, &session, &from.claim, (source, start)).await?;
    // A wrong topic is told before the answer begins.
    app.worker_sessions()
        .during(&session, held.read((MAX_COUNT, 1), Instant::now(), WhenFull::Wait(0)))
        .await?;
    let until = for_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    let max = usize::try_from(max).unwrap_or(1);
    let telling = DataStream {
        app: app.clone(),
        session,
        held,
        after,
        max,
        form,
        until,
        is_over: false,
        _permit: permit,
    };
    Ok(form.answer(telling, NextRecord))
}

struct DataStream {
    app: App,
    session: Arc<WorkerSession>,
    held: Arc<HeldData>,
    after: u64,
    max: usize,
    form: Form,
    until: Option<Instant>,
    is_over: bool,
    _permit: StreamPermit,
}

struct NextRecord;

impl AsyncNext<DataStream> for NextRecord {
    async fn call(&self, state: &mut DataStream) -> Option<Bytes> {
        let now = Instant::now();
        let left = state.until.map_or(ALIVE, |until| until.saturating_duration_since(now).min(ALIVE));
        if state.is_over || left.is_zero() {
            return None;
        }
        let read = state.held.read((state.after, 1), now + left, WhenFull::Wait(state.max));
        match state.app.worker_sessions().during(&state.session, read).await.map(|mut page| page.pop()) {
            Ok(Some(record)) => {
                state.after = record.0;
                Some(state.form.entry("record", &shown(&record)))
            }
            Ok(None) if state.held.is_recalled() => {
                state.is_over = true;
                let why = "the claim is wanted back: settle what is done and release it";
                (state.form == Form::Events)
                    .then(|| state.form.entry("end", &serde_json::json!({ "why": why })))
            }
            Ok(None) => Some(state.form.alive()),
            Err(error) => {
                state.is_over = true;
                Some(state.form.entry("problem", &Problem::from(error)))
            }
        }
    }
}

fn shown((place, record): &(u64, Record)) -> UnitRecord {
    UnitRecord { place: *place, record: Shown::from(record) }
}

fn start(start: Start, age_ms: Option<u64>) -> Answer<StartAt> {
    within("age_ms", age_ms.unwrap_or(0), 0, MAX_MS)?;
    Ok(StartAt::from(&NewGroup { start, age_ms }))
}

fn source(topic: String, partition: u64, group: Option<String>) -> Answer<DataSource> {
    let partition = within("partition", partition, 0, MAX_PARTITION)?;
    let group = group.map(GroupName::new).transpose().map_err(|error| Problem::from(error).at("group"))?;
    let group = group.map(|group| group.to_string());
    Ok(DataSource { topic, partition: u32::try_from(partition).unwrap_or(0), group })
}

/// The feed of a claim. A group that consumers share is not taken from them.
async fn held(
    app: &App,
    session: &WorkerSession,
    claim: &str,
    (source, start): (DataSource, StartAt),
) -> Answer<Arc<HeldData>> {
    let claim = app.worker_sessions().claim(session, claim)?;
    if let Some(group) = &source.group {
        let has_consumers = match app.broker().admin().group(&source.topic, group).await {
            Ok(group) => !group.members.is_empty(),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error.into()),
        };
        if has_consumers {
            let detail = format!("group {group} has consumers: name another, or leave it out");
            return Err(Problem::http(StatusCode::CONFLICT, ErrorKind::AlreadyExists, detail).at("group"));
        }
    }
    Ok(app.worker_sessions().unit_data(session, &claim, (source, start))?)
}
