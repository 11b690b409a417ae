//! `/v1/topics/{topic}/groups`: figures, and fetch and settle for clients that cannot hold a consumer.

use super::MAX_WAIT;
use super::body::{Json, JsonBody, Path, bad};
use crate::app::App;
use crate::desk::Verdict;
use crate::problem::Answer;
use crate::wire::{
    Delivered, Failure, Fetch, Fetched, Group, Groups, NotSettled, Settle, SettledReport, Shown, unix_ms,
};
use axum::extract::State;
use firth::Nack;
use std::time::{Duration, SystemTime};

/// The most deliveries of one fetch, and verdicts of one settle.
const MAX_DELIVERIES: usize = 500;
const LEASE: Duration = Duration::from_secs(30);
const MAX_LEASE: Duration = Duration::from_secs(12 * 3600);

pub(crate) async fn list(State(app): State<App>, Path(topic): Path<String>) -> Answer<Json<Groups>> {
    let admin = app.broker().admin();
    let mut groups = Vec::new();
    for group in admin.groups(&topic).await? {
        groups.push(Group::from(admin.group(&topic, group.as_str()).await?));
    }
    Ok(Json(Groups { groups }))
}

pub(crate) async fn show(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
) -> Answer<Json<Group>> {
    Ok(Json(app.broker().admin().group(&topic, &group).await?.into()))
}

pub(crate) async fn fetch(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(wanted): JsonBody<Fetch>,
) -> Answer<Json<Fetched>> {
    let max = wanted.max.unwrap_or(1);
    let wait = Duration::from_millis(wanted.wait_ms.unwrap_or(0));
    let lease = wanted.lease_ms.map_or(LEASE, Duration::from_millis);
    if !(1..=MAX_DELIVERIES).contains(&max) {
        return Err(bad(format!("max is {max}; give 1 to {MAX_DELIVERIES}")));
    }
    if wait > MAX_WAIT {
        return Err(bad(format!("wait_ms is {}; give at most {}", wait.as_millis(), MAX_WAIT.as_millis())));
    }
    if lease < Duration::from_millis(100) || lease > MAX_LEASE {
        return Err(bad(format!("lease_ms is {}; give 100 to {}", lease.as_millis(), MAX_LEASE.as_millis())));
    }
    let show = |delivery, record: &firth::Delivery| Delivered {
        delivery,
        deadline_ms: unix_ms(SystemTime::now() + lease),
        record: Shown::from(record.record()),
    };
    let deliveries = app.desk().fetch((&topic, &group), (max, wait, lease), show).await?;
    Ok(Json(Fetched { deliveries }))
}

pub(crate) async fn settle(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(verdicts): JsonBody<Settle>,
) -> Answer<Json<SettledReport>> {
    let all = list_verdicts(verdicts);
    if all.is_empty() || all.len() > MAX_DELIVERIES {
        return Err(bad(format!(
            "{} verdicts; give 1 to {MAX_DELIVERIES} in ack, nack and reject",
            all.len()
        )));
    }
    // Noted together, so that they are stored together.
    let mut settling = tokio::task::JoinSet::new();
    for (delivery, verdict) in all {
        let (app, topic, group) = (app.clone(), topic.clone(), group.clone());
        settling.spawn(async move {
            let outcome = app.desk().settle((&topic, &group), &delivery, verdict).await;
            (delivery, outcome)
        });
    }
    let mut report = SettledReport { settled: 0, failed: Vec::new() };
    for (delivery, outcome) in settling.join_all().await {
        match outcome {
            Ok(()) => report.settled += 1,
            Err(error) => {
                let (kind, detail) = (error.kind().as_str().to_owned(), error.context().to_owned());
                report.failed.push(NotSettled { delivery, kind, detail });
            }
        }
    }
    Ok(Json(report))
}

fn list_verdicts(verdicts: Settle) -> Vec<(String, Verdict)> {
    let why = |failure: &mut Failure| failure.reason.take().unwrap_or_else(|| "no reason given".to_owned());
    let acks = verdicts.ack.into_iter().map(|delivery| (delivery, Verdict::Ack));
    let nacks = verdicts.nack.into_iter().map(|mut failure| {
        let why = why(&mut failure);
        let nack = match failure.after_ms {
            Some(after) => Nack::retry_after(Duration::from_millis(after), why),
            None => Nack::retry(why),
        };
        (failure.delivery, Verdict::Nack(nack))
    });
    let rejects = verdicts.reject.into_iter().map(|mut failure| {
        let why = why(&mut failure);
        (failure.delivery, Verdict::Nack(Nack::reject(why)))
    });
    acks.chain(nacks).chain(rejects).collect()
}
