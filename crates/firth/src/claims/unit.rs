//! [`Unit`]: the shared state of one claim, and [`ShardSession`], the membership on which it rests.
//! Small, because a worker may have tens of thousands.

use bytes::Bytes;
use firth_engine::facet::{ClaimKey, Granted, Membership, PreviousOwner};
use firth_engine::valid_for;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// One session of a worker on one shard.
pub(crate) struct ShardSession {
    pub(crate) membership: Membership,
    /// Which shard of the service.
    pub(crate) shard: usize,
    begun: Instant,
    /// Until when the engine cannot have granted its claims to another worker, in µs after `begun`.
    valid_us: AtomicU64,
}

impl ShardSession {
    /// A session whose request was sent at `asked`.
    pub(crate) fn new(membership: Membership, shard: usize, asked: Instant, ttl: Duration) -> Arc<Self> {
        let session = Self { membership, shard, begun: asked, valid_us: AtomicU64::new(0) };
        session.extend(asked, ttl);
        Arc::new(session)
    }

    /// A beat that was sent at `asked` succeeded.
    pub(crate) fn extend(&self, asked: Instant, ttl: Duration) {
        let us = (asked + valid_for(ttl)).duration_since(self.begun).as_micros();
        self.valid_us.fetch_max(u64::try_from(us).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.begun + Duration::from_micros(self.valid_us.load(Ordering::Acquire))
    }

    pub(crate) fn is_valid(&self) -> bool {
        Instant::now() < self.valid_until()
    }
}

/// Another worker should have it.
pub(crate) const RECALLED: u8 = 1;
/// A call that ends it is under way.
const SETTLING: u8 = 2;
/// Another worker owns it, or no worker does.
pub(crate) const LOST: u8 = 4;
/// It was given back.
pub(crate) const RELEASED: u8 = 8;
/// It was finished.
pub(crate) const DONE: u8 = 16;
const ENDED: u8 = LOST | RELEASED | DONE;

/// One claim.
pub(crate) struct Unit {
    pub(crate) key: ClaimKey,
    pub(crate) session: Arc<ShardSession>,
    pub(crate) payload: Bytes,
    pub(crate) checkpoint: Option<Bytes>,
    pub(crate) former: PreviousOwner,
    pub(crate) granted: Instant,
    state: AtomicU8,
    /// Whether the user knows of it.
    shown: AtomicBool,
    /// How many handles the user has.
    handles: AtomicU32,
    changed: Notify,
}

impl Unit {
    pub(crate) fn new(granted: Granted, session: &Arc<ShardSession>) -> Arc<Self> {
        Arc::new(Self {
            key: ClaimKey { name: granted.name, epoch: granted.epoch },
            session: session.clone(),
            payload: granted.payload,
            checkpoint: granted.checkpoint,
            former: granted.former,
            granted: Instant::now(),
            state: AtomicU8::new(0),
            shown: AtomicBool::new(false),
            handles: AtomicU32::new(0),
            changed: Notify::new(),
        })
    }

    fn is(&self, mask: u8) -> bool {
        self.state.load(Ordering::Acquire) & mask != 0
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is(ENDED)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is(LOST)
    }

    pub(crate) fn is_recalled(&self) -> bool {
        self.is(RECALLED)
    }

    pub(crate) fn is_settling(&self) -> bool {
        self.is(SETTLING)
    }

    /// Whether no other worker can have it yet.
    pub(crate) fn is_valid(&self) -> bool {
        !self.is_ended() && self.session.is_valid()
    }

    /// Ends it in one way; false if it had ended before.
    pub(crate) fn end(&self, how: u8) -> bool {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            (state & ENDED == 0).then_some(state | how)
        });
        self.changed.notify_waiters();
        before.is_ok()
    }

    /// Asks it back; false if it was asked back or had ended before.
    pub(crate) fn recall(&self) -> bool {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            (state & (ENDED | RECALLED) == 0).then_some(state | RECALLED)
        });
        self.changed.notify_waiters();
        before.is_ok()
    }

    /// Marks that a call that ends it is under way; false if there is one already, or if it has
    /// ended.
    pub(crate) fn begin_settling(&self) -> bool {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            (state & (ENDED | SETTLING) == 0).then_some(state | SETTLING)
        });
        before.is_ok()
    }

    pub(crate) fn stop_settling(&self) {
        self.state.fetch_and(!SETTLING, Ordering::AcqRel);
    }

    /// Waits until one of the states of `mask` holds.
    async fn wait(&self, mask: u8) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is(mask) {
                return;
            }
            changed.await;
        }
    }

    pub(crate) async fn lost(&self) {
        self.wait(ENDED).await;
        if !self.is_lost() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn ended(&self) {
        self.wait(ENDED).await;
    }

    pub(crate) async fn recalled(&self) {
        self.wait(RECALLED | ENDED).await;
    }

    pub(crate) fn show(&self) {
        self.shown.store(true, Ordering::Release);
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.shown.load(Ordering::Acquire)
    }

    pub(crate) fn take_handle(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    /// Gives a handle back; true if it was the last.
    pub(crate) fn drop_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_in_hand(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::facet::ClaimShard;
    use firth_engine::{Epoch, MemberName, OfferName, ServiceName, Token};

    fn unit() -> Arc<Unit> {
        let claim_shard = ClaimShard::new(ServiceName::new("s").unwrap(), 0);
        let membership = Membership {
            claim_shard,
            member: MemberName::new("m").unwrap(),
            number: Epoch(1),
            token: Token(1),
        };
        let session = ShardSession::new(membership, 0, Instant::now(), Duration::from_secs(1));
        let granted = Granted {
            name: OfferName::new("o").unwrap(),
            epoch: Epoch(2),
            payload: Bytes::new(),
            checkpoint: None,
            former: PreviousOwner::Nobody,
        };
        Unit::new(granted, &session)
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_valid_until_its_deadline_and_a_beat_moves_that() {
        let unit = unit();
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(949)).await;
        assert!(unit.is_valid());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!unit.is_valid());
        unit.session.extend(asked + Duration::from_millis(900), Duration::from_secs(1));
        assert!(unit.is_valid());
    }

    #[tokio::test]
    async fn a_claim_ends_once() {
        let unit = unit();
        assert!(unit.recall() && !unit.recall());
        unit.recalled().await;
        assert!(unit.begin_settling() && !unit.begin_settling());
        unit.stop_settling();
        assert!(unit.end(LOST) && !unit.end(DONE) && !unit.recall() && !unit.begin_settling());
        unit.lost().await;
    }
}
