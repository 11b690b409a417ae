//! `/v1/topics`: list, show, create, delete.

use super::body::{Json, JsonBody, Path};
use crate::app::App;
use crate::problem::Answer;
use crate::wire::{Topic, TopicSpec, Topics};
use axum::extract::State;
use axum::http::StatusCode;
use firth::{Error, ErrorKind, Retention, TopicConfig};
use std::time::Duration;

pub(crate) async fn list(State(app): State<App>) -> Answer<Json<Topics>> {
    let topics = app.broker().admin().topics().await?;
    Ok(Json(Topics { topics: topics.into_iter().map(Topic::from).collect() }))
}

pub(crate) async fn show(State(app): State<App>, Path(topic): Path<String>) -> Answer<Json<Topic>> {
    Ok(Json(app.broker().admin().topic(&topic).await?.into()))
}

/// Creates it, or confirms that it is there as wanted.
pub(crate) async fn create(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(spec): JsonBody<TopicSpec>,
) -> Answer<(StatusCode, Json<Topic>)> {
    let config = configure(TopicConfig::default(), &spec);
    let status = match app.broker().create_topic(&topic).config(config).await {
        Ok(_) => {
            tracing::info!(topic, "topic created");
            StatusCode::CREATED
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = app.broker().topic(&topic).await?.config;
            if configure(there.clone(), &spec) != there {
                let context = format!("topic {topic} is there with other settings: nothing was changed");
                return Err(Error::new(ErrorKind::AlreadyExists, context).into());
            }
            StatusCode::OK
        }
        Err(error) => return Err(error.into()),
    };
    Ok((status, Json(app.broker().admin().topic(&topic).await?.into())))
}

fn configure(config: TopicConfig, spec: &TopicSpec) -> TopicConfig {
    TopicConfig {
        partitions: spec.partitions.unwrap_or(config.partitions),
        retention: spec.retention_ms.map_or(config.retention, |ms| Retention::For(Duration::from_millis(ms))),
        max_payload: spec.max_payload.unwrap_or(config.max_payload),
        ..config
    }
}

pub(crate) async fn delete(State(app): State<App>, Path(topic): Path<String>) -> Answer<StatusCode> {
    app.broker().topic(&topic).await?;
    app.desk().forget(&topic).await;
    app.forget_producer(&topic);
    app.broker().delete_topic(&topic).await?;
    tracing::info!(topic, "topic deleted");
    Ok(StatusCode::NO_CONTENT)
}
