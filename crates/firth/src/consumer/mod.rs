//! Consumers: members of a group that share a topic's partitions, each handled by one lane.
//!
//! ```text
//! coordinator (who owns what) ─► lane per partition ─► ready queue ─► next(), or the worker pool
//! renewals (leases)          read, window, commit ◄── verdicts ──┘
//! ```
//! Nothing here assumes one process: members see each other only through the engine's leases.

mod build;
mod config;
mod coordinator;
mod damage;
mod delivery;
mod in_flight;
mod lane;
mod lease_note;
mod leases;
mod losses;
mod many;
mod nack;
mod plan;
mod ready_queue;
mod run;
mod worker;
mod worker_pool;

pub use build::ConsumerBuilder;
pub use config::{ConsumerConfig, KeyOrdering, StartAt};
pub(crate) use coordinator::{forget_members, member_pool};
pub use delivery::{Delivery, Settled};
pub(crate) use in_flight::{MemberAnswer, Question, channel as questions_of};
pub(crate) use lease_note::Note;
pub use nack::Nack;
pub(crate) use nack::Then;
pub use run::Run;

use crate::background::Background;
use crate::error::{Error, Result};
use crate::metrics::InFlight;
use damage::Damage;
use firth_engine::{Epoch, Hold};
use futures_core::Stream;
use lane::Common;
use leases::LeaseRenewer;
use losses::Losses;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A member of a group. Take deliveries with [`next`](Self::next), or give it a handler with
/// [`run`](Self::run).
///
/// [`close`](Self::close) hands everything over at once. Dropping it is like a crash: its
/// partitions are taken over when the lease has run out, and unsettled records come again.
pub struct Consumer {
    common: Arc<Common>,
    handle: ConsumerHandle,
    coordinator: Background,
    /// Resolves when there may be something to hand out.
    news: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

/// Watches and steers a consumer from elsewhere; clones share it.
#[derive(Clone)]
pub struct ConsumerHandle {
    name: String,
    paused: Arc<watch::Sender<bool>>,
    closing: CancellationToken,
    assignment: watch::Receiver<BTreeMap<u32, Epoch>>,
    leases: LeaseRenewer,
    in_flight: InFlight,
    losses: Losses,
    damage: Damage,
}

impl ConsumerHandle {
    /// The member's name, as others see it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Hands out nothing more until [`resume`](Self::resume). Partitions stay with the consumer;
    /// running handlers finish.
    pub fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// Goes on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.paused.send_replace(false);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// The partitions that it owns now.
    pub fn assignment(&self) -> BTreeSet<u32> {
        self.assignment.borrow().keys().copied().collect()
    }

    /// The partitions that it owns now, each with the epoch of this ownership.
    pub fn epochs(&self) -> BTreeMap<u32, Epoch> {
        self.assignment.borrow().clone()
    }

    /// As [`epochs`](Self::epochs), without the partitions whose lease has run out by this
    /// process's own clock. A process that slept too long may have lost them already.
    pub fn certain_epochs(&self) -> BTreeMap<u32, Epoch> {
        self.leases.certain()
    }

    /// The proof of owning a partition, for steps of the engine that a former owner must not take.
    pub fn hold(&self, partition: u32) -> Option<Hold> {
        self.leases.of(partition)
    }

    /// Waits until partitions or their epochs are others than when this handle last answered here,
    /// and answers them; `None` after the end of the consumer. Changes in quick succession are one.
    /// Cancel-safe.
    pub async fn next_epochs(&mut self) -> Option<BTreeMap<u32, Epoch>> {
        self.assignment.changed().await.ok()?;
        Some(self.assignment.borrow_and_update().clone())
    }

    /// Waits until the assignment is as `wanted` says, and answers it; `None` if the consumer ends
    /// before.
    pub async fn assigned(&self, mut wanted: impl FnMut(&BTreeSet<u32>) -> bool) -> Option<BTreeSet<u32>> {
        let mut assignment = self.assignment.clone();
        let partitions = |owned: &BTreeMap<u32, Epoch>| owned.keys().copied().collect();
        let owned = assignment.wait_for(|owned| wanted(&partitions(owned))).await.ok()?;
        Some(partitions(&owned))
    }

    /// How many records are handed out and not judged, over all its partitions.
    pub fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// How many records of a partition, before the one with this number, are gone, since this was
    /// last asked: a lossy trim removed them before they could be read, or the log went back in a
    /// crash or a failover, and what was read of it is lost. Then records with numbers that were
    /// handed out before come next. What is lost before a record is known when that is handed out.
    pub fn take_lost(&self, partition: u32, seq: u64) -> u64 {
        self.losses.take(partition, seq)
    }

    /// Why a partition of this consumer cannot be read, if there is one: its stored data is
    /// damaged. Nothing comes from it, and others go on.
    pub fn damaged(&self) -> Option<Error> {
        self.damage.first()
    }

    /// Whether it runs, can read all its partitions, and no other member can have taken one. False
    /// after its end, and while its leases cannot be renewed. For health checks, beside
    /// [`Broker::check`](crate::Broker::check).
    pub fn is_healthy(&self) -> bool {
        let certain = self.certain_epochs();
        !self.is_closed()
            && self.damaged().is_none()
            && self.assignment.borrow().keys().all(|partition| certain.contains_key(partition))
    }

    /// Whether it has ended: everything is handed over, or it could not go on.
    pub fn is_closed(&self) -> bool {
        self.assignment.has_changed().is_err()
    }

    /// Starts a graceful close: `run` returns and `next` answers `None` once everything is handed
    /// over.
    pub fn close(&self) {
        self.closing.cancel();
    }
}

impl Consumer {
    /// The next delivery, or `None` after a graceful close. An error means that the consumer cannot
    /// go on (its topic is gone, say). `Corrupt` says that a partition cannot be read; the consumer
    /// goes on with others.
    ///
    /// At most [`concurrency`](ConsumerConfig::concurrency) deliveries of one partition are
    /// unsettled at a time. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Delivery>> {
        poll_fn(|context| self.poll_one(context)).await
    }

    /// The next delivery if one lies ready; `None` also after the end, of which
    /// [`next`](Self::next) tells.
    pub fn try_next(&mut self) -> Result<Option<Delivery>> {
        match self.common.ready_queue.take(1) {
            Poll::Ready(taken) => Ok(taken.and_then(|mut one| one.pop())),
            Poll::Pending => self.common.damage.take_news().map_or(Ok(None), Err),
        }
    }

    fn poll_one(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Delivery>>> {
        self.poll_take(context, 1, Damage::take_news).map(|taken| Some(taken?.map(|mut one| one.remove(0))))
    }

    /// Up to `max` deliveries of one partition, at least one, or what `trouble` finds instead.
    fn poll_take(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
        trouble: impl Fn(&Damage) -> Option<Error>,
    ) -> Poll<Option<Result<Vec<Delivery>>>> {
        loop {
            match self.common.ready_queue.take(max) {
                Poll::Ready(Some(taken)) => return Poll::Ready(Some(Ok(taken))),
                Poll::Ready(None) => return self.coordinator.poll_end(context).map(|end| end.err().map(Err)),
                Poll::Pending => {}
            }
            if let Some(error) = trouble(&self.common.damage) {
                return Poll::Ready(Some(Err(error)));
            }
            let common = &self.common;
            let news = self.news.get_or_insert_with(|| Box::pin(common.clone().news()));
            ready!(news.as_mut().poll(context));
            self.news = None;
        }
    }

    /// A handle to watch and steer it from elsewhere.
    pub fn handle(&self) -> ConsumerHandle {
        self.handle.clone()
    }

    /// Leaves the group gracefully: hands out nothing more, lets running work finish (up to the
    /// drain limit), stores every verdict and gives each partition back, so that others go on at
    /// once.
    pub async fn close(mut self) -> Result<()> {
        self.handle.closing.cancel();
        self.coordinator.end().await
    }
}

/// Deliveries as [`Consumer::next`] gives them.
impl Stream for Consumer {
    type Item = Result<Delivery>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_one(context)
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Consumer({} of {})", self.handle.name, self.common.group)
    }
}
