//! What a client library must offer to be measured as a subscriber. Each subject implements it in a
//! file of its own, in its documented best way: one consumer of all its channels.

use anyhow::Result;
use std::future::Future;

/// One library, connected, with one consumer.
pub(crate) trait Subject: Send + Sized + 'static {
    /// A received message, as the library hands it over.
    type Message: Send;

    /// Connects; nothing is subscribed yet.
    fn connect(port: u16) -> impl Future<Output = Result<Self>> + Send;

    /// Subscribes to all channels and returns when the library says that they are confirmed.
    fn subscribe(&mut self, channels: &[String]) -> impl Future<Output = Result<()>> + Send;

    /// Waits for the next message on any channel.
    fn next(&mut self) -> impl Future<Output = Result<Self::Message>> + Send;

    /// The payload of a message.
    fn payload(message: &Self::Message) -> &[u8];
}
