//! The lane: the serial loop of one owned partition (read → window → hand out → commit).
//!
//! `session` is one life of the lane's window; `fill` brings records in, `store` commits verdicts. After an error that can pass, the lane
//! waits until nothing is out, opens its group again and goes on, with the verdicts that it already knows. It ends when it is told to
//! stop (then it drains, commits and releases its lease) or when somebody else has the lease (then it drops everything).

mod fill;
mod memory;
mod reach;
mod session;
mod store;
mod tail;
mod waiter;

use super::config::ConsumerConfig;
use super::damage::Damage;
use super::desk::Desk;
use super::holds::Held;
use super::losses::Losses;
use crate::error::{Error, ErrorKind};
use crate::metrics::GroupMeter;
use firth_engine::{Backoff, Engine, GroupName, Partition, Verdict};
use session::{Ended, Session};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use waiter::{Key, Waiting};

/// What all lanes of a consumer share.
pub(crate) struct Common {
    pub(crate) engine: Engine,
    pub(crate) group: GroupName,
    pub(crate) config: ConsumerConfig,
    pub(crate) meter: GroupMeter,
    pub(crate) desk: Arc<Desk>,
    pub(crate) paused: watch::Receiver<bool>,
    /// How many records one worker takes at a time.
    pub(crate) chunk: AtomicUsize,
    /// How many of them it works on at the same time.
    pub(crate) batch: AtomicUsize,
    pub(crate) max_payload: usize,
    pub(crate) losses: Losses,
    pub(crate) damage: Damage,
    /// The stream of others that the topic follows.
    pub(crate) follows: Option<String>,
}

impl Common {
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
    pub(crate) held: Arc<Held>,
    pub(crate) stop: CancellationToken,
}

/// How a lane ended.
pub(crate) enum End {
    /// It was told to, and gave its lease back.
    Stopped,
    /// Somebody else has the partition.
    Lost,
    /// The partition is gone or cannot be read; trying again at once is no use. It gave its lease back, if it could: nobody need wait for its end.
    Failed(Error),
}

/// Verdicts whose commit is not confirmed, by place and attempt: should the record come again, it is settled without being handed out.
type Carry = HashMap<Key, Verdict>;

/// Whether the server did not answer at all.
fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// What one session leaves to the next.
#[derive(Default)]
struct Left {
    known: Carry,
    waiting: Waiting,
}

/// While the server is away, so that the lane resumes soon after its return.
const AWAY: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_millis(500));
/// While the server answers and refuses.
const REFUSED: Backoff = Backoff::exponential(Duration::from_millis(50), Duration::from_secs(5));

impl Lane {
    pub(crate) async fn run(self) -> End {
        let mut left = Left::default();
        let mut failures: u32 = 0;
        loop {
            let trouble = match Session::open(&self, std::mem::take(&mut left)).await {
                Err((rest, error)) => {
                    left = rest;
                    error
                }
                Ok(session) => match session.run().await {
                    Ended::Stopped => return self.release().await,
                    Ended::Lost => return self.lost(),
                    Ended::Broken { left: rest, error, worked } => {
                        left = rest;
                        failures = if worked { 0 } else { failures };
                        error
                    }
                },
            };
            match trouble.kind() {
                ErrorKind::Fenced => return self.lost(),
                _ if self.stop.is_cancelled() => return self.release().await,
                ErrorKind::NotFound | ErrorKind::Closed | ErrorKind::Corrupt | ErrorKind::Unauthorized => {
                    self.give_back().await;
                    return End::Failed(trouble);
                }
                _ => {}
            }
            failures += 1;
            self.common.meter.reopened.increment(1);
            if failures.is_power_of_two() {
                tracing::warn!(error = %trouble, partition = %self.at, failures, "the lane starts over");
            }
            let patience = if is_away(&trouble) { AWAY } else { REFUSED };
            tokio::select! {
                () = tokio::time::sleep(patience.delay(failures)) => {}
                () = self.stop.cancelled() => {}
                () = self.held.lost.cancelled() => return self.lost(),
            }
            if !self.held.is_valid() {
                // Somebody else may settle these records by now: nobody waits longer than the lease.
                left.waiting.clear();
            }
        }
    }

    async fn release(&self) -> End {
        self.give_back().await;
        End::Stopped
    }

    async fn give_back(&self) {
        if let Err(error) = self.common.engine.release(&self.held.hold).await {
            tracing::warn!(%error, partition = %self.at, "a lease was not given back; it runs out");
        }
    }

    fn lost(&self) -> End {
        self.common.meter.fenced.increment(1);
        tracing::info!(partition = %self.at, group = %self.common.group, "the partition has another owner");
        End::Lost
    }
}
