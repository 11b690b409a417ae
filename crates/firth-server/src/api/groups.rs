//! `/v1/topics/{topic}/groups`: figures, members, what is pending; creating, resetting and deleting
//! groups.

use super::body::{Json, JsonBody, Path, Query, within};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{
    Group, Groups, MAX_COUNT, MAX_MS, Member, Members, NewGroup, PendingList, ResetGroup, Start, SystemEvent,
};
use axum::extract::State;
use axum::http::StatusCode;
use firth::{ErrorKind, GroupName, PendingQuery, PendingSort, RecordId, Reset, StartAt, StartPosition};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// How many groups of a topic are asked about at a time.
pub(crate) const GROUPS_AT_ONCE: usize = 8;

/// All groups of a topic, in figures
#[utoipa::path(get, path = "/v1/topics/{topic}/groups", tag = "groups", params(("topic" = String, Path)),
    responses((status = 200, body = Groups)))]
pub(crate) async fn list(State(app): State<App>, Path(topic): Path<String>) -> Answer<Json<Groups>> {
    let admin = app.broker().admin();
    let topic = topic.as_str();
    let groups = stream::iter(admin.groups(topic).await?);
    let look = |group: GroupName| {
        let admin = &admin;
        async move { admin.group(topic, group.as_str()).await.map(Group::from) }
    };
    let groups = groups.map(look).buffered(GROUPS_AT_ONCE).try_collect().await?;
    Ok(Json(Groups { groups }))
}

/// One group in figures: exact lag, due, dead, owners by partition
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), responses((status = 200, body = Group)))]
pub(crate) async fn show(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
) -> Answer<Json<Group>> {
    Ok(Json(app.broker().admin().group(&topic, &group).await?.into()))
}

/// Creates a group before any consumer joins; one that is there stays as it is
#[utoipa::path(put, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = NewGroup,
    responses((status = 200, body = Group, description = "It was there"), (status = 201, body = Group)))]
pub(crate) async fn create(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(request): JsonBody<NewGroup>,
) -> Answer<(StatusCode, Json<Group>)> {
    within("age_ms", request.age_ms.unwrap_or(0), 0, MAX_MS)?;
    let admin = app.broker().admin();
    let was_there = admin.groups(&topic).await?.iter().any(|known| known.as_str() == group);
    admin.create_group(&topic, &group, StartAt::from(&request)).await?;
    let status = if was_there { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(admin.group(&topic, &group).await?.into())))
}

/// Deletes a group with everything that waits for it and its dead letters
///
/// This server leaves the group first, and its streams end; consumers elsewhere must be closed
/// before.
#[utoipa::path(delete, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)),
    responses((status = 204, description = "Deleted"), (status = 409, body = Problem, description = "It has members elsewhere")))]
pub(crate) async fn delete(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
) -> Answer<StatusCode> {
    exists(&app, &topic, &group).await?;
    app.delivery_leases().leave(&topic, Some(&group)).await;
    let admin = app.broker().admin();
    match admin.delete_group(&topic, &group).await {
        Ok(_) => {
            app.delivery_leases().forget_policies(&topic, Some(&group)).await?;
            app.forget_series(&topic, Some(&group));
            Ok(StatusCode::NO_CONTENT)
        }
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let detail = error.context().to_owned();
            Err(Problem::http(StatusCode::CONFLICT, ErrorKind::Invalid, detail))
        }
        Err(error) => Err(error.into()),
    }
}

/// Moves a group on every partition; its owners open again there
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/reset", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = ResetGroup,
    responses((status = 200, body = Group)))]
pub(crate) async fn reset(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(request): JsonBody<ResetGroup>,
) -> Answer<Json<Group>> {
    let to = position(&request)?;
    exists(&app, &topic, &group).await?;
    let admin = app.broker().admin();
    admin.reset_group(&topic, &group, Reset { to, drop_due: request.drop_due }).await?;
    app.events().tell(SystemEvent::GroupReset { topic: topic.clone(), group: group.clone() });
    Ok(Json(admin.group(&topic, &group).await?.into()))
}

/// Where a reset leads.
pub(super) fn position(request: &ResetGroup) -> Answer<StartPosition> {
    Ok(match (request.age_ms, request.time_ms, request.to) {
        (Some(_), Some(_), _) => return Err(Problem::field("time_ms", "give age_ms or time_ms, not both")),
        (Some(age), None, _) => StartPosition::Age(Duration::from_millis(within("age_ms", age, 0, MAX_MS)?)),
        (None, Some(time), _) => {
            StartPosition::After(RecordId::before_ms(within("time_ms", time, 0, MAX_COUNT)?))
        }
        (None, None, Start::Oldest) => StartPosition::Start,
        (None, None, Start::Newest) => StartPosition::End,
    })
}

/// Everyone who is a member of a group now
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/members", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), responses((status = 200, body = Members)))]
pub(crate) async fn members(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
) -> Answer<Json<Members>> {
    let info = app.broker().admin().group(&topic, &group).await?;
    let mut members: Vec<_> = info.members.into_iter().map(Member::from).collect();
    let (name, clients) = app.delivery_leases().clients((&topic, &group)).unzip();
    if let Some(member) = members.iter_mut().find(|member| Some(&member.name) == name.as_ref()) {
        member.clients = clients.unwrap_or_default();
    }
    Ok(Json(Members { members }))
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sort {
    /// By partition and place.
    #[default]
    Id,
    /// By attempts.
    Attempt,
    /// By when they are due; running ones first.
    Due,
    /// By how long ago they were sent.
    Age,
    /// By how long their owner has had them; those that wait first.
    Idle,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// How to sort; by place unless set.
    #[param(inline)]
    sort: Option<Sort>,
    /// Largest first.
    descending: Option<bool>,
    /// Only records with at least this many attempts, the next one included.
    #[param(minimum = 0, maximum = 4_294_967_295_u64)]
    min_attempt: Option<u32>,
    /// Only records that were sent at least this long ago.
    #[param(maximum = 3_155_760_000_000_u64)]
    min_age_ms: Option<u64>,
    /// Only records that their owner has had for at least this long; 0: also those that wait.
    #[param(maximum = 3_155_760_000_000_u64)]
    min_idle_ms: Option<u64>,
    /// How many to leave out at the front.
    #[param(minimum = 0, maximum = 10_000_000)]
    skip: Option<u64>,
    /// How many to show; 100 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
}

/// Records of a group that wait for another attempt, sorted and paged
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/pending", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path), Wanted), responses((status = 200, body = PendingList)))]
pub(crate) async fn pending(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    Query(wanted): Query<Wanted>,
) -> Answer<Json<PendingList>> {
    let sort = match wanted.sort.unwrap_or_default() {
        Sort::Id => PendingSort::Id,
        Sort::Attempt => PendingSort::Attempt,
        Sort::Due => PendingSort::Due,
        Sort::Age => PendingSort::Age,
        Sort::Idle => PendingSort::Idle,
    };
    let query = PendingQuery {
        sort,
        descending: wanted.descending.unwrap_or(false),
        min_attempt: wanted.min_attempt.unwrap_or(0),
        min_age: Duration::from_millis(within("min_age_ms", wanted.min_age_ms.unwrap_or(0), 0, MAX_MS)?),
        min_idle: Duration::from_millis(within("min_idle_ms", wanted.min_idle_ms.unwrap_or(0), 0, MAX_MS)?),
        skip: usize::try_from(within("skip", wanted.skip.unwrap_or(0), 0, 10_000_000)?).unwrap_or(usize::MAX),
        max: usize::try_from(within("max", wanted.max.unwrap_or(100), 1, 1000)?).unwrap_or(1000),
    };
    exists(&app, &topic, &group).await?;
    Ok(Json(app.broker().admin().pending(&topic, &group, query).await?.into()))
}

/// Takes a partition away from its owner; the member that should have it takes it next
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/partitions/{partition}/release", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path), ("partition" = u32, Path, minimum = 0, maximum = 4095)),
    responses((status = 204, description = "Released")))]
pub(crate) async fn release(
    State(app): State<App>,
    Path((topic, group, partition)): Path<(String, String, String)>,
) -> Answer<StatusCode> {
    let partition: u32 =
        partition.parse().map_err(|_| Problem::field("partition", "a partition is a number from 0 on"))?;
    exists(&app, &topic, &group).await?;
    match app.broker().admin().force_release(&topic, &group, partition).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => {
            let detail = format!("partition {partition} of group {group} never had an owner");
            Err(Problem::http(StatusCode::NOT_FOUND, ErrorKind::NotFound, detail).at("partition"))
        }
    }
}

/// The group is there, or 404.
pub(super) async fn exists(app: &App, topic: &str, group: &str) -> Answer<()> {
    app.broker().admin().group(topic, group).await?;
    Ok(())
}
