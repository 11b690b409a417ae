//! The operator's view: merged over partitions, and repairs.
//!
//! Nothing here is needed for the queue to run. Every figure is exact at the moment when its
//! partition was asked; [`PARTITIONS_AT_ONCE`] partitions are asked at a time.

mod check;
mod delayed;
mod groups;
mod in_flight;
mod pending;
mod topics;

pub use check::PartitionCheck;
pub use delayed::{DelayedChange, DelayedId, DelayedMessage, DelayedMessages};
pub use groups::{GroupInfo, GroupPartition, MemberInfo, Owner};
pub use in_flight::{InFlightPage, InFlightRecord};
pub use pending::{PendingPage, PendingQuery, PendingRecord, PendingSort};
pub use topics::{PartitionInfo, RecordPage, TopicStatus};

pub use firth_engine::facet::{DelayedState, Reset, StartPosition, TrimTo};

use crate::adopt;
use crate::broker::Broker;
use crate::error::Result;
use crate::topic::TopicInfo;
use firth_engine::{Engine, GroupName, TopicName};

/// How many partitions of a topic are asked at a time: round trips overlap, and the engine still
/// has time for others.
const PARTITIONS_AT_ONCE: usize = 16;

/// Looks at and repairs topics and groups; see the methods.
#[derive(Clone)]
pub struct Admin {
    broker: Broker,
}

impl Admin {
    pub(crate) fn new(broker: Broker) -> Self {
        Self { broker }
    }

    /// Begins a [backup](crate::backup) of everything, while everything goes on. Only engines on
    /// files take one.
    #[cfg(feature = "embedded")]
    pub async fn backup(&self) -> Result<crate::backup::Backup> {
        self.engine().backup().await
    }

    fn engine(&self) -> &Engine {
        self.broker.engine()
    }

    /// The topic, with everything taken in that stands in the stream which it may follow: figures
    /// count that, too.
    async fn fresh(&self, topic: &str) -> Result<TopicInfo> {
        let info = self.broker.topic(topic).await?;
        if info.config.adopted.is_some() {
            for at in info.partitions() {
                adopt::catch_up(self.engine(), &at).await?;
            }
        }
        Ok(info)
    }
}

fn names(topic: &str, group: &str) -> Result<(TopicName, GroupName)> {
    Ok((TopicName::new(topic)?, GroupName::new(group)?))
}
