//! `/v1/check`: every record read through the engine, partition by partition.

use super::stream::{AsyncNext, Form};
use crate::app::{App, StreamPermit};
use crate::problem::Answer;
use crate::wire::CheckedPartition;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use std::collections::VecDeque;

/// What is left to read.
struct Checking {
    app: App,
    left: VecDeque<(String, u32)>,
    _permit: StreamPermit,
}

struct NextPartition;

impl AsyncNext<Checking> for NextPartition {
    async fn call(&self, state: &mut Checking) -> Option<Bytes> {
        let (topic, partition) = state.left.pop_front()?;
        let admin = state.app.broker().admin();
        let checked = tokio::select! {
            checked = admin.check_partition(&topic, partition) => checked,
            () = state.app.closing().cancelled() => return None,
        };
        let left = state.left.len() as u64;
        let shown = match checked {
            Ok(check) => CheckedPartition {
                topic,
                partition,
                records: check.records,
                bytes: check.bytes,
                groups: check.groups,
                findings: check.findings,
                left,
            },
            Err(error) => {
                let findings = vec![format!("it cannot be read now: {}", error.context())];
                CheckedPartition { topic, partition, findings, left, ..CheckedPartition::default() }
            }
        };
        Some(Form::Lines.entry("partition", &shown))
    }
}

/// Reads every record, retry and dead letter, and names damaged partitions: a line for each
#[utoipa::path(get, path = "/v1/check", tag = "system",
    responses((status = 200, description = "A line for each partition, as it was read",
        content((CheckedPartition = "application/x-ndjson")))))]
pub(crate) async fn check(State(app): State<App>) -> Answer<Response> {
    let permit = app.permit()?;
    let topics = app.broker().list_topics().await?;
    let left =
        topics.iter().flat_map(|topic| (0..topic.config.partitions).map(|n| (topic.name.to_string(), n)));
    let left = left.collect();
    Ok(Form::Lines.answer(Checking { app, left, _permit: permit }, NextPartition))
}
