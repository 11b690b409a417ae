//! [`Shard`]: what a worker has on one board, and the steps that its claims ask for.
//!
//! The table here is a copy; the truth is the engine's. Whatever makes the copy doubtful (a lost answer, a count that differs)
//! is noted as suspicion, and the keeper compares the two.

use super::common::Common;
use super::events::Notice;
use super::unit::{DONE, LOST, Life, RELEASED, Unit};
use crate::error::{Error, ErrorKind, Result, closed, invalid};
use bytes::Bytes;
use firth_engine::OfferName;
use firth_engine::facet::{Board, ClaimKey, Former, Granted, Join, Outcome, Taken};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a worker has on one board.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) life: Option<Arc<Life>>,
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
    pub(crate) common: Arc<Common>,
    pub(crate) board: Board,
    pub(crate) index: usize,
    table: Mutex<Table>,
    /// Held while something is granted, so that nobody takes an unread answer for a mistake.
    pub(crate) grants: tokio::sync::Mutex<()>,
    /// Wakes the keeper.
    pub(crate) wake: Notify,
}

impl Shard {
    pub(crate) fn new(common: Arc<Common>, board: Board, index: usize) -> Arc<Self> {
        let (table, grants) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Arc::new(Self { common, board, index, table, grants, wake: Notify::new() })
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics under this lock")
    }

    /// The wish for a seat: made once for all tries, so that one whose answer was lost is known again.
    pub(crate) fn wish(&self) -> Join {
        let config = &self.common.config;
        Join::new(self.common.id.clone(), config.ttl, config.capacity())
    }

    /// Takes in what was granted.
    pub(crate) fn insert(&self, granted: Granted, life: &Arc<Life>) -> Arc<Unit> {
        self.common.meter.granted(&granted.former);
        let unit = Unit::new(granted, life);
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

    /// The seat is over: everything that rested on it is lost.
    pub(crate) fn lose_all(&self, life: &Arc<Life>) {
        let units: Vec<Arc<Unit>> = {
            let mut table = self.table();
            table.recalled.clear();
            table.is_suspect = false;
            table.life = None;
            table.units.values().filter(|unit| Arc::ptr_eq(&unit.life, life)).cloned().collect()
        };
        for unit in units {
            self.finish(&unit, LOST);
        }
    }

    pub(crate) async fn done(&self, unit: &Arc<Unit>) -> Result<()> {
        let keys = [unit.key.clone()];
        let outcome = self.settle(unit, || self.common.engine.done(&unit.life.seat, &keys)).await?;
        debug_assert_eq!(outcome, Outcome::Done);
        self.finish(unit, DONE);
        Ok(())
    }

    pub(crate) async fn release(&self, unit: &Arc<Unit>, rest: Duration) -> Result<()> {
        let keys = [unit.key.clone()];
        self.settle(unit, || self.common.engine.give_back(&unit.life.seat, &keys, rest)).await?;
        self.finish(unit, RELEASED);
        Ok(())
    }

    /// Runs a step that ends a claim, again after passing failures. After an unknown outcome, an offer that is not there any
    /// more or not ours any more counts as the step having happened.
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
        let (config, mut failures, mut unsure) = (&self.common.config, 0, false);
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
            let error = match self.common.engine.checkpoint(&unit.life.seat, &unit.key, state.clone()).await {
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
        let life = self.table().life.clone().filter(|life| life.is_valid()).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the worker has no valid seat just now: try again in a moment")
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
        match self.common.engine.take(&life.seat, name, seize).await {
            Ok(Taken::Granted(granted)) => {
                let unit = self.insert(granted, &life);
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

    /// Gives back claims that were recalled, or that nobody here knows of.
    pub(crate) async fn hand_back(&self, life: &Arc<Life>, keys: &[ClaimKey]) -> Result<Vec<Outcome>> {
        self.table().busy += 1;
        let outcomes = self.common.engine.give_back(&life.seat, keys, Duration::ZERO).await;
        let mut table = self.table();
        table.busy -= 1;
        table.changes += 1;
        table.is_suspect |= outcomes.as_ref().is_err_and(Error::may_have_happened);
        outcomes
    }

    /// Tells of a takeover, then of the grant.
    pub(crate) fn announce(&self, unit: &Arc<Unit>) {
        if let Former::Vanished(last) = &unit.former {
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
