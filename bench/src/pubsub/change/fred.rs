//! Subject `fred`: its subscriber client, which subscribes anew after it has reconnected, over
//! RESP3 so that it can make requests too. The buffer of messages is large, as in `deliver`.

use super::subject::{Follower, Heard};
use anyhow::{Context, Result};
use fred::clients::SubscriberClient;
use fred::prelude::*;
use fred::types::config::TcpConfig;
use fred::types::{Message, RespVersion};
use std::net::SocketAddr;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Messages that wait for the consumer at most.
const BUFFER: usize = 20_000;

pub(crate) struct Fred {
    client: SubscriberClient,
    messages: Receiver<Message>,
}

impl Follower for Fred {
    type Reader = SubscriberClient;

    async fn connect(nodes: &[SocketAddr]) -> Result<Self> {
        let (first, others) = nodes.split_first().context("a cluster has nodes")?;
        let others: Vec<String> = others.iter().map(|node| format!("node={node}")).collect();
        let mut config = Config::from_url(&format!("redis-cluster://{first}?{}", others.join("&")))?;
        config.version = RespVersion::RESP3;
        let client = Builder::from_config(config)
            .with_connection_config(|connection| {
                connection.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
            })
            .with_performance_config(|performance| performance.broadcast_channel_capacity = BUFFER)
            .set_policy(ReconnectPolicy::new_exponential(0, 100, 30_000, 2))
            .build_subscriber_client()?;
        client.init().await?;
        client.manage_subscriptions();
        let messages = client.message_rx();
        Ok(Self { client, messages })
    }

    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        // One by one: names of several slots cannot go into one command.
        for channel in channels {
            self.client.ssubscribe(channel.clone()).await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Heard> {
        match self.messages.recv().await {
            Err(RecvError::Lagged(_)) => Ok(Heard::Else),
            Err(ended) => Err(ended.into()),
            Ok(message) => {
                let payload = message.value.as_bytes().unwrap_or_default();
                Heard::message(message.channel.as_bytes(), payload)
            }
        }
    }

    fn reader(&self) -> SubscriberClient {
        self.client.clone()
    }

    async fn get(reader: &mut SubscriberClient, key: &str) -> Result<Option<Vec<u8>>> {
        let value: Value = reader.get(key).await?;
        Ok(value.as_bytes().map(<[u8]>::to_vec))
    }
}
