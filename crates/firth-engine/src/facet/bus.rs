//! The bus: hints from process to process. At most once, never a guarantee, but never a silent gap
//! either.

use super::Reply;
use crate::error::{Error, ErrorKind, Result};
use crate::name::ChannelName;
use bytes::Bytes;
use tokio::sync::mpsc;

/// Publish and subscribe for hints that are worthless a second later.
///
/// - If a subscriber subscribed before a publish, it gets the payload. If it is too slow or its
///   connection breaks, it gets [`Signal::Gap`] instead, and reads the state where it is kept.
/// - Payloads of one publisher on one channel come in order.
pub trait Bus {
    /// Sends `payload` (at most [`MAX_SIGNAL`](crate::limits::MAX_SIGNAL) bytes) to the current
    /// subscribers.
    fn publish<'a>(&'a self, channel: &'a ChannelName, payload: Bytes) -> Reply<'a, ()>;

    /// Listens from now on. The call returns once nothing published later can be missed.
    fn subscribe<'a>(&'a self, channel: &'a ChannelName) -> Reply<'a, Subscription>;
}

/// What a subscriber gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A payload.
    Message(Bytes),
    /// Something may be missing here.
    Gap,
}

/// A live subscription; dropping it ends it.
///
/// Holds at most [`Subscription::CAPACITY`] signals; when full, further ones are dropped and one
/// [`Signal::Gap`] stands for them.
pub struct Subscription(mpsc::Receiver<Signal>);

impl Subscription {
    /// How many signals wait for a slow subscriber.
    pub const CAPACITY: usize = 1024;

    /// A subscription fed by the returned sender, which must leave one place free for the gap.
    pub fn channel() -> (mpsc::Sender<Signal>, Self) {
        let (sender, receiver) = mpsc::channel(Self::CAPACITY + 1);
        (sender, Self(receiver))
    }

    /// The next signal.
    pub async fn next(&mut self) -> Result<Signal> {
        self.0.recv().await.ok_or_else(|| Error::new(ErrorKind::Closed, "the engine was closed"))
    }
}
