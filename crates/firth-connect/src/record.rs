//! Events as records of a topic.

use crate::error::{ErrorKind, Result};
use crate::pump::Batch;
use crate::sink::Sink;
use bytes::Bytes;
use firth::Message;
use firth_router::event::Event;
use std::time::Duration;

/// What a record takes beside its payload: its key, its headers and their places. Measured.
const OVERHEAD: usize = 1024;
/// Between tries of an append or a save that failed for a passing reason.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

/// An event as a record of a topic.
pub(crate) fn message(
    event: &Event,
    key: Option<String>,
    headers: impl IntoIterator<Item = (&'static str, String)>,
) -> Message {
    let message = Message::new(event.to_compact());
    let message = key.into_iter().fold(message, Message::key);
    headers.into_iter().fold(message, |message, (name, value)| message.header(name, value))
}

/// FNV-1a of 64 bits: a name for bytes that stays the same from build to build.
pub(crate) fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// The bytes that it takes while it waits.
pub(crate) fn size_of(message: &Message) -> usize {
    message.payload().len() + OVERHEAD
}

/// Appends a batch, however often that takes: the mark tells whether a try of unknown outcome has
/// happened. Answers the partition and how many records are stored there.
pub(crate) async fn append<S: Sink>(sink: &S, batch: Batch<Bytes>) -> (usize, Result<usize>) {
    let Batch { partition, messages, upto } = batch;
    let number = u32::try_from(partition).expect("partitions are counted in u32");
    loop {
        match sink.append(number, messages.clone(), upto.clone()).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(RETRY).await,
            done => return (partition, done.map(|_| messages.len())),
        }
    }
}
