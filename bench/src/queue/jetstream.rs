//! NATS JetStream by async-nats: publishes with a window of 1 000 acknowledgements, pulls 1 000 at
//! a time, acknowledges each message.

use super::meter::Meter;
use super::place::Place;
use super::subject::{Pace, Subject};
use super::workload::PAYLOAD;
use anyhow::{Context, Result, anyhow};
use async_nats::jetstream::{self, consumer, stream};
use bytes::Bytes;
use futures_util::StreamExt;
use std::collections::VecDeque;
use std::future::IntoFuture;
use std::sync::Arc;

const SUBJECT: &str = "bench";
const WINDOW: usize = 1000;

pub(crate) struct JetStream {
    client: async_nats::Client,
    context: jetstream::Context,
    consumer: consumer::PullConsumer,
}

impl JetStream {
    pub(crate) async fn open(place: &Place) -> Result<Self> {
        let Place::Nats(nats) = place else { return Err(anyhow!("JetStream needs a nats-server")) };
        let client = async_nats::connect(nats.url()).await.context("connect")?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(std::time::Duration::from_secs(30));
        let storage = if nats.is_on_disk() { stream::StorageType::File } else { stream::StorageType::Memory };
        let config = stream::Config {
            name: SUBJECT.to_owned(),
            subjects: vec![SUBJECT.to_owned()],
            storage,
            ..Default::default()
        };
        let stream =
            context.create_stream(config).await.map_err(|error| anyhow!("make a stream: {error}"))?;
        let config = consumer::pull::Config {
            durable_name: Some("group".to_owned()),
            ack_policy: consumer::AckPolicy::Explicit,
            max_ack_pending: 10_000,
            ..Default::default()
        };
        let consumer =
            stream.create_consumer(config).await.map_err(|error| anyhow!("make a consumer: {error}"))?;
        Ok(Self { client, context, consumer })
    }
}

impl Subject for JetStream {
    async fn produce(&self, meter: &Arc<Meter>, pace: Pace, counts: bool) -> Result<()> {
        let payload = Bytes::from(vec![b'x'; PAYLOAD]);
        let mut waiting = VecDeque::with_capacity(WINDOW);
        let mut ticks = match pace {
            Pace::Full => None,
            Pace::Every(every) => Some(tokio::time::interval(every)),
        };
        for _ in 0..meter.goal() {
            let payload = match &mut ticks {
                None => payload.clone(),
                Some(ticks) => {
                    ticks.tick().await;
                    meter.stamped().into()
                }
            };
            if waiting.len() == WINDOW {
                let first: jetstream::context::PublishAckFuture =
                    waiting.pop_front().context("the window is full")?;
                first.into_future().await?;
                if counts {
                    meter.add(1);
                }
            }
            waiting.push_back(self.context.publish(SUBJECT, payload).await?);
        }
        for ack in waiting {
            ack.into_future().await?;
            if counts {
                meter.add(1);
            }
        }
        Ok(())
    }

    async fn consume(&self, meter: &Arc<Meter>, stamped: bool) -> Result<()> {
        let mut messages = self.consumer.stream().max_messages_per_batch(WINDOW).messages().await?;
        while let Some(message) = messages.next().await {
            let message = message?;
            if stamped {
                meter.sample(&message.payload);
            }
            message.ack().await.map_err(|error| anyhow!("acknowledge: {error}"))?;
            if meter.add(1) {
                break;
            }
        }
        self.client.flush().await?;
        Ok(())
    }
}
