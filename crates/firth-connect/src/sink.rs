//! [`Sink`]: where changes go: partitions that store records and the source's mark in one step.

use crate::error::Result;
use bytes::Bytes;
use firth::Message;
use std::future::Future;

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The records are stored, and the mark with them.
    Stored,
    /// Only the mark was moved: the batch had no records.
    Moved,
    /// The mark had this position already: nothing was stored.
    Duplicate,
}

/// The partitions of a topic, for one epoch of one source.
pub trait Sink: Send + Sync + 'static {
    /// How many partitions there are.
    fn partitions(&self) -> u32;

    /// The partition of a message's key.
    fn partition_for(&self, key: &[u8]) -> u32;

    /// Whether events go to this partition; the others take messages for further topics.
    fn takes_events(&self, partition: u32) -> bool {
        let _ = partition;
        true
    }

    /// The partition of a message for another topic; none if the source has no such topic.
    fn outlet(&self, topic: &str, key: Option<&[u8]>) -> Option<u32> {
        let _ = (topic, key);
        None
    }

    /// The source's mark in each partition.
    fn marks(&self) -> impl Future<Output = Result<Vec<Option<Bytes>>>> + Send;

    /// Appends a batch and moves the mark to `upto`, both or neither. Refused with
    /// [`Fenced`](crate::ErrorKind::Fenced) once a newer epoch has appended or read its marks.
    fn append(
        &self,
        partition: u32,
        messages: Vec<Message>,
        upto: Bytes,
    ) -> impl Future<Output = Result<Appended>> + Send;

    /// The largest payload that the topic takes, in bytes.
    fn max_payload(&self) -> usize {
        usize::MAX
    }

    /// The same for the topic of this partition.
    fn max_payload_of(&self, partition: u32) -> usize {
        let _ = partition;
        self.max_payload()
    }

    /// Whether the topic has partitions that do not take part yet.
    fn has_grown(&self) -> bool {
        false
    }

    /// Takes in new partitions; answers how many there are now. Everything up to `upto` is
    /// appended, and nothing after it: it becomes the mark of every partition.
    fn grow(&self, upto: Bytes) -> impl Future<Output = Result<u32>> + Send {
        let _ = upto;
        async { Ok(self.partitions()) }
    }
}
