//! Subject `firth`: the cluster client's mux and one sharded subscription to all channels.

use super::subject::{Follower, Heard, numbers};
use anyhow::{Context, Result};
use bytes::Bytes;
use firth_redis::mux::{Event, Signal, Subscription};
use firth_redis::{Client, cmd};
use std::net::SocketAddr;

pub(crate) struct Firth {
    client: Client,
    subscription: Option<Subscription>,
}

impl Follower for Firth {
    type Reader = Client;

    async fn connect(nodes: &[SocketAddr]) -> Result<Self> {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let client = Client::connect(format!("redis+cluster://{}", nodes.join(","))).await?;
        Ok(Self { client, subscription: None })
    }

    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        self.subscription = Some(self.client.mux().subscribe_sharded(channels.iter().cloned()).await?);
        Ok(())
    }

    async fn next(&mut self) -> Result<Heard> {
        let subscription = self.subscription.as_mut().context("nothing is subscribed")?;
        Ok(match subscription.next().await.context("the subscription ended")? {
            Event::Message(message) => Heard::message(&message.channel, &message.payload)?,
            Event::Signal(Signal::Gap { channels, .. }) => Heard::Gap(named(&channels)),
            Event::Signal(Signal::Resumed { channels, .. }) => Heard::Resumed(named(&channels)),
            // A buffer that overflows would show as messages lost without a word: it must not at
            // this rate.
            Event::Signal(_) => Heard::Else,
        })
    }

    fn reader(&self) -> Client {
        self.client.clone()
    }

    async fn get(reader: &mut Client, key: &str) -> Result<Option<Vec<u8>>> {
        let value: Option<Bytes> = reader.call(cmd("GET").key(key)).await?;
        Ok(value.map(|bytes| bytes.to_vec()))
    }
}

fn named(channels: &[Bytes]) -> Vec<usize> {
    numbers(channels.iter().map(|name| &name[..]))
}
