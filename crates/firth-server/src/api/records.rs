//! `POST /v1/topics/{topic}/records`: one message, a JSON array of them, or one per line.
//!
//! Everything is parsed before anything is sent; the answer comes when every message is stored.

use super::body::{Json, Path, Raw, bad, expect_media, parse};
use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::{Outgoing, Placed, Receipts};
use axum::extract::State;
use firth::{ErrorKind, Message, Producer, Result};

/// The most messages of one request.
const MAX_MESSAGES: usize = 10_000;
const LINES: &str = "application/x-ndjson";

pub(crate) async fn produce(
    State(app): State<App>,
    Path(topic): Path<String>,
    raw: Raw,
) -> Answer<Json<Receipts>> {
    let messages = messages(&raw)?;
    let producer = app.producer(&topic).await?;
    match send_all(&producer, messages).await {
        Ok(receipts) => Ok(Json(Receipts { receipts })),
        Err(error) => {
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Closed) {
                app.forget_producer(&topic);
            }
            Err(error.into())
        }
    }
}

fn messages(raw: &Raw) -> Answer<Vec<Message>> {
    expect_media(&raw.media, &["application/json", LINES])?;
    let all: Vec<Outgoing> = if raw.media == LINES {
        let lines = raw.bytes.split(|byte| *byte == b'\n').enumerate();
        let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        lines
            .map(|(index, line)| parse(line).map_err(|problem| at("line", index + 1, problem)))
            .collect::<Answer<_>>()?
    } else if raw.bytes.trim_ascii_start().starts_with(b"[") {
        parse(&raw.bytes)?
    } else {
        vec![parse(&raw.bytes)?]
    };
    if all.is_empty() || all.len() > MAX_MESSAGES {
        return Err(bad(format!("{} messages; a request has 1 to {MAX_MESSAGES}", all.len())));
    }
    let all = all.into_iter().enumerate();
    all.map(|(index, message)| message.into_message().map_err(|error| at("message", index + 1, error.into())))
        .collect()
}

fn at(what: &str, number: usize, mut problem: Problem) -> Problem {
    problem.detail = format!("{what} {number}: {}", problem.detail);
    problem
}

/// Sends all; a failure names the message and says whether earlier ones may be there.
async fn send_all(producer: &Producer, messages: Vec<Message>) -> Result<Vec<Placed>> {
    let mut tickets = Vec::with_capacity(messages.len());
    let mut failure = None;
    for (index, message) in messages.into_iter().enumerate() {
        match producer.enqueue(message).await {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => {
                failure = Some((index, error));
                break;
            }
        }
    }
    let mut placed = Vec::with_capacity(tickets.len());
    for (index, ticket) in tickets.into_iter().enumerate() {
        match ticket.await {
            Ok(receipt) => placed.push(Placed::from(receipt)),
            Err(error) if failure.as_ref().is_none_or(|(first, _)| index < *first) => {
                failure = Some((index, error));
            }
            Err(_) => {}
        }
    }
    match failure {
        None => Ok(placed),
        Some((index, error)) => {
            let error = error.during(format!("message {}", index + 1));
            Err(if placed.is_empty() { error } else { error.with_unknown_outcome() })
        }
    }
}
