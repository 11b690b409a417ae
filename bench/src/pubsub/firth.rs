//! Subject `firth` as a subscriber: the client's mux and one subscription to all channels.
//!
//! The buffer holds a whole window, as fred's does; with the default of 1 MiB the oldest would be
//! dropped (and `Lagged` signalled) whenever the consumer is kept waiting under full load.

use super::subject::Subject;
use anyhow::{Context, Result, bail};
use firth_redis::Client;
use firth_redis::mux::{Buffer, Event, Message, OverflowPolicy, Signal, Subscription};

const BUFFER: Buffer = Buffer { bytes: 16 << 20, overflow: OverflowPolicy::DropOldest };

pub(crate) struct Firth {
    client: Client,
    subscription: Option<Subscription>,
}

impl Subject for Firth {
    type Message = Message;

    async fn connect(port: u16) -> Result<Self> {
        let client = Client::connect(format!("redis://127.0.0.1:{port}")).await?;
        Ok(Self { client, subscription: None })
    }

    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        let names = channels.iter().cloned();
        self.subscription = Some(self.client.mux().subscribe(names).buffer(BUFFER).await?);
        Ok(())
    }

    async fn next(&mut self) -> Result<Message> {
        let subscription = self.subscription.as_mut().context("nothing is subscribed")?;
        loop {
            match subscription.next().await.context("the subscription ended")? {
                Event::Message(message) => return Ok(message),
                // What was dropped shows in the share of lost messages.
                Event::Signal(Signal::Lagged { .. }) => {}
                Event::Signal(signal) => bail!("the subscription was disturbed: {signal:?}"),
            }
        }
    }

    fn payload(message: &Message) -> &[u8] {
        &message.payload
    }
}
