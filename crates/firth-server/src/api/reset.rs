//! `/v1/topics/{topic}/groups/{group}/reset/preview`: what a reset would do, before it does it.
//!
//! Ids are running numbers without holes, so counts are subtractions. A record that was settled
//! ahead of the frontier counts as one that waits.

use super::body::{Json, JsonBody, Path};
use super::groups::position;
use crate::app::App;
use crate::problem::Answer;
use crate::wire::{ResetGroup, ResetPart, ResetPreview, unix_ms};
use axum::extract::State;
use firth::{Error, ErrorKind, GroupPartition, PartitionInfo, RecordId, StartPosition};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::time::SystemTime;

const PARTITIONS_AT_ONCE: usize = 8;

/// How many records a reset would repeat and skip; it changes nothing
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/reset/preview", tag = "groups",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = ResetGroup,
    responses((status = 200, body = ResetPreview)))]
pub(crate) async fn preview(
    State(app): State<App>,
    Path((topic, group)): Path<(String, String)>,
    JsonBody(request): JsonBody<ResetGroup>,
) -> Answer<Json<ResetPreview>> {
    let to = position(&request)?;
    let info = app.broker().admin().group(&topic, &group).await?;
    let kept = app.broker().admin().topic(&topic).await?;
    let dropped = if request.drop_due { info.due() } else { 0 };
    let parts = stream::iter(info.partitions).map(|part| {
        let kept = kept.partitions.iter().find(|kept| kept.index == part.index);
        let app = &app;
        let topic = topic.as_str();
        async move { compare(app, (topic, kept.ok_or_else(changed)?), &part, to).await }
    });
    let partitions: Vec<ResetPart> = parts.buffered(PARTITIONS_AT_ONCE).try_collect().await?;
    Ok(Json(ResetPreview {
        repeats: partitions.iter().map(|part| part.repeats).sum(),
        skips: partitions.iter().map(|part| part.skips).sum(),
        dropped,
        partitions,
    }))
}

/// The topic was made anew with fewer partitions between two reads.
fn changed() -> Error {
    Error::new(ErrorKind::NotFound, "the topic was deleted meanwhile")
}

/// Where the group stands on a partition against where it would go on.
async fn compare(
    app: &App,
    (topic, kept): (&str, &PartitionInfo),
    part: &GroupPartition,
    to: StartPosition,
) -> firth::Result<ResetPart> {
    let goal = match to {
        StartPosition::End => kept.last.seq,
        StartPosition::After(id) => goal_of(app, topic, kept, id).await?,
        StartPosition::Age(age) => {
            let since = unix_ms(SystemTime::now()).saturating_sub(crate::wire::millis(age));
            goal_of(app, topic, kept, RecordId::before_ms(since)).await?
        }
        _ => kept.trimmed.seq,
    };
    // Records before the oldest kept one cannot come again.
    let frontier = part.frontier.seq.max(kept.trimmed.seq);
    let repeats = frontier.saturating_sub(goal);
    let skips = goal.saturating_sub(frontier);
    Ok(ResetPart { partition: part.index, repeats, skips: skips.min(part.waiting) })
}

/// The running number before the first record after `id`, or that of the newest record.
async fn goal_of(app: &App, topic: &str, kept: &PartitionInfo, id: RecordId) -> firth::Result<u64> {
    let first = app.broker().admin().browse(topic, kept.index, id, 1).await?;
    Ok(first.first().map_or(kept.last.seq, |record| record.id().seq.saturating_sub(1)))
}
