//! `/v1/topics/{topic}/groups/{group}/in_flight`: deliveries that are out.
//!
//! A first delivery stands in no engine, so only the process that handed it out knows it. A server
//! tells of its own clients by name, and asks all other members over the engine's bus.

use super::body::{Json, Path, Query, within};
use crate::app::App;
use crate::problem::Answer;
use crate::wire::{InFlightList, InFlightShown, Member, millis};
use axum::extract::State;
use firth::InFlightRecord;
use serde::Deserialize;
use std::collections::HashMap;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct InFlightQuery {
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
}

/// Deliveries of all members that are not settled, first ones included, the oldest first
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/in_flight", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path), InFlightQuery),
    responses((status = 200, body = InFlightList)))]
pub(crate) async fn in_flight(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    Query(asked): Query<InFlightQuery>,
) -> Answer<Json<InFlightList>> {
    let max = usize::try_from(within("max", asked.max.unwrap_or(100), 1, 1000)?).unwrap_or(100);
    let admin = app.broker().admin();
    let info = admin.group(&topic, &group).await?;
    let members = info.members.into_iter().map(Member::from);
    let members: HashMap<String, Member> = members.map(|one| (one.name.clone(), one)).collect();
    let mut page = admin.in_flight(&topic, &group, max).await?;
    // This server knows its own clients by name.
    let own = app.delivery_leases().clients((&topic, &group)).map(|(member, _)| member);
    let is_own = |member: &str| own.as_deref() == Some(member);
    let (own_total, mut deliveries) = app.delivery_leases().in_flight((&topic, &group), max);
    page.members.retain(|member, _| !is_own(member));
    page.silent.retain(|member| !is_own(member));
    let total = page.total() + own_total;
    let others = page.records.into_iter().filter(|record| !is_own(&record.member));
    deliveries.extend(others.map(|record| shown(record, &members)));
    deliveries.sort_by_key(|delivery| std::cmp::Reverse(delivery.age_ms));
    deliveries.truncate(max);
    Ok(Json(InFlightList { deliveries, total, silent: page.silent }))
}

fn shown(record: InFlightRecord, members: &HashMap<String, Member>) -> InFlightShown {
    let member = members.get(&record.member);
    InFlightShown {
        partition: record.partition,
        id: record.id.to_string(),
        attempt: record.attempt,
        age_ms: millis(record.age),
        remaining_ms: None,
        address: member.and_then(|member| member.host.clone()),
        kind: member.map_or_else(|| "library".to_owned(), |member| member.kind.clone()),
        member: Some(record.member),
        client: None,
    }
}
