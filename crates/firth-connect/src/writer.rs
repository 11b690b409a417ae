//! A topic of firth as a [`Sink`].

use crate::error::Result;
use crate::sink::{Appended, Sink};
use bytes::Bytes;
use firth::{Message, SourceAppend, SourceWriter};

impl Sink for SourceWriter {
    fn partitions(&self) -> u32 {
        Self::partitions(self)
    }

    fn partition_for(&self, key: &[u8]) -> u32 {
        Self::partition_for(self, key)
    }

    async fn marks(&self) -> Result<Vec<Option<Bytes>>> {
        Ok(Self::marks(self).await?)
    }

    async fn append(&self, partition: u32, messages: Vec<Message>, upto: Bytes) -> Result<Appended> {
        Ok(match Self::append(self, partition, messages, upto).await? {
            SourceAppend::Stored { .. } => Appended::Stored,
            SourceAppend::Moved => Appended::Moved,
            SourceAppend::Duplicate => Appended::Duplicate,
        })
    }

    fn max_payload(&self) -> usize {
        Self::max_payload(self)
    }

    fn has_grown(&self) -> bool {
        self.grown().is_some()
    }

    async fn grow(&self, upto: Bytes) -> Result<u32> {
        Ok(Self::grow(self, upto).await?)
    }
}
