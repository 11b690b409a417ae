//! `/v1/topics`: list, show, create, change, trim, delete, and what is delayed.

use super::body::{Json, JsonBody, Path, within};
use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Answer, Problem};
use crate::wire::{
    Delayed, MAX_COUNT, MAX_MS, Topic, TopicChange, TopicSpec, Topics, TrimWish, TrimmedReport, limits,
    millis,
};
use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use firth::{Error, ErrorKind, Limits, Retention, TopicConfig, TrimTo};
use std::time::Duration;

/// All topics that the caller's token covers, in figures
#[utoipa::path(get, path = "/v1/topics", tag = "topics", responses((status = 200, body = Topics)))]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<Topics>> {
    let topics = app.broker().admin().topics().await?;
    let seen = topics.into_iter().filter(|topic| caller.covers(topic.info.name.as_str()));
    Ok(Json(Topics { topics: seen.map(Topic::from).collect() }))
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
    app.desk().leave(&topic, None).await;
    app.forget_producer(&topic);
    app.broker().delete_topic(&topic).await?;
    app.desk().forget_policies(&topic, None).await?;
    app.forget_series(&topic, None);
    tracing::info!(topic, "topic deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// Removes the oldest records now
#[utoipa::path(post, path = "/v1/topics/{topic}/trim", tag = "topics", params(("topic" = String, Path)), request_body = TrimWish,
    responses((status = 200, body = TrimmedReport)))]
pub(crate) async fn trim(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(wish): JsonBody<TrimWish>,
) -> Answer<Json<TrimmedReport>> {
    let to = match (wish.keep, wish.older_than_ms) {
        (Some(keep), None) => TrimTo::Keep(within("keep", keep, 0, MAX_COUNT)?),
        (None, Some(age)) => {
            TrimTo::OlderThan(Duration::from_millis(within("older_than_ms", age, 0, MAX_MS)?))
        }
        _ => return Err(Problem::field("keep", "give exactly one of keep and older_than_ms")),
    };
    let (removed, held_back) = app.broker().admin().trim(&topic, to, wish.lossy).await?;
    Ok(Json(TrimmedReport { removed, held_back }))
}

/// Messages that wait for their time, by partition
#[utoipa::path(get, path = "/v1/topics/{topic}/delayed", tag = "topics", params(("topic" = String, Path)),
    responses((status = 200, body = Delayed)))]
pub(crate) async fn delayed(State(app): State<App>, Path(topic): Path<String>) -> Answer<Json<Delayed>> {
    Ok(Json(app.broker().admin().topic(&topic).await?.into()))
}
