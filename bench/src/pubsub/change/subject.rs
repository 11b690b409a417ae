//! What a client library must offer to be watched while its cluster changes. Each subject
//! implements it in a file of its own, in its documented best way to keep sharded subscriptions
//! alive.

use crate::pubsub::workload::number_of;
use anyhow::{Context, Result};
use std::future::Future;
use std::net::SocketAddr;

/// One library, connected to a cluster, with one consumer of all its channels.
pub(crate) trait Follower: Send + Sized + 'static {
    /// The same client, for requests beside the subscriptions.
    type Reader: Clone + Send + 'static;

    /// Connects to the cluster by the addresses of all its nodes.
    fn connect(nodes: &[SocketAddr]) -> impl Future<Output = Result<Self>> + Send;

    /// Subscribes to all sharded channels and returns when the library says that they are
    /// confirmed.
    fn subscribe(&mut self, channels: &[String]) -> impl Future<Output = Result<()>> + Send;

    /// Waits for what the library says next; an error means that it will say no more.
    fn next(&mut self) -> impl Future<Output = Result<Heard>> + Send;

    /// Who makes requests.
    fn reader(&self) -> Self::Reader;

    /// The value of a key; `None` if the reply is not a string at all.
    fn get(reader: &mut Self::Reader, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send;
}

/// What a subject told its consumer. Channels go by their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A message: its channel, and its number there.
    Message(usize, u64),
    /// From here on messages may be missing on these channels.
    Gap(Vec<usize>),
    /// From here on nothing is missing on these channels.
    Resumed(Vec<usize>),
    /// Something that says nothing about messages.
    Else,
}

impl Heard {
    /// Reads a message of ours: its number is in its first eight bytes.
    pub(crate) fn message(channel: &[u8], payload: &[u8]) -> Result<Self> {
        let channel = number_of(channel).context("a message on a channel of nobody")?;
        let number = payload.first_chunk::<8>().context("a message without its number")?;
        Ok(Self::Message(channel, u64::from_be_bytes(*number)))
    }
}

/// The channels that a signal names, by number.
pub(crate) fn numbers<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Vec<usize> {
    names.into_iter().filter_map(number_of).collect()
}
