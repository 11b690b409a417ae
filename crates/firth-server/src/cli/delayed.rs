//! `firth topic delayed`, `cancel` and `deliver`: messages that wait for their time.

use super::output::{json, line, plain, table};
use super::units;
use crate::client::{Client, topic_path};
use crate::wire::{DelayedChanges, DelayedList, DelayedPick, DelayedWhere, Topic};
use axum::http::Method;
use firth::{Error, ErrorKind, Result};

pub(super) async fn list(
    client: &Client,
    topic: &str,
    partition: Option<u32>,
    max: u64,
    as_json: bool,
) -> Result<()> {
    let partitions = match partition {
        Some(partition) => partition..partition.saturating_add(1),
        None => 0..client.get::<Topic>(&topic_path(topic)).await?.partitions,
    };
    let mut found = Vec::new();
    for partition in partitions {
        let path = format!("{}/delayed/messages?partition={partition}&max={max}", topic_path(topic));
        found.extend(client.get::<DelayedList>(&path).await?.messages);
    }
    found.sort_by_key(|message| message.due_ms);
    if as_json {
        return found.iter().try_for_each(json);
    }
    let rows = found.iter().map(|message| {
        let key = message.key.as_deref().map_or("-".to_owned(), plain);
        [message.id.clone(), units::age(message.due_ms), key, plain(message.text())]
    });
    table(["ID", "DUE IN", "KEY", "PAYLOAD"], rows.collect())
}

/// Cancels or delivers messages. Any that is elsewhere afterwards makes the command fail.
pub(super) async fn change(
    client: &Client,
    topic: &str,
    ids: Vec<String>,
    wanted: DelayedWhere,
    as_json: bool,
) -> Result<()> {
    let verb = if wanted == DelayedWhere::Cancelled { "cancel" } else { "deliver" };
    let path = format!("{}/delayed/messages/{verb}", topic_path(topic));
    let changes: DelayedChanges = client.send(Method::POST, &path, &DelayedPick { ids }).await?;
    for message in &changes.messages {
        match as_json {
            true => json(message)?,
            false => {
                let before = if message.changed { "" } else { " before" };
                let word = message.state.word();
                let before = if message.state == DelayedWhere::Missing { "" } else { before };
                line(&format!("{}: {word}{before}", message.id))?;
            }
        }
    }
    let others = changes.messages.iter().filter(|message| message.state != wanted).count();
    if others == 0 {
        return Ok(());
    }
    let context = format!("{others} of {} messages could not be {}", changes.messages.len(), wanted.word());
    Err(Error::new(ErrorKind::NotFound, context))
}
