//! Topics in figures; browsing and trimming their records.

use super::{Admin, PARTITIONS_AT_ONCE};
use crate::error::Result;
use crate::metrics;
use crate::payload;
use crate::record::Record;
use crate::topic::TopicInfo;
use firth_engine::facet::{Bounds, ReadLimit, Trim, TrimTo};
use firth_engine::limits::{MAX_BATCH_BYTES, MAX_READ};
use firth_engine::{Partition, RecordId, TopicName};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use std::collections::VecDeque;
use std::time::Duration;

/// How many topics are asked about at a time, each with [`PARTITIONS_AT_ONCE`].
const TOPICS_AT_ONCE: usize = 8;

/// A topic in figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TopicStatus {
    /// Name and configuration.
    pub info: TopicInfo,
    /// Each partition.
    pub partitions: Vec<PartitionInfo>,
}

impl TopicStatus {
    /// How many records it holds.
    pub fn records(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.records).sum()
    }

    /// How many messages wait for their time.
    pub fn delayed(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.delayed).sum()
    }
}

/// A partition in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Which one.
    pub index: u32,
    /// How many records it holds.
    pub records: u64,
    /// The newest record that was removed; everything kept comes after it.
    pub trimmed: RecordId,
    /// The newest record.
    pub last: RecordId,
    /// How many messages wait for their time.
    pub delayed: u64,
    /// When the first of them enters the log.
    pub next_ripe: Option<Duration>,
}

impl PartitionInfo {
    fn new(index: u32, bounds: Bounds) -> Self {
        let records = bounds.len();
        let Bounds { trimmed, last, delayed, next_ripe } = bounds;
        Self { index, records, trimmed, last, delayed, next_ripe }
    }
}

/// Records that were looked at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecordPage {
    /// The records, in order.
    pub records: Vec<Record>,
    /// Go on after this one; `None`: that was all.
    pub next: Option<RecordId>,
}

impl Admin {
    /// All topics in figures, sorted by name.
    pub async fn topics(&self) -> Result<Vec<TopicStatus>> {
        let topics = stream::iter(self.broker.list_topics().await?);
        topics.map(|info| self.status(info)).buffered(TOPICS_AT_ONCE).try_collect().await
    }

    /// One topic in figures.
    pub async fn topic(&self, topic: &str) -> Result<TopicStatus> {
        self.status(self.fresh(topic).await?).await
    }

    async fn status(&self, info: TopicInfo) -> Result<TopicStatus> {
        let look = |at: Partition| async move {
            self.engine().bounds(&at).await.map(|bounds| PartitionInfo::new(at.index, bounds))
        };
        let partitions = stream::iter(info.partitions()).map(look).buffered(PARTITIONS_AT_ONCE);
        let partitions = partitions.try_collect().await?;
        let status = TopicStatus { info, partitions };
        metrics::seen_topic(&status.info.name, status.records(), status.delayed());
        Ok(status)
    }

    /// Up to `max` records of a partition after `after`, in order, without consuming them; no more
    /// than 8 MiB of them as they are shown, compressed ones opened, but at least one if there is
    /// any. Whether more follow is told by [`browse_page`](Self::browse_page).
    pub async fn browse(
        &self,
        topic: &str,
        partition: u32,
        after: RecordId,
        max: usize,
    ) -> Result<Vec<Record>> {
        Ok(self.browse_page(topic, partition, after, max).await?.records)
    }

    /// As [`browse`](Self::browse), and from where to go on.
    pub async fn browse_page(
        &self,
        topic: &str,
        partition: u32,
        after: RecordId,
        max: usize,
    ) -> Result<RecordPage> {
        let at = Partition::new(TopicName::new(topic)?, partition);
        let max = ReadLimit { records: max.clamp(1, MAX_READ), bytes: MAX_BATCH_BYTES };
        let mut found = self.engine().read(&at, after, max).await?;
        let mut bytes = 0;
        let fit = found.iter().take_while(|record| {
            bytes += payload::opened_len(&record.content);
            bytes <= MAX_BATCH_BYTES
        });
        let fit = fit.count().max(1);
        found.truncate(fit);
        let next = match found.last() {
            Some(last) if last.id.seq < self.engine().bounds(&at).await?.last.seq => Some(last.id),
            _ => None,
        };
        let records = found.into_iter().map(|record| Record::shown(at.clone(), record)).collect();
        Ok(RecordPage { records, next })
    }

    /// The newest `max` records of a partition, in order, without consuming them; no more than 8
    /// MiB of them as they are shown, but at least one if there is any.
    pub async fn recent(&self, topic: &str, partition: u32, max: usize) -> Result<Vec<Record>> {
        let at = Partition::new(TopicName::new(topic)?, partition);
        let bounds = self.engine().bounds(&at).await?;
        let max = max.clamp(1, MAX_READ);
        let before = bounds.last.seq.saturating_sub(max as u64).max(bounds.trimmed.seq);
        // Records are found by time: look back further and further until enough of them lie behind.
        let mut span = 1000_u64;
        let mut after = bounds.last;
        while after != RecordId::ZERO {
            after = RecordId::before_ms(bounds.last.ms.saturating_sub(span));
            let first = self.engine().read(&at, after, ReadLimit::records(1)).await?;
            if first.first().is_none_or(|first| first.id.seq <= before + 1) {
                break;
            }
            span = span.saturating_mul(4);
        }
        let mut found = VecDeque::new();
        let mut bytes = 0;
        loop {
            let page = self.engine().read(&at, after, ReadLimit::records(MAX_READ)).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            for record in page.into_iter().filter(|record| record.id.seq > before) {
                bytes += payload::opened_len(&record.content);
                found.push_back(record);
                while found.len() > 1
                    && (found.len() > max || bytes > MAX_BATCH_BYTES)
                    && let Some(oldest) = found.pop_front()
                {
                    bytes -= payload::opened_len(&oldest.content);
                }
            }
        }
        Ok(found.into_iter().map(|record| Record::shown(at.clone(), record)).collect())
    }

    /// Removes the oldest records of every partition up to a mark. What some group has not settled
    /// stays, unless `lossy`. Answers how many records were removed, and on how many partitions
    /// unsettled ones held it back.
    pub async fn trim(&self, topic: &str, to: TrimTo, lossy: bool) -> Result<(u64, u64)> {
        let mut removed = 0;
        let mut held_back = 0;
        for at in self.broker.topic(topic).await?.partitions() {
            let done = self.engine().trim(&at, Trim { to, lossy }).await?;
            removed += done.removed;
            held_back += u64::from(done.held_back);
        }
        Ok((removed, held_back))
    }

    /// Deletes a topic with its records, groups and dead letters; false if there was none.
    pub async fn delete_topic(&self, topic: &str) -> Result<bool> {
        self.broker.delete_topic(topic).await
    }
}
