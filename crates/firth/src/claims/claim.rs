//! [`Claim`]: the right to one unit of work, as its owner has it in hand.

use super::shard::Shard;
use super::unit::Unit;
use super::unit_data::UnitDataBuilder;
use crate::error::Result;
use bytes::Bytes;
use firth_engine::Epoch;
use firth_engine::facet::PreviousOwner;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The right to one unit of work. Clones are the same claim.
///
/// The worker renews it as long as it runs; dropping the handle changes nothing.
/// [`done`](Self::done) ends the unit for good, [`release`](Self::release) gives it back to the
/// service. The engine checks every call against the claim's epoch. If the worker lost the claim,
/// the call changes nothing and fails with [`Fenced`](crate::ErrorKind::Fenced).
pub struct Claim {
    unit: Arc<Unit>,
    shard: Arc<Shard>,
}

impl Claim {
    pub(crate) fn new(unit: Arc<Unit>, shard: Arc<Shard>) -> Self {
        unit.take_handle();
        Self { unit, shard }
    }

    /// The unit's name.
    pub fn name(&self) -> &str {
        self.unit.key.name.as_str()
    }

    /// What was offered.
    pub fn payload(&self) -> &Bytes {
        &self.unit.payload
    }

    /// What the former owner left with [`checkpoint`](Self::checkpoint).
    pub fn last_checkpoint(&self) -> Option<&Bytes> {
        self.unit.checkpoint.as_ref()
    }

    /// Who had the unit before, if anybody.
    pub fn last_owner(&self) -> Option<&str> {
        match &self.unit.former {
            PreviousOwner::Nobody => None,
            PreviousOwner::Released(last) | PreviousOwner::Vanished(last) => Some(last.as_str()),
        }
    }

    /// Whether the former owner vanished, and did not hand the unit over.
    pub fn is_takeover(&self) -> bool {
        matches!(self.unit.former, PreviousOwner::Vanished(_))
    }

    /// Grows with each change of owner: pass it on to systems that must refuse a former owner.
    pub fn epoch(&self) -> Epoch {
        self.unit.key.epoch
    }

    /// Whether no other worker can have it yet, by this process's own monotonic clock. Ask before
    /// each effect that the engine cannot fence.
    pub fn is_valid(&self) -> bool {
        self.unit.is_valid()
    }

    /// Resolves when the claim was lost: stop working on it. Never resolves after `done` or
    /// `release`.
    pub async fn lost(&self) {
        self.unit.lost().await;
    }

    /// Resolves when the claim was lost, given back or done.
    pub async fn ended(&self) {
        self.unit.ended().await;
    }

    /// Resolves when the claim is wanted back, because others have less to do or the worker closes,
    /// and when it has ended. Finish what must be finished, leave a checkpoint and
    /// [`release`](Self::release) it.
    pub async fn recalled(&self) {
        self.unit.recalled().await;
    }

    /// Whether it is wanted back.
    pub fn is_recalled(&self) -> bool {
        self.unit.is_recalled()
    }

    /// The unit is finished: it leaves the service for good.
    pub async fn done(&self) -> Result<()> {
        self.shard.done(&self.unit).await
    }

    /// Gives the unit back: the engine can grant it again at once.
    pub async fn release(&self) -> Result<()> {
        self.release_for(Duration::ZERO).await
    }

    /// Gives the unit back; the engine grants it to no worker before `rest` has passed. For work
    /// that cannot go on just now.
    pub async fn release_for(&self, rest: Duration) -> Result<()> {
        self.shard.release(&self.unit, rest).await
    }

    /// Stores what the next owner needs to go on, at most 64 KiB; it replaces the last checkpoint.
    pub async fn checkpoint(&self, state: impl Into<Bytes>) -> Result<()> {
        self.shard.checkpoint(&self.unit, state.into()).await
    }

    /// The unit's own data: a partition of a topic, read in order and settled under this claim.
    /// Finish the builder with `.await`.
    pub fn follow(&self, topic: &str) -> UnitDataBuilder {
        UnitDataBuilder::new(self.clone(), topic)
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    pub(crate) fn unit(&self) -> &Arc<Unit> {
        &self.unit
    }
}

impl Clone for Claim {
    fn clone(&self) -> Self {
        Self::new(self.unit.clone(), self.shard.clone())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.unit.drop_handle() && self.unit.is_recalled() {
            self.shard.wake.notify_one();
        }
    }
}

/// Never shows the payload.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({} epoch {})", self.name(), self.epoch())
    }
}
