//! `produce` over HTTP: one request at a time, so that order holds, with everything that came
//! in between. A request whose answer is lost is sent again under its key, which the server takes
//! once, also after it was killed and started anew.

use super::client::Api;
use super::topic_path;
use crate::protocol::{Event, Input};
use crate::wire::{Out, lines};
use crate::{PACE, PATIENCE};
use anyhow::Result;
use firth::Error;
use serde_json::{Value, json};
use std::time::Instant;

/// Messages of one request.
const BATCH: usize = 500;
/// Text of one request; the server takes 32 MiB unless told otherwise.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

pub(super) async fn run(api: &Api, topic: &str) -> Result<()> {
    let mut input = lines::<Input>(std::io::stdin());
    let out = Out::new(std::io::stdout());
    let path = format!("{}/records", topic_path(topic));
    let mut taken = Vec::new();
    let mut trouble = None;
    while trouble.is_none() && input.recv_many(&mut taken, BATCH).await > 0 {
        let mut batch = Vec::new();
        for line in taken.drain(..) {
            match line {
                Ok(message) => batch.push(message),
                Err(error) => trouble = Some(error),
            }
        }
        for part in parts(&batch) {
            for event in deliver(api, &path, part).await {
                out.say(&event).await?;
            }
        }
    }
    out.end()?;
    trouble.map_or(Ok(()), Err)
}

/// Cuts where the text gets too long.
fn parts(batch: &[Input]) -> impl Iterator<Item = &[Input]> {
    let mut room = BATCH_BYTES;
    batch.chunk_by(move |before, _| {
        let fits = room > before.body.len();
        room = if fits { room - before.body.len() } else { BATCH_BYTES };
        fits
    })
}

/// Outcome of each message.
async fn deliver(api: &Api, path: &str, batch: &[Input]) -> Vec<Event> {
    let answer = |sent: &Result<(), Failed>, input: &Input| match sent {
        Ok(()) => Event::SentOk { id: input.id.clone() },
        Err(Failed { definite }) => Event::SentErr { id: input.id.clone(), definite: *definite },
    };
    let sent = patient(api, path, batch).await;
    if batch.len() == 1 || !matches!(sent, Err(Failed { definite: true })) {
        return batch.iter().map(|input| answer(&sent, input)).collect();
    }
    // One bad message refuses all of a request.
    let mut events = Vec::with_capacity(batch.len());
    for input in batch {
        events.push(answer(&patient(api, path, std::slice::from_ref(input)).await, input));
    }
    events
}

struct Failed {
    definite: bool,
}

/// Sends until an answer says how it went.
async fn patient(api: &Api, path: &str, batch: &[Input]) -> Result<(), Failed> {
    let body: Vec<Value> = batch.iter().map(message).collect();
    let body = bytes::Bytes::from(Value::from(body).to_string());
    let key = format!("driver-{:032x}", fastrand::u128(..));
    let give_up = Instant::now() + PATIENCE;
    let mut failures = 0;
    let mut definite = true;
    loop {
        let Err(error) = api.send_once(&key, path, body.clone()).await else { return Ok(()) };
        definite &= !error.may_have_happened();
        if !may_try_again(&error) || Instant::now() >= give_up {
            tracing::warn!(%error, count = batch.len(), "messages were not acknowledged");
            return Err(Failed { definite });
        }
        failures += 1;
        tokio::time::sleep(PACE.delay(failures)).await;
    }
}

fn may_try_again(error: &Error) -> bool {
    error.is_retryable() || error.may_have_happened()
}

fn message(input: &Input) -> Value {
    let Input { id, key, body, sha } = input;
    let mut message = json!({ "payload": body, "headers": { "id": id, "sha": sha } });
    if let Some(key) = key {
        message["key"] = key.as_str().into();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_cut_by_their_size_and_lose_nothing() {
        let input =
            |n: usize| Input { id: n.to_string(), key: None, body: "x".repeat(1 << 20), sha: String::new() };
        let batch: Vec<Input> = (0..10).map(input).collect();
        let parts: Vec<&[Input]> = parts(&batch).collect();
        assert!(parts.iter().all(|part| part.len() <= 5), "a part is at most one message over the limit");
        assert!(parts.len() > 1);
        assert_eq!(parts.concat(), batch);
    }
}
