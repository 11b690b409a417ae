//! Subject `fred` as a subscriber: a client and its broadcast receiver of messages.
//!
//! Its broadcast channel holds 32 messages by default and then drops the oldest, which would lose
//! nearly all of this load; here it holds a whole window, so that fred is measured and not its
//! loss.

use super::driver::WINDOW;
use super::publisher::BATCH;
use super::subject::Subject;
use anyhow::Result;
use fred::prelude::*;
use fred::types::Message;
use fred::types::config::TcpConfig;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

pub(crate) struct Fred {
    client: Client,
    messages: Receiver<Message>,
}

impl Subject for Fred {
    type Message = Message;

    async fn connect(port: u16) -> Result<Self> {
        let client = Builder::from_config(Config::from_url(&format!("redis://127.0.0.1:{port}"))?)
            .with_connection_config(|connection| {
                connection.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
            })
            .with_performance_config(|performance| {
                performance.broadcast_channel_capacity = usize::from(WINDOW) * BATCH as usize;
            })
            .build()?;
        client.init().await?;
        let messages = client.message_rx();
        Ok(Self { client, messages })
    }

    async fn subscribe(&mut self, channels: &[String]) -> Result<()> {
        Ok(self.client.subscribe(channels.to_vec()).await?)
    }

    async fn next(&mut self) -> Result<Message> {
        loop {
            match self.messages.recv().await {
                // What was dropped shows in the share of lost messages.
                Err(RecvError::Lagged(_)) => {}
                other => return Ok(other?),
            }
        }
    }

    fn payload(message: &Message) -> &[u8] {
        message.value.as_bytes().unwrap_or_default()
    }
}
