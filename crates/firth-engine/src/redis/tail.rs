//! Waiting at the end of a log: a blocking read on a connection of its own, answered by the very
//! append that it waits for.
//!
//! For partitions with a trickle of records; idle partitions rest in the notifier, which costs
//! nothing. So only a few readers wait here at a time. If a reader gets no place, or if its wait
//! fails, it falls back to a hint and a plain read, which reports what is wrong.

use super::RedisEngine;
use super::keys::PartitionKeys;
use super::read::{ReadCall, head};
use crate::error::Result;
use crate::facet::ReadLimit;
use crate::id::RecordId;
use crate::name::Partition;
use crate::record::Record;
use firth_redis::resp::Frame;
use firth_redis::{CallError, cmd, pipe};
use std::time::Duration;
use tokio::sync::Semaphore;

/// How many partitions are waited for at a time; with the groups of [`super::waits`] below the
/// client's limit of blocking connections.
const AT_ONCE: usize = 8;
/// How long one wait lasts.
const PATIENCE: Duration = Duration::from_secs(1);
/// What its answer may take beside that.
const GRACE: Duration = Duration::from_secs(1);

/// Places for those who wait.
pub(super) struct Tails(Semaphore);

impl Default for Tails {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl RedisEngine {
    pub(super) async fn tail_records(
        &self,
        at: &Partition,
        after: RecordId,
        max: ReadLimit,
    ) -> Result<Option<Vec<Record>>> {
        let keys = self.keys.partition(at);
        let Ok(_place) = self.tails.0.try_acquire() else { return Ok(None) };
        // What is not known to be small is read with more care.
        let Some(entries) = keys.sizes.entries_for(max.records.max(1), max.bytes) else {
            return Ok(None);
        };
        let (entries, head) = match self.wait_for_entries(&keys, after, entries).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%error, partition = %at, "cannot wait at the end of the log");
                return Ok(None);
            }
        };
        let mut reading = ReadCall::new(at, &keys, after, max);
        // A map with one pair: the stream and its entries. Nothing at all if nothing came.
        let entries = entries.value().iter().nth(1);
        match head {
            Some(head) => reading.take_range(entries, head.value())?,
            None => reading.take_newest(entries)?,
        }
        Ok(Some(reading.into_records()))
    }

    /// Waits for entries. What else is to be known of the partition is asked for with them, unless
    /// it was of late: the server would answer that before it hands out what was waited for.
    async fn wait_for_entries(
        &self,
        keys: &PartitionKeys,
        after: RecordId,
        entries: usize,
    ) -> Result<(Frame, Option<Frame>), CallError> {
        let read = cmd("XREAD").arg("COUNT").arg(entries).arg("BLOCK").arg(PATIENCE.as_millis() as u64);
        let read = read.arg("STREAMS").key(&keys.stream).arg(after.to_string());
        let client = &self.steps.client;
        let limit = PATIENCE + GRACE;
        if keys.sizes.is_recent() {
            return Ok((client.call::<Frame>(read).timeout(limit).await?, None));
        }
        let both = pipe().then(read).then(head(keys)).together();
        let (read, head) = client.pipeline::<(Frame, Frame)>(both).timeout(limit).await?;
        Ok((read?, Some(head?)))
    }
}
