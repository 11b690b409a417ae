//! [`LossyNats`]: plain subjects as a source. What is published while no node listens is missed:
//! the status says so, and counts the times.

use super::config::NatsConfig;
use super::read::read;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::pump::Limits;
use crate::source::{ChangeStream, NoPlace, Opening, Policy, Source, Step};
use async_nats::{Client, Event, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{SelectAll, select_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Messages that wait in the client, at most; the next ones are dropped, and that is told.
const WAITING: usize = 1_024;

/// How long the server may take to confirm the subscriptions.
const CONFIRMED: Duration = Duration::from_secs(2);

/// Plain subjects as a source.
#[derive(Debug)]
pub struct LossyNats {
    config: Arc<NatsConfig>,
    /// Numbers the messages of all sessions under one epoch.
    count: Arc<AtomicU64>,
}

impl LossyNats {
    /// The subjects of this source.
    pub fn new(config: Arc<NatsConfig>) -> Self {
        Self { config, count: Arc::default() }
    }
}

impl Source for LossyNats {
    type Place = NoPlace;
    type Stream = Listening;

    fn name(&self) -> &str {
        &self.config.name
    }

    fn policy(&self) -> &Policy {
        &self.config.policy
    }

    fn collections(&self) -> Vec<String> {
        self.config.collections()
    }

    fn limits(&self) -> Limits {
        self.config.limits.clone()
    }

    async fn open(&self, place: Option<&NoPlace>, context: &Opening<'_>) -> Result<(Listening, NoPlace)> {
        let progress = context.progress;
        progress.lossy();
        if place.is_some() {
            // Before this session no node listened.
            progress.gap();
        }
        let gaps = progress.clone();
        let options = self.config.options()?.subscription_capacity(WAITING).event_callback(move |event| {
            if matches!(event, Event::Disconnected | Event::SlowConsumer(_)) {
                gaps.gap();
            }
            async {}
        });
        let client = self.config.connect(options).await?;
        let mut subscribers = Vec::new();
        for subject in &self.config.subjects {
            let subscriber = client.subscribe(subject.clone()).await;
            subscribers.push(
                subscriber.map_err(|error| {
                    Error::unavailable("a subject cannot be subscribed").with_source(error)
                })?,
            );
        }
        listens(&client).await?;
        let messages = select_all(subscribers);
        let (config, count) = (self.config.clone(), self.count.clone());
        Ok((Listening { config, _client: client, messages, count, epoch: context.epoch }, NoPlace {}))
    }
}

/// Waits until the server has taken in the subscriptions: a message to ourselves comes behind them.
/// A user without the right to an inbox waits for as long as that takes at most.
async fn listens(client: &Client) -> Result<()> {
    let gone =
        |error: &dyn std::fmt::Display| Error::unavailable(format!("the NATS server is gone: {error}"));
    let inbox = client.new_inbox();
    let mut own = client.subscribe(inbox.clone()).await.map_err(|error| gone(&error))?;
    client.publish(inbox, Bytes::new()).await.map_err(|error| gone(&error))?;
    client.flush().await.map_err(|error| gone(&error))?;
    let _ = tokio::time::timeout(CONFIRMED, own.next()).await;
    Ok(())
}

/// Open subscriptions.
pub struct Listening {
    config: Arc<NatsConfig>,
    _client: Client,
    messages: SelectAll<Subscriber>,
    count: Arc<AtomicU64>,
    epoch: u64,
}

impl Listening {
    fn step(&self, message: &Message) -> Option<Step<NoPlace>> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let position = [self.epoch.to_be_bytes(), number.to_be_bytes()].concat();
        read(&self.config.rules, message, position.into(), Progress::now_ms())
    }
}

impl ChangeStream for Listening {
    type Place = NoPlace;

    async fn next(&mut self) -> Result<Step<NoPlace>> {
        loop {
            match self.messages.next().await {
                Some(message) => {
                    if let Some(step) = self.step(&message) {
                        return Ok(step);
                    }
                }
                None => return Err(Error::unavailable("the NATS client ended")),
            }
        }
    }
}
