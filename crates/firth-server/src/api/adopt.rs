//! `/v1/topics/{topic}/adopt`: a Redis stream that some other program writes becomes a topic.

use super::body::{Json, JsonBody, Path, within};
use super::topics::configure;
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{Adoption, MAX_MS, Start, Topic, TopicSpec};
use axum::extract::State;
use axum::http::StatusCode;
use firth::{ErrorKind, StartAt, TopicConfig};
use std::time::Duration;

/// The most consumer groups to import at once.
const MAX_IMPORTS: usize = 100;
/// The longest key of a stream, and name of a field or of an old group.
const MAX_TEXT: usize = 1024;

/// Lets a topic follow a Redis stream that another program writes with XADD, and imports where its
/// consumer groups stand
#[utoipa::path(post, path = "/v1/topics/{topic}/adopt", tag = "topics", params(("topic" = String, Path)), request_body = Adoption,
    responses((status = 200, body = Topic), (status = 409, body = Problem, description = "The engine has no streams, the topic is there, or the key holds something else")))]
pub(crate) async fn adopt(
    State(app): State<App>,
    Path(topic): Path<String>,
    JsonBody(request): JsonBody<Adoption>,
) -> Answer<Json<Topic>> {
    let texts = [
        ("stream", &request.stream),
        ("key_field", &request.key_field),
        ("payload_field", &request.payload_field),
    ];
    for (field, text) in texts {
        if let Some(text) = text {
            within(field, text.len() as u64, 1, MAX_TEXT as u64)?;
        }
    }
    within("import_groups", request.import_groups.len() as u64, 0, MAX_IMPORTS as u64)?;
    let spec = TopicSpec {
        retention_ms: request.retention_ms.map(Some),
        retention_records: request.retention_records.map(Some),
        retention_bytes: request.retention_bytes.map(Some),
        ..TopicSpec::default()
    };
    let start = match (request.age_ms, request.start) {
        (Some(age), _) => StartAt::Age(Duration::from_millis(within("age_ms", age, 0, MAX_MS)?)),
        (None, Start::Oldest) => StartAt::Oldest,
        (None, Start::Newest) => StartAt::Newest,
    };
    let mut adopting = app.broker().adopt_stream(&topic).start_at(start);
    adopting = adopting.retention(configure(TopicConfig::default(), &spec)?.retention);
    if let Some(stream) = request.stream {
        adopting = adopting.stream(stream);
    }
    if let Some(field) = request.key_field {
        adopting = adopting.key_field(field);
    }
    if let Some(field) = request.payload_field {
        adopting = adopting.payload_field(field);
    }
    if request.remove_entries {
        adopting = adopting.remove_entries();
    }
    for group in request.import_groups {
        within("import_groups.from", group.from.len() as u64, 1, MAX_TEXT as u64)?;
        let to = group.to.unwrap_or_else(|| group.from.clone());
        adopting = adopting.import_group_as(group.from, to);
    }
    match adopting.await {
        Ok(_) => Ok(Json(app.broker().admin().topic(&topic).await?.into())),
        // The request is right; what is there does not fit it.
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) => {
            Err(Problem::http(StatusCode::CONFLICT, error.kind(), error.context().to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}
