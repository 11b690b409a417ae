//! `/v1/topics`: list, show, create, change, trim, delete, and what is delayed.

use super::body::{Json, JsonBody, Path, Query, within};
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::wire::{
    Delayed, MAX_COUNT, MAX_MS, Topic, TopicChange, TopicSpec, Topics, TrimRequest, TrimmedReport, limits,
    millis,
};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use firth::{Error, ErrorKind, Limits, Retention, TopicConfig, TopicName, TrimTo};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// How many topics are asked about at a time.
const TOPICS_AT_ONCE: usize = 8;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TopicsQuery {
    /// Go on after this name: `next` of the answer before.
    #[param(min_length = 1, max_length = 128, pattern = "^\\.?[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*\\.?$")]
    after: Option<String>,
    /// At most this many; all unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
    /// Only names that contain this text.
    #[param(max_length = 128)]
    contains: Option<String>,
}

/// Topics that the caller's token covers, in figures: all of them, or a page by name
#[utoipa::path(get, path = "/v1/topics", tag = "topics", params(TopicsQuery),
    responses((status = 200, body = Topics)))]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<TopicsQuery>,
) -> Answer<Json<Topics>> {
    let max = asked.max.map(|max| within("max", max, 1, 1000)).transpose()?;
    let max = max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(1000));
    let after = asked.after.map(TopicName::new).transpose();
    let after = after.map_err(|error| Problem::from(error).at("after"))?;
    let contains = asked.contains.unwrap_or_default();
    if contains.chars().count() > 128 {
        return Err(Problem::field("contains", "a name has at most 128 characters").limit(128));
    }
    let mut names: Vec<_> = app.broker().list_topics().await?.into_iter().map(|info| info.name).collect();
    names.retain(|name| caller.covers(name.as_str()) && name.as_str().contains(&contains));
    names.retain(|name| after.as_ref().is_none_or(|after| name.as_str() > after.as_str()));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    let next = names.get(max.saturating_sub(1)).filter(|_| names.len() > max).map(ToString::to_string);
    names.truncate(max);
    let admin = &app.broker().admin();
    let looks = stream::iter(names).map(|name| async move { admin.topic(name.as_str()).await });
    let looks = looks.buffered(TOPICS_AT_ONCE).filter_map(|look| async move {
        match look {
            // It was deleted since it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            look => Some(look.map(Topic::from)),
        }
    });
    Ok(Json(Topics { topics: looks.try_collect().await?, next }))
}

/// One topic in figures, with each of its partitions
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path)),
    responses((status = 200, body = Topic)))]
pub(crate) async fn show(State(app): State<App>, Path(topic): Path<String>) -> Answer<Json<Topic>> {
    Ok(Json(Topic::in_detail(app.broker().admin().topic(&topic).await?)))
}

/// Creates a topic, or confirms that it is there as wanted
#[utoipa::path(put, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path)), request_body = TopicSpec,
    responses((status = 200, body = Topic, description = "It is there as wanted"), (status = 201, body = Topic),
        (status = 409, body = Problem, description = "It is there with other settings")))]
pub(crate) async fn create(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(spec): JsonBody<TopicSpec>,
) -> Answer<(StatusCode, Json<Topic>)> {
    let config = configure(app.usual_topic(), &spec)?;
    let status = match app.broker().create_topic(&topic).config(config).await {
        Ok(_) => {
            tracing::info!(topic, "topic created");
            StatusCode::CREATED
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = app.broker().topic(&topic).await?.config;
            if configure(there.clone(), &spec)? != there {
                let context = format!(
                    "topic {topic} is there with other settings, and nothing was changed: PATCH, or \
                     `firth topic change`, changes what can be"
                );
                return Err(Error::new(ErrorKind::AlreadyExists, context).into());
            }
            StatusCode::OK
        }
        Err(error) => return Err(error.into()),
    };
    Ok((status, Json(app.broker().admin().topic(&topic).await?.into())))
}

/// Changes what is named, and nothing else. Null ends a retention; partitions can only become more
#[utoipa::path(patch, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path)), request_body = TopicChange,
    responses((status = 200, body = Topic), (status = 409, body = Problem, description = "Partitions cannot become fewer, keys keep their mapping")))]
pub(crate) async fn change(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(change): JsonBody<TopicChange>,
) -> Answer<Json<Topic>> {
    let there = app.broker().topic(&topic).await?.config;
    let wanted = configure(there.clone(), &change)?;
    wanted.check()?;
    if wanted.partitions < there.partitions {
        let detail = format!("topic {topic} has {} partitions; they can only become more", there.partitions);
        let problem = Problem::http(StatusCode::CONFLICT, ErrorKind::Invalid, detail);
        return Err(problem.at("partitions").limit(u64::from(there.partitions)));
    }
    if wanted.mapping != there.mapping {
        let detail = "how keys find their partitions is fixed when a topic is made";
        return Err(Problem::http(StatusCode::CONFLICT, ErrorKind::Invalid, detail).at("mapping"));
    }
    if wanted.partitions > there.partitions {
        app.broker().grow_topic(&topic, wanted.partitions).await?;
    }
    let altered = |config: &mut TopicConfig| {
        *config = TopicConfig { partitions: config.partitions, mapping: config.mapping, ..wanted.clone() };
    };
    app.broker().alter_topic(&topic, altered).await?;
    Ok(Json(app.broker().admin().topic(&topic).await?.into()))
}

pub(super) fn configure(config: TopicConfig, spec: &TopicSpec) -> Answer<TopicConfig> {
    // What is not named stays, null ends it.
    let number = |field: &str, wanted: Option<Option<u64>>, kept: Option<u64>, max: u64| match wanted {
        None => Ok(kept),
        Some(wanted) => wanted.map(|wanted| within(field, wanted, 0, max)).transpose(),
    };
    let age = |field: &str, wanted: Option<Option<u64>>, kept: Option<Duration>| {
        number(field, wanted, kept.map(millis), MAX_MS).map(|ms| ms.map(Duration::from_millis))
    };
    let kept = limits(config.retention);
    let retention = Limits {
        age: age("retention_ms", spec.retention_ms, kept.age)?,
        records: number("retention_records", spec.retention_records, kept.records, MAX_COUNT)?,
        bytes: number("retention_bytes", spec.retention_bytes, kept.bytes, MAX_COUNT)?,
    };
    let retention = match retention {
        Limits { age: None, records: None, bytes: None } => Retention::Forever,
        Limits { age: Some(age), records: None, bytes: None } => Retention::For(age),
        Limits { age: None, records: Some(records), bytes: None } => Retention::Newest(records),
        Limits { age: None, records: None, bytes: Some(bytes) } => Retention::Bytes(bytes),
        several => Retention::Within(several),
    };
    Ok(TopicConfig {
        partitions: spec.partitions.unwrap_or(config.partitions),
        retention,
        max_payload: spec.max_payload.unwrap_or(config.max_payload),
        lossy: spec.lossy.unwrap_or(config.lossy),
        dead_letters_for: age("dead_letters_ms", spec.dead_letters_ms, config.dead_letters_for)?,
        mapping: spec.mapping.map_or(config.mapping, Into::into),
        ..config
    })
}

/// Deletes a topic with its records, groups and dead letters
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = String, Path)),
    responses((status = 204, description = "Deleted")))]
pub(crate) async fn delete(State(app): State<App>, Path(topic): Path<String>) -> Answer<StatusCode> {
    app.broker().topic(&topic).await?;
    app.delivery_leases().leave(&topic, None).await;
    app.forget_producer(&topic);
    app.broker().delete_topic(&topic).await?;
    app.delivery_leases().forget_policies(&topic, None).await?;
    app.forget_series(&topic, None);
    tracing::info!(topic, "topic deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// Removes the oldest records now
#[utoipa::path(post, path = "/v1/topics/{topic}/trim", tag = "topics", params(("topic" = String, Path)), request_body = TrimRequest,
    responses((status = 200, body = TrimmedReport)))]
pub(crate) async fn trim(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(request): JsonBody<TrimRequest>,
) -> Answer<Json<TrimmedReport>> {
    let to = match (request.keep, request.older_than_ms) {
        (Some(keep), None) => TrimTo::Keep(within("keep", keep, 0, MAX_COUNT)?),
        (None, Some(age)) => {
            TrimTo::OlderThan(Duration::from_millis(within("older_than_ms", age, 0, MAX_MS)?))
        }
        _ => return Err(Problem::field("keep", "give exactly one of keep and older_than_ms")),
    };
    let (removed, held_back) = app.broker().admin().trim(&topic, to, request.lossy).await?;
    Ok(Json(TrimmedReport { removed, held_back }))
}

/// Messages that wait for their time, by partition
#[utoipa::path(get, path = "/v1/topics/{topic}/delayed", tag = "topics", params(("topic" = String, Path)),
    responses((status = 200, body = Delayed)))]
pub(crate) async fn delayed(State(app): State<App>, Path(topic): Path<String>) -> Answer<Json<Delayed>> {
    Ok(Json(app.broker().admin().topic(&topic).await?.into()))
}
