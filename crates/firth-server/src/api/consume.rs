//! Fetch and settle: long-poll for clients that cannot hold a consumer or a stream.

use super::MAX_WAIT;
use super::body::{Json, JsonBody, Path, within};
use super::client::Asker;
use crate::app::App;
use crate::delivery_leases::LeaseVerdict;
use crate::problem::{Answer, Problem};
use crate::wire::{
    Delivered, Failure, Fetch, Fetched, NotSettled, Settle, SettledReport, Shown, millis, unix_ms,
};
use axum::extract::State;
use firth::{Delivery, Error, Nack, Result};
use std::time::{Duration, SystemTime};

/// The most deliveries of one fetch, and verdicts of one list.
pub(super) const MAX_DELIVERIES: u64 = 500;
const LEASE: Duration = Duration::from_secs(30);
const MAX_LEASE: Duration = Duration::from_secs(12 * 3600);
const MAX_DELAY_MS: u64 = 366 * 24 * 3600 * 1000;

/// A lease within its bounds; 30 s unless set.
pub(super) fn lease(wanted: Option<u64>) -> Answer<Duration> {
    let ms = wanted.unwrap_or(millis(LEASE));
    within("lease_ms", ms, 100, millis(MAX_LEASE)).map(Duration::from_millis)
}

/// A delivery as clients see it.
pub(super) fn delivered(handle: String, delivery: &Delivery, lease: Duration) -> Delivered {
    Delivered {
        delivery: handle,
        deadline_ms: unix_ms(SystemTime::now() + lease),
        epoch: delivery.epoch().0,
        record: Shown::from(delivery.record()),
    }
}

/// Takes deliveries, waiting for the first one if there is none yet
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/fetch", tag = "consume",
    params(("topic" = String, Path), ("group" = String, Path),
        ("Firth-Client" = Option<String>, Header, description = "What the client calls itself, for operators")),
    request_body = Fetch,
    responses((status = 200, body = Fetched)))]
pub(crate) async fn fetch(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    asker: Asker,
    JsonBody(wanted): JsonBody<Fetch>,
) -> Answer<Json<Fetched>> {
    let max = within("max", wanted.max.unwrap_or(1) as u64, 1, MAX_DELIVERIES)?;
    let wait = Duration::from_millis(within("wait_ms", wanted.wait_ms.unwrap_or(0), 0, millis(MAX_WAIT))?);
    let lease = lease(wanted.lease_ms)?;
    let max = usize::try_from(max).unwrap_or(1);
    let show = |handle, delivery: &Delivery| delivered(handle, delivery, lease);
    let deliveries =
        app.delivery_leases().fetch((&topic, &group), asker.by("fetch"), (max, wait, lease), show).await?;
    Ok(Json(Fetched { deliveries }))
}

/// Stores verdicts on deliveries, from fetches and from streams
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/settle", tag = "consume",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = Settle,
    responses((status = 200, body = SettledReport)))]
pub(crate) async fn settle(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(verdicts): JsonBody<Settle>,
) -> Answer<Json<SettledReport>> {
    check(&verdicts)?;
    let place = (topic.as_str(), group.as_str());
    let leases = app.delivery_leases();
    let mut report = SettledReport { settled: 0, failed: Vec::new() };
    for extension in &verdicts.extend {
        let lease = lease(Some(extension.lease_ms))?;
        note(&mut report, &extension.delivery, leases.extend(place, &extension.delivery, lease));
    }
    // All are noted before the first is waited for, so that they are stored together.
    let all = list(verdicts).into_iter();
    let noted: Vec<_> =
        all.map(|(handle, verdict)| (leases.settle(place, &handle, verdict), handle)).collect();
    for (noted, handle) in noted {
        let outcome = match noted {
            Ok(Some(stored)) => stored.await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        note(&mut report, &handle, outcome);
    }
    Ok(Json(report))
}

fn note(report: &mut SettledReport, handle: &str, outcome: Result<(), Error>) {
    match outcome {
        Ok(()) => report.settled += 1,
        Err(error) => {
            let kind = error.kind().as_str().to_owned();
            let detail = error.context().to_owned();
            let delivery = handle.to_owned();
            let may_have_happened = error.may_have_happened();
            report.failed.push(NotSettled { delivery, kind, detail, may_have_happened });
        }
    }
}

fn check(verdicts: &Settle) -> Answer<()> {
    let counts = [
        ("ack", verdicts.ack.len()),
        ("nack", verdicts.nack.len()),
        ("reject", verdicts.reject.len()),
        ("release", verdicts.release.len()),
        ("extend", verdicts.extend.len()),
    ];
    for (field, count) in counts {
        if count as u64 > MAX_DELIVERIES {
            let detail = format!("{field} has {count} entries; give at most {MAX_DELIVERIES}");
            return Err(Problem::field(field, detail).limit(MAX_DELIVERIES));
        }
    }
    for failure in &verdicts.nack {
        within("nack.after_ms", failure.after_ms.unwrap_or(0), 0, MAX_DELAY_MS)?;
    }
    for failure in &verdicts.reject {
        within("reject.after_ms", failure.after_ms.unwrap_or(0), 0, MAX_DELAY_MS)?;
    }
    for extension in &verdicts.extend {
        lease(Some(extension.lease_ms)).map_err(|problem| problem.at("extend.lease_ms"))?;
    }
    Ok(())
}

fn list(verdicts: Settle) -> Vec<(String, LeaseVerdict)> {
    let why = |failure: &mut Failure| failure.reason.take().unwrap_or_else(|| "no reason given".to_owned());
    let acks = verdicts.ack.into_iter().map(|delivery| (delivery, LeaseVerdict::Ack));
    let nacks = verdicts.nack.into_iter().map(|mut failure| {
        let why = why(&mut failure);
        let nack = match failure.after_ms {
            Some(after) => Nack::retry_after(Duration::from_millis(after), why),
            None => Nack::retry(why),
        };
        (failure.delivery, LeaseVerdict::Nack(nack))
    });
    let rejects = verdicts.reject.into_iter().map(|mut failure| {
        let why = why(&mut failure);
        (failure.delivery, LeaseVerdict::Nack(Nack::reject(why)))
    });
    let releases = verdicts.release.into_iter().map(|delivery| (delivery, LeaseVerdict::Release));
    acks.chain(nacks).chain(rejects).chain(releases).collect()
}
