//! The lane: the serial loop of one owned partition (read → window → hand out → commit).
//!
//! [`state`] decides, without I/O and without a clock; [`driver`] performs what it decides, with
//! the [`requests`] to the engine. After an error that can pass, the lane waits until no record is
//! out, opens its group again and goes on, with the verdicts that it already knows. It ends when it
//! is told to stop (then it drains, commits and releases its lease) or when another consumer has
//! the lease (then it drops everything).

mod crash_isolation;
mod driver;
mod flow;
mod handed_out;
mod requests;
mod retry_cache;
mod state;
mod tail;
mod wait;
mod waiter;

use super::config::ConsumerConfig;
use super::damage::Damage;
use super::delivery::LaneHandle;
use super::leases::HeldLease;
use super::losses::Losses;
use super::ready_queue::ReadyQueue;
use crate::error::Error;
use crate::metrics::GroupMeter;
use crate::topic::TopicInfo;
use driver::LaneDriver;
use firth_engine::facet::StartPosition;
use firth_engine::{Engine, GroupName, Partition};
pub(crate) use handed_out::Out;
use state::Inputs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What all lanes of a consumer share.
pub(crate) struct Common {
    pub(crate) engine: Engine,
    pub(crate) group: GroupName,
    pub(crate) config: ConsumerConfig,
    pub(crate) meter: GroupMeter,
    pub(crate) ready_queue: Arc<ReadyQueue>,
    pub(crate) paused: watch::Receiver<bool>,
    /// How many records one worker takes at a time.
    pub(crate) chunk: AtomicUsize,
    /// How many of them it works on at the same time.
    pub(crate) batch: AtomicUsize,
    pub(crate) max_payload: usize,
    pub(crate) losses: Losses,
    pub(crate) damage: Damage,
    /// The topic as it was when the consumer was built.
    pub(crate) built_on: TopicInfo,
    /// The stream of another program that the topic follows.
    pub(crate) follows: Option<String>,
}

impl Common {
    /// Resolves when there may be a delivery to take, or damage to tell of. Cancel-safe.
    pub(crate) async fn news(self: Arc<Self>) {
        tokio::select! {
            () = self.ready_queue.news() => {}
            () = self.damage.news() => {}
        }
    }

    fn chunk(&self) -> usize {
        self.chunk.load(Ordering::Relaxed).max(1)
    }

    /// How many records of a partition handlers may have at a time.
    fn at_once(&self) -> usize {
        let batch = self.batch.load(Ordering::Relaxed).max(1);
        self.config.concurrency.saturating_mul(batch).min(self.config.max_in_flight)
    }
}

pub(crate) struct Lane {
    pub(crate) common: Arc<Common>,
    pub(crate) at: Partition,
    pub(crate) held: Arc<HeldLease>,
    pub(crate) stop: CancellationToken,
    /// Where it starts if the partition does not have the group.
    pub(crate) start: StartPosition,
}

/// Questions about what is out.
pub(crate) type Asked = mpsc::Receiver<oneshot::Sender<Vec<Out>>>;

/// How a lane ended.
pub(crate) enum LaneEnd {
    /// It was told to, and gave its lease back.
    Stopped,
    /// Another consumer has the partition.
    Lost,
    /// The partition is gone or cannot be read; trying again at once is no use. It gave its lease
    /// back, if it could: no other consumer need wait for its expiry.
    Failed(Error),
}

impl Lane {
    /// Runs it to its end; it answers the questions of `asked`.
    pub(crate) async fn run(self, asked: Asked) -> LaneEnd {
        let lane = Arc::new(self);
        let end = LaneDriver::new(lane.clone(), asked).run().await;
        match &end {
            LaneEnd::Stopped | LaneEnd::Failed(_) => lane.release().await,
            LaneEnd::Lost => {
                lane.common.meter.fenced.increment(1);
                let group = &lane.common.group;
                tracing::info!(partition = %lane.at, %group, "the partition has another owner");
            }
        }
        end
    }

    /// The conditions around the lane at this moment.
    fn inputs(&self, handle: &LaneHandle, now: Instant) -> Inputs {
        Inputs {
            paused: *self.common.paused.borrow(),
            has_lease: self.held.is_valid_at(now),
            returning: handle.is_returning(),
            chunk: self.common.chunk(),
            at_once: self.common.at_once(),
        }
    }

    async fn release(&self) {
        if let Err(error) = self.common.engine.release(&self.held.hold).await {
            tracing::warn!(%error, partition = %self.at, "a lease was not given back; it runs out");
        }
    }
}
