//! The receiving half behind NATS: answers requests, or takes what JetStream has stored.
//!
//! ```no_run
//! use firth_router::receive::{Inbox, nats};
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = async_nats::connect("nats://127.0.0.1:4222").await?;
//! let mut inbox = Inbox::default();
//! nats::answer(&client, "syntrix.streamer.events.gw-1", &mut inbox, |event| {
//!     println!("{} {}", event.collection, event.seq);
//!     Ok(()) // Err("why".into()) refuses it: it comes again
//! })
//! .await?;
//! # Ok(()) }
//! ```

use super::Inbox;
use crate::error::{Error, ErrorKind, Result};
use crate::lane::Answer;
use crate::wire::EventIn;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::{Client, HeaderMap};
use futures_util::StreamExt;
use std::time::Duration;

/// How long a stored batch with refused events rests before it comes again.
const REST: Duration = Duration::from_millis(500);

/// Answers the batches that come to a subject, one after the other, until the subscription ends.
/// Dropping it in the middle is safe: a batch without an answer comes again, and the inbox knows
/// what it has.
pub async fn answer(
    client: &Client,
    subject: &str,
    inbox: &mut Inbox,
    mut handle: impl FnMut(&EventIn) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut requests = client.subscribe(subject.to_owned()).await.map_err(broken)?;
    while let Some(request) = requests.next().await {
        let Some(reply) = request.reply else { continue };
        let sent = match inbox.receive_json(&request.payload, &mut handle) {
            Ok(body) => client.publish(reply, body.into()).await,
            Err(error) => {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Service-Error", error.context());
                headers.insert("Nats-Service-Error-Code", "400");
                client.publish_with_headers(reply, headers, Vec::new().into()).await
            }
        };
        sent.map_err(broken)?;
    }
    Ok(())
}

/// Takes batches that JetStream has stored, until its messages end. A batch is acknowledged when
/// all of it was accepted; otherwise it comes again, and only what was refused is handed out again.
///
/// Order per document across refusals needs a consumer with `max_ack_pending: 1`.
pub async fn take(
    consumer: &PullConsumer,
    inbox: &mut Inbox,
    mut handle: impl FnMut(&EventIn) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut messages = consumer.messages().await.map_err(broken)?;
    while let Some(message) = messages.next().await {
        let message = message.map_err(broken)?;
        let verdict = match Inbox::read_json(&message.payload) {
            Ok(batch) => {
                let answers = inbox.receive(&batch, &mut handle);
                let is_done = answers.iter().all(|answer| *answer == Answer::Accepted);
                if is_done { AckKind::Ack } else { AckKind::Nak(Some(REST)) }
            }
            Err(error) => {
                tracing::warn!(%error, "a stored message is no batch and is given up");
                AckKind::Term
            }
        };
        message.ack_with(verdict).await.map_err(broken)?;
    }
    Ok(())
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "the NATS server cannot be used").with_source(error)
}
