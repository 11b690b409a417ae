//! [`Shard`]: what a worker has on one claim shard, and the steps that its claims ask for.
//!
//! The table here is a copy; the truth is the engine's. If the copy may be wrong (a lost answer, a
//! count that differs), the shard is marked as suspect and the coordinator compares the two.

use super::common::WorkerCommon;
use super::events::Notice;
use super::unit::{DONE, LOST, RELEASED, ShardSession, Unit};
use crate::error::{Error, ErrorKind, Result, closed, invalid};
use bytes::Bytes;
use firth_engine::OfferName;
use firth_engine::facet::{ClaimKey, ClaimShard, Granted, Join, Outcome, PreviousOwner, Taken};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a worker has on one claim shard.
#[derive(Default)]
pub(crate) struct ShardTable {
    pub(crate) session: Option<Arc<ShardSession>>,
    pub(crate) units: HashMap<OfferName, Arc<Unit>>,
    /// Recalled units, and until when their holders may take their time.
    pub(crate) recalled: Vec<(Arc<Unit>, Instant)>,
    /// Changes with each step of ours.
    pub(crate) changes: u64,
    /// Steps of ours under way.
    pub(crate) busy: u32,
    /// The engine may know something else.
    pub(crate) is_suspect: bool,
}

pub(crate) struct Shard {
    pub(crate) common: Arc<WorkerCommon>,
    pub(crate) claim_shard: ClaimShard,
    pub(crate) index: usize,
    table: Mutex<ShardTable>,
    /// Held during a grant and during the coordinator's comparison. Otherwise the coordinator would
    /// give back a claim whose grant is not in the table yet.
    pub(crate) grants: tokio::sync::Mutex<()>,
    /// Wakes the coordinator.
    pub(crate) wake: Notify,
}

impl Shard {
    pub(crate) fn new(common: Arc<WorkerCommon>, claim_shard: ClaimShard, index: usize) -> Arc<Self> {
        let table = Mutex::default();
        let grants = tokio::sync::Mutex::new(());
        Arc::new(Self { common, claim_shard, index, table, grants, wake: Notify::new() })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, ShardTable> {
        self.table.lock().expect("nothing panics under this lock")
    }

    /// The request for a membership: made once for all tries, so that one whose answer was lost is
    /// known again.
    pub(crate) fn request(&self) -> Join {
        let config = &self.common.config;
        Join::new(self.common.id.clone(), config.ttl, config.capacity())
    }

    /// Takes in what was granted.
    pub(crate) fn insert(&self, granted: Granted, session: &Arc<ShardSession>) -> Arc<Unit> {
        self.common.meter.granted(&granted.former);
        let unit = Unit::new(granted, session);
        let former = {
            let mut table = self.table();
            table.changes += 1;
            table.units.insert(unit.key.name.clone(), unit.clone())
        };
        self.common.count(1);
        // Granted anew while we still believed to have it: the old claim is over.
        if let Some(former) = former {
            self.common.count(-1);
            self.tell_end(&former, LOST);
        }
        unit
    }

    /// Takes out a claim that ended in some way, and tells.
    pub(crate) fn finish(&self, unit: &Arc<Unit>, how: u8) {
        {
            let mut table = self.table();
            table.changes += 1;
            if table.units.get(&unit.key.name).is_some_and(|known| Arc::ptr_eq(known, unit)) {
                table.units.remove(&unit.key.name);
                drop(table);
                self.common.count(-1);
            }
        }
        self.tell_end(unit, how);
    }

    fn tell_end(&self, unit: &Arc<Unit>, how: u8) {
        if !unit.end(how) {
            return;
        }
        if unit.is_recalled() {
            self.common.count_recalled(-1);
        }
        let meter = &self.common.meter;
        match how {
            LOST => {
                meter.lost.increment(1);
                self.common.queue.push(Notice::Lost(unit.clone()));
            }
            RELEASED => {
                meter.given_back.increment(1);
                self.common.queue.push(Notice::Released(unit.clone()));
            }
            _ => meter.done.increment(1),
        }
        meter.held_for(unit.granted.elapsed());
        self.wake.notify_one();
    }

    /// The membership is over: everything that rested on it is lost.
    pub(crate) fn lose_all(&self, session: &Arc<ShardSession>) {
        let units: Vec<Arc<Unit>> = {
            let mut table = self.table();
            table.recalled.clear();
            table.is_suspect = false;
            table.session = None;
            table.units.values().filter(|unit| Arc::ptr_eq(&unit.session, session)).cloned().collect()
        };
        for unit in units {
            self.finish(&unit, LOST);
        }
    }

    pub(crate) async fn done(&self, unit: &Arc<Unit>) -> Result<()> {
        let keys = [unit.key.clone()];
        let outcome = self.settle(unit, || self.common.engine.done(&unit.session.membership, &keys)).await?;
        debug_assert_eq!(outcome, Outcome::Done);
        self.finish(unit, DONE);
        Ok(())
    }

    pub(crate) async fn release(&self, unit: &Arc<Unit>, rest: Duration) -> Result<()> {
        let keys = [unit.key.clone()];
        self.settle(unit, || self.common.engine.give_back(&unit.session.membership, &keys, rest)).await?;
        self.finish(unit, RELEASED);
        Ok(())
    }

    /// Runs a step that ends a claim, again after passing failures. After an unknown outcome, an
    /// offer that is not there any more or not ours any more counts as the step having happened.
    async fn settle<'a>(
        &'a self,
        unit: &'a Arc<Unit>,
        step: impl Fn() -> firth_engine::facet::Reply<'a, Vec<Outcome>>,
    ) -> Result<Outcome> {
        if !unit.begin_settling() {
            return Err(if unit.is_ended() {
                over(unit)
            } else {
                invalid(format!("claim {} is being settled already", unit.key.name))
            });
        }
        let _settling = Settling::begin(self, unit);
        let config = &self.common.config;
        let mut failures = 0;
        let mut unsure = false;
        loop {
            let error = match step().await {
                Ok(outcomes) => match outcomes.first() {
                    Some(Outcome::Done) => return Ok(Outcome::Done),
                    _ if unsure => return Ok(Outcome::Done),
                    _ => over(unit),
                },
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Fenced {
                self.finish(unit, LOST);
                return Err(error);
            }
            unsure |= error.may_have_happened();
            failures += 1;
            if !error.is_retryable() || failures > config.retries || !unit.is_valid() {
                self.table().is_suspect |= unsure;
                return Err(error.during(format_args!("settling claim {}", unit.key.name)));
            }
            tokio::time::sleep(config.backoff.delay(failures)).await;
        }
    }

    pub(crate) async fn checkpoint(&self, unit: &Arc<Unit>, state: Bytes) -> Result<()> {
        if unit.is_ended() {
            return Err(over(unit));
        }
        let mut failures = 0;
        loop {
            let error =
                match self.common.engine.checkpoint(&unit.session.membership, &unit.key, state.clone()).await
                {
                    Ok(Outcome::Done) => {
                        self.common.meter.checkpoints.increment(1);
                        return Ok(());
                    }
                    Ok(_) => over(unit),
                    Err(error) => error,
                };
            if error.kind() == ErrorKind::Fenced {
                self.finish(unit, LOST);
                return Err(error);
            }
            failures += 1;
            if !error.is_retryable() || failures > self.common.config.retries || !unit.is_valid() {
                return Err(error.during(format_args!("checkpoint of claim {}", unit.key.name)));
            }
            tokio::time::sleep(self.common.config.backoff.delay(failures)).await;
        }
    }

    /// Takes an offer by name.
    pub(crate) async fn take(&self, name: &OfferName, seize: bool) -> Result<Arc<Unit>> {
        let _alone = self.grants.lock().await;
        let session = self.table().session.clone().filter(|session| session.is_valid()).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "the worker has no valid membership just now: try again in a moment",
            )
        })?;
        if self.common.closing.is_cancelled() {
            return Err(closed("the worker closes"));
        }
        if self.common.held() >= self.common.config.max_claims {
            let context = format!(
                "the worker has max_claims = {}: raise it, or give something back",
                self.common.config.max_claims
            );
            return Err(Error::new(ErrorKind::Overloaded, context));
        }
        match self.common.engine.take(&session.membership, name, seize).await {
            Ok(Taken::Granted(granted)) => {
                let unit = self.insert(granted, &session);
                unit.show();
                Ok(unit)
            }
            Ok(Taken::Held { by, .. }) => {
                Err(Error::new(ErrorKind::AlreadyExists, format!("{name} is already claimed by {by}")))
            }
            Ok(Taken::Missing) => {
                Err(Error::new(ErrorKind::NotFound, format!("{name} is not offered by this service")))
            }
            Err(error) => {
                self.table().is_suspect |= error.may_have_happened();
                Err(error.during(format_args!("claim {name}")))
            }
        }
    }

    /// Gives back claims that were recalled, or that the table does not know.
    pub(crate) async fn hand_back(
        &self,
        session: &Arc<ShardSession>,
        keys: &[ClaimKey],
    ) -> Result<Vec<Outcome>> {
        self.table().busy += 1;
        let outcomes = self.common.engine.give_back(&session.membership, keys, Duration::ZERO).await;
        let mut table = self.table();
        table.busy -= 1;
        table.changes += 1;
        table.is_suspect |= outcomes.as_ref().is_err_and(Error::may_have_happened);
        outcomes
    }

    /// Tells of a takeover, then of the grant.
    pub(crate) fn announce(&self, unit: &Arc<Unit>) {
        if let PreviousOwner::Vanished(last) = &unit.former {
            let name = unit.key.name.clone();
            self.common.queue.push(Notice::Orphaned { name, last_owner: last.clone() });
        }
        self.common.queue.push(Notice::Granted(unit.clone()));
    }
}

fn over(unit: &Unit) -> Error {
    let ClaimKey { name, epoch } = &unit.key;
    Error::new(ErrorKind::Fenced, format!("claim {name} under epoch {epoch} is over: stop working on it"))
}

/// A settling step under way; also when its future is dropped, nothing stays locked.
struct Settling<'a> {
    shard: &'a Shard,
    unit: &'a Arc<Unit>,
}

impl<'a> Settling<'a> {
    fn begin(shard: &'a Shard, unit: &'a Arc<Unit>) -> Self {
        shard.table().busy += 1;
        Self { shard, unit }
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        let mut table = self.shard.table();
        table.busy -= 1;
        table.changes += 1;
        drop(table);
        self.unit.stop_settling();
    }
}
