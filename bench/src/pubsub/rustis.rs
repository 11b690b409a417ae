//! Subject `rustis` as a subscriber: a client and its pub/sub stream.

use super::subject::Subject;
use anyhow::{Context, Result};
use futures_util::StreamExt;
use rustis::client::{Client, PubSubMessage, PubSubStream};

pub(crate) struct Rustis {
    _client: Client,
    stream: PubSubStream,
}

impl Subject for Rustis {
    type Message = PubSubMessage;

    async fn connect(port: u16) -> Result<Self> {
        let client = Client::connect(format!("redis://127.0.0.1:{port}")).await?;
        let stream = client.create_pub_sub();
        Ok(Self { _client: client, stream })
    }

    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        Ok(self.stream.subscribe(channels).await?)
    }

    async fn next(&mut self) -> Result<PubSubMessage> {
        Ok(self.stream.next().await.context("the stream of messages ended")??)
    }

    fn payload(message: &PubSubMessage) -> &[u8] {
        message.payload()
    }
}
