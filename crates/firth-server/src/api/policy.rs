//! `/v1/topics/{topic}/groups/{group}/policy`: how a group that is consumed over HTTP treats
//! failures.

use super::body::{Json, JsonBody, Path, within};
use super::groups::exists;
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::GroupPolicy;
use axum::extract::State;
use axum::http::StatusCode;

const MAX_COUNT: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;

/// How failed records of a group are tried again, with every value as it is in effect
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/policy", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), responses((status = 200, body = GroupPolicy)))]
pub(crate) async fn show_policy(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
) -> Answer<Json<GroupPolicy>> {
    exists(&app, &topic, &group).await?;
    Ok(Json(app.delivery_leases().policy((&topic, &group)).await?.in_effect()))
}

/// Sets how failed records of a group are tried again; what is left out has its default
///
/// The group is left, here at once and at other servers as soon as they hear of it: streams end,
/// and the next fetch joins under the new policy.
#[utoipa::path(put, path = "/v1/topics/{topic}/groups/{group}/policy", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = GroupPolicy,
    responses((status = 200, body = GroupPolicy)))]
pub(crate) async fn set_policy(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(policy): JsonBody<GroupPolicy>,
) -> Answer<Json<GroupPolicy>> {
    check(&policy)?;
    exists(&app, &topic, &group).await?;
    app.delivery_leases().set_policy((&topic, &group), Some(&policy)).await?;
    Ok(Json(policy.in_effect()))
}

/// Goes back to the defaults
#[utoipa::path(delete, path = "/v1/topics/{topic}/groups/{group}/policy", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), responses((status = 204, description = "The defaults hold")))]
pub(crate) async fn drop_policy(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
) -> Answer<StatusCode> {
    exists(&app, &topic, &group).await?;
    app.delivery_leases().set_policy((&topic, &group), None).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check(policy: &GroupPolicy) -> Answer<()> {
    let counts = [
        ("max_attempts", policy.max_attempts, MAX_COUNT),
        ("backoff_ms", policy.backoff_ms, DAY_MS),
        ("max_backoff_ms", policy.max_backoff_ms, DAY_MS),
        ("max_crashes", policy.max_crashes, MAX_COUNT),
    ];
    for (field, count, most) in counts {
        if let Some(count) = count {
            within(field, count, 1, most)?;
        }
    }
    for (field, value, least, most) in
        [("factor", policy.factor, 1.0, 100.0), ("jitter", policy.jitter, 0.0, 1.0)]
    {
        if value.is_some_and(|value| !(least..=most).contains(&value)) {
            return Err(Problem::field(field, format!("{field} is {least} to {most}")).limit(most as u64));
        }
    }
    Ok(())
}
