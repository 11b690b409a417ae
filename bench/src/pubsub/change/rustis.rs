//! Subject `rustis`: a cluster client, its pub/sub stream, and its own automatic resubscription.

use super::subject::{Follower, Heard};
use anyhow::{Context, Result};
use futures_util::StreamExt;
use rustis::client::{Client, PubSubStream};
use rustis::commands::StringCommands;
use rustis::resp::Value;
use std::net::SocketAddr;

pub(crate) struct Rustis {
    client: Client,
    stream: PubSubStream,
}

impl Follower for Rustis {
    type Reader = Client;

    async fn connect(nodes: &[SocketAddr]) -> Result<Self> {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let client = Client::connect(format!("redis+cluster://{}", nodes.join(","))).await?;
        let stream = client.create_pub_sub();
        Ok(Self { client, stream })
    }

    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        // One by one: names of several slots cannot go into one command.
        for channel in channels {
            self.stream.ssubscribe(channel).await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Heard> {
        let message = self.stream.next().await.context("the stream of messages ended")??;
        Heard::message(message.channel(), message.payload())
    }

    fn reader(&self) -> Client {
        self.client.clone()
    }

    async fn get(reader: &mut Client, key: &str) -> Result<Option<Vec<u8>>> {
        match reader.get::<Value>(key).await? {
            Value::BulkString(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }
}
