//! [`ConsumerConfig`]: everything that can be set on a consumer, checked once.

use crate::error::{Result, invalid};
use crate::retry::RetryPolicy;
use crate::topic::TopicInfo;
use firth_engine::facet::StartPosition;
use firth_engine::limits::{MAX_TTL, MAX_VERDICTS};
use std::collections::BTreeSet;
use std::time::Duration;

/// What a failed record does to later ones of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyOrdering {
    /// Later records of the key wait until it is done or given up. Other keys go on.
    #[default]
    Strict,
    /// Nothing waits for a retry: it comes later, out of order.
    Relaxed,
    /// Nothing waits for anything: records go out in the order of the partition, also several of
    /// one key at a time. For programs that keep the order of keys themselves.
    Unordered,
}

/// Where a new group starts reading; a group that exists goes on where it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartAt {
    /// At the oldest record.
    #[default]
    Oldest,
    /// With what is sent from now on. Partitions that are added later are read from their start. A
    /// group that is deleted under its consumers begins anew with what is sent from then on.
    Newest,
    /// With records that are not older than this.
    Age(Duration),
    /// Where the group is already: only an existing group is read, and none is made, also not again
    /// after it vanished.
    Existing,
}

impl From<StartAt> for StartPosition {
    fn from(start: StartAt) -> Self {
        match start {
            StartAt::Oldest => Self::Start,
            StartAt::Newest => Self::End,
            StartAt::Age(age) => Self::Age(age),
            StartAt::Existing => Self::Existing,
        }
    }
}

impl StartAt {
    /// Where a lane starts on a partition of `topic` without the group. When the consumer was
    /// built, the group was made on all partitions that the topic had then (`built_on`). On these
    /// it was deleted, and begins anew. Others were added, or made again, since then: they are read
    /// from their start.
    pub(crate) fn without_group(self, index: u32, built_on: &TopicInfo, topic: &TopicInfo) -> StartPosition {
        let had_group = index < built_on.config.partitions && topic.created == built_on.created;
        match self {
            Self::Existing => StartPosition::Existing,
            Self::Oldest | Self::Newest | Self::Age(_) if had_group => self.into(),
            Self::Oldest | Self::Newest | Self::Age(_) => StartPosition::Start,
        }
    }
}

/// How a consumer works.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerConfig {
    /// A name for people; each consumer adds a random part to it.
    pub name: String,
    /// What kind of program it is, for people who look at the group; `library` unless set.
    pub kind: String,
    /// Only one consumer at a time has this name, as a node that is started again has: it takes
    /// over from its predecessor at once instead of waiting for the lease to run out. Of several
    /// that claim the same name, the newest works and the others rest.
    pub takes_over: bool,
    /// How many records of one partition are handed out or read ahead, and not settled, 1 to 500;
    /// those that are tried again may be read ahead besides, but no more are handed out. No further
    /// ones when they take 64 MiB (as handlers see them: compressed payloads count in full).
    /// Records that strict ordering holds back are not counted, but their bytes are; when there are
    /// 900 of them the partition waits.
    pub max_in_flight: usize,
    /// How many records of one partition are handled at the same time; records of one key never
    /// are.
    pub concurrency: usize,
    /// What a failed record does to later ones of its key.
    pub ordering: KeyOrdering,
    /// When failed records are tried again, and when they are given up.
    pub retry: RetryPolicy,
    /// Where a new group starts.
    pub start: StartAt,
    /// How long a crashed consumer keeps its partitions. Renewed three times as often.
    pub lease: Duration,
    /// How long a handler may take; `None`: as long as it likes.
    pub handler_timeout: Option<Duration>,
    /// How long running handlers may finish when a partition is given up or the consumer closes.
    pub drain: Duration,
    /// Only these partitions, independent of the other members; empty: a fair share.
    pub partitions: BTreeSet<u32>,
    /// At most this many partitions, even if the group has few members. A partition for which no
    /// member has room waits. `None`: all of them if need be. Pinned partitions are not counted.
    pub max_partitions: Option<u32>,
    /// Verdicts wait at most this long for others before they are stored together.
    pub commit_interval: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            name: "consumer".to_owned(),
            kind: "library".to_owned(),
            takes_over: false,
            max_in_flight: 500,
            concurrency: 1,
            ordering: KeyOrdering::default(),
            retry: RetryPolicy::default(),
            start: StartAt::default(),
            lease: Duration::from_secs(10),
            handler_timeout: None,
            drain: Duration::from_secs(30),
            partitions: BTreeSet::new(),
            max_partitions: None,
            commit_interval: Duration::from_millis(10),
        }
    }
}

/// The largest `max_in_flight`: as many again may be held back by strict ordering.
const MAX_IN_FLIGHT: usize = MAX_VERDICTS / 2;

impl ConsumerConfig {
    /// Checks every value, or says what to change.
    pub fn check(&self) -> Result<()> {
        if !(1..=MAX_IN_FLIGHT).contains(&self.max_in_flight) {
            return Err(invalid(format!(
                "max_in_flight is {}; give 1 to {MAX_IN_FLIGHT}",
                self.max_in_flight
            )));
        }
        if self.concurrency == 0 {
            return Err(invalid("concurrency is 0; give at least 1"));
        }
        if self.lease < Duration::from_millis(100) || self.lease > MAX_TTL {
            return Err(invalid("a consumer's lease is 100 ms to 24 hours"));
        }
        if self.max_partitions == Some(0) {
            return Err(invalid("max_partitions is 0; give at least 1, or do not set it"));
        }
        if self.retry.max_attempts == 0 {
            return Err(invalid("max_attempts is 0; 1 means no retry"));
        }
        if self.name.len() > 64 {
            return Err(invalid("a consumer's name has at most 64 characters"));
        }
        if self.kind.len() > 64 {
            return Err(invalid("a consumer's kind has at most 64 characters"));
        }
        Ok(())
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.ordering == KeyOrdering::Strict
    }

    /// Whether one record of a key waits for another.
    pub(crate) fn minds_keys(&self) -> bool {
        self.ordering != KeyOrdering::Unordered
    }

    /// How many records a lane's window takes: those in flight and those held back behind them.
    pub(crate) fn window(&self) -> usize {
        MAX_VERDICTS
    }
}
