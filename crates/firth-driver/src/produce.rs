//! `produce`: sends what comes, many at a time, and answers each message once its outcome is known.
//!
//! The producer is idempotent, so that an answer that got lost is asked for again instead of given
//! up. An answer is never better than what the engine said: `definite` only if no try of the
//! message may have been stored.

use crate::protocol::{Event, Input};
use crate::wire::{Out, lines};
use anyhow::Result;
use firth::{Broker, Message, Producer, Receipt};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

/// Messages without an answer; beyond that the input waits.
const IN_FLIGHT: usize = 8192;

pub(crate) async fn open(broker: Broker, topic: &str) -> firth::Result<(Broker, Producer)> {
    let producer = broker.producer(topic).idempotent().name("driver").await?;
    Ok((broker, producer))
}

pub(crate) async fn run((broker, producer): (Broker, Producer)) -> Result<()> {
    let mut input = lines::<Input>(std::io::stdin());
    let out = Out::new(std::io::stdout());
    let mut pending = FuturesUnordered::new();
    let mut open = true;
    let mut trouble = None;
    while open || !pending.is_empty() {
        tokio::select! {
            line = input.recv(), if open && pending.len() < IN_FLIGHT => match line {
                None => open = false,
                // What was taken is still answered.
                Some(Err(error)) => (open, trouble) = (false, Some(error)),
                Some(Ok(message)) => {
                    let id = message.id.clone();
                    match enqueue(&producer, message).await {
                        Ok(sending) => pending.push(async move { (id, sending.await) }),
                        Err(error) => out.say(&answer(id, Err(error))).await?,
                    }
                }
            },
            Some((id, sent)) = pending.next(), if !pending.is_empty() => out.say(&answer(id, sent)).await?,
        }
    }
    producer.close().await?;
    broker.close().await?;
    out.end()?;
    trouble.map_or(Ok(()), Err)
}

async fn enqueue(producer: &Producer, input: Input) -> firth::Result<firth::SendFuture> {
    let Input { id, key, body, sha } = input;
    let message = Message::new(body).header("id", id).header("sha", sha);
    producer
        .enqueue(match key {
            Some(key) => message.key(key),
            None => message,
        })
        .await
}

fn answer(id: String, sent: firth::Result<Receipt>) -> Event {
    match sent {
        Ok(_) => Event::SentOk { id },
        Err(error) => {
            tracing::warn!(%error, id, "a message was not acknowledged");
            Event::SentErr { id, definite: !error.may_have_happened() }
        }
    }
}
