//! `/v1/claims/{service}/takeovers`: who had which unit when.

use super::body::{Json, Path, Query, within};
use crate::app::App;
use crate::problem::Answer;
use crate::wire::TakeoverList;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

/// The most changes of one answer.
const MAX: u64 = 1000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TakeoversQuery {
    /// At most this many; 100 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
}

/// What happened to the units of a service, the newest first, as far as this server has looked
///
/// A server keeps the last 2000 changes of all services in memory. Of several changes of a unit
/// within half a second it may see only the last; `missed` counts the others.
#[utoipa::path(get, path = "/v1/claims/{service}/takeovers", tag = "claims",
    params(("service" = String, Path), TakeoversQuery), responses((status = 200, body = TakeoverList)))]
pub(crate) async fn takeovers(
    State(app): State<App>,
    Path(service): Path<String>,
    Query(asked): Query<TakeoversQuery>,
) -> Answer<Json<TakeoverList>> {
    let max = usize::try_from(within("max", asked.max.unwrap_or(100), 1, MAX)?).unwrap_or(100);
    super::claims::there(&app, &service).await?;
    let (changes, since_ms) = app.takeovers().newest(&service, max);
    Ok(Json(TakeoverList { changes, since_ms }))
}
