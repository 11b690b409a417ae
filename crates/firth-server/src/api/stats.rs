//! `/v1/stats`: the last 15 minutes or 24 hours in samples, and where everything stands.

use super::body::{Json, Query, within};
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::stats::Window;
use crate::wire::{GroupStats, MAX_COUNT, StatsShown, TopicStats};
use axum::Extension;
use axum::extract::State;
use firth::TopicName;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// How much of the past.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
pub(crate) enum Past {
    /// 15 minutes, a second each.
    #[default]
    #[serde(rename = "15m")]
    #[schema(rename = "15m")]
    QuarterHour,
    /// 24 hours, a minute each.
    #[serde(rename = "24h")]
    #[schema(rename = "24h")]
    Day,
}

/// What groups are sorted by, the largest first.
#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GroupOrder {
    /// Settled records per second.
    #[default]
    Busy,
    /// Records that are not settled.
    Lag,
    /// Dead letters.
    Dead,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatsQuery {
    /// How much of the past; 15 minutes unless set.
    #[param(inline)]
    window: Option<Past>,
    /// Only samples that begin after this time: `time_ms` of the answer before.
    #[param(maximum = 9_007_199_254_740_991_u64)]
    after_ms: Option<u64>,
    /// Only this topic and its groups, with samples of each.
    #[param(min_length = 1, max_length = 128, pattern = "^\\.?[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*\\.?$")]
    topic: Option<String>,
    /// What groups are sorted by; the busiest first unless set.
    #[param(inline)]
    sort: Option<GroupOrder>,
    /// At most this many topics and groups; 20 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
}

/// Rates, lag, handling time, dead letters, memory and disk over time, without a database
#[utoipa::path(get, path = "/v1/stats", tag = "system", params(StatsQuery),
    responses((status = 200, body = StatsShown)))]
pub(crate) async fn stats(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<StatsQuery>,
) -> Answer<Json<StatsShown>> {
    let max = usize::try_from(within("max", asked.max.unwrap_or(20), 1, 1000)?).unwrap_or(1000);
    let after_ms = within("after_ms", asked.after_ms.unwrap_or(0), 0, MAX_COUNT)?;
    let topic = asked.topic.map(TopicName::new).transpose();
    let topic = topic.map_err(|error| Problem::from(error).at("topic"))?;
    let topic = topic.as_ref().map(TopicName::as_str);
    let window = match asked.window.unwrap_or_default() {
        Past::QuarterHour => Window::Fine,
        Past::Day => Window::Coarse,
    };
    app.events().sample_if_old().await;
    let read = app.events().stats().read(window, after_ms, topic);
    let is_meant = |name: &str| caller.covers(name) && topic.is_none_or(|topic| topic == name);
    let mut topics: Vec<TopicStats> = read.topics.into_iter().map(TopicStats::from).collect();
    topics.retain(|shown| is_meant(&shown.topic));
    let mut groups: Vec<GroupStats> = read.groups.into_iter().map(GroupStats::from).collect();
    groups.retain(|shown| is_meant(&shown.topic));
    match asked.sort.unwrap_or_default() {
        GroupOrder::Busy => {}
        GroupOrder::Lag => groups.sort_by_key(|group| std::cmp::Reverse(group.lag)),
        GroupOrder::Dead => groups.sort_by_key(|group| std::cmp::Reverse(group.dead)),
    }
    let topics_sampled = topics.len();
    let groups_sampled = groups.len();
    let lag = groups.iter().map(|group| group.lag).sum();
    let dead = groups.iter().map(|group| group.dead).sum();
    topics.truncate(max);
    groups.truncate(max);
    Ok(Json(StatsShown {
        time_ms: read.now_ms,
        step_ms: window.step_ms(),
        topics_total: if caller.covers_all() { read.all_topics } else { topics_sampled },
        topics_sampled,
        groups_sampled,
        lag,
        dead,
        died_24h: caller.covers_all().then_some(read.died),
        total: (caller.covers_all() && topic.is_none()).then(|| read.total.into()),
        topics,
        groups,
    }))
}
