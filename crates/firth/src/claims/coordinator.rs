//! The claim coordinator: one task per shard. It keeps the worker's share there neither too large
//! nor too small, and the worker's table equal to the engine's.
//!
//! It acts once on each reply to a heartbeat. Hints, the next expiry of another worker and room in
//! the event queue ask for a heartbeat. The heartbeat task itself sends one three times per TTL:
//! that sweep on the engine's clock is the guarantee, and the hints only make it faster.

use super::events::Notice;
use super::heartbeat::{HeartbeatReply, HeartbeatTask};
use super::shard::Shard;
use super::stalled_members::StalledMembers;
use super::unit::{LOST, RELEASED, ShardSession, Unit};
use crate::error::{ErrorKind, Result};
use firth_engine::facet::{ClaimKey, Join, Outcome};
use firth_engine::limits::MAX_CLAIM_SHARD_BATCH;
use firth_engine::{Epoch, HintKey, OfferName};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// One more than what was asked for: the engine counts in milliseconds and rounds a deadline up.
const TICK: Duration = Duration::from_millis(1);

/// Why serving ended.
enum ServingEnd {
    Closing,
    Over,
}

pub(crate) struct ClaimCoordinator {
    shard: Arc<Shard>,
    stalled: StalledMembers,
    losses: u64,
    /// Missing at the engine when last compared: missing twice is lost.
    missing: BTreeSet<OfferName>,
    /// Orphans that were announced.
    announced: BTreeSet<(OfferName, Epoch)>,
}

impl ClaimCoordinator {
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        let missing = BTreeSet::new();
        let announced = BTreeSet::new();
        Self { shard, stalled: StalledMembers::default(), losses: 0, missing, announced }
    }

    /// Runs until the worker closes; an error means that it cannot go on.
    pub(crate) async fn run(mut self, mut session: Arc<ShardSession>) -> Result<()> {
        loop {
            let heartbeat = HeartbeatTask::start(self.shard.clone(), session.clone());
            match self.serve(&session, heartbeat).await {
                ServingEnd::Closing => {
                    return Ok(());
                }
                ServingEnd::Over => self.shard.lose_all(&session),
            }
            match self.rejoin(&session).await? {
                Some(next) => session = next,
                None => return Ok(()),
            }
        }
    }

    async fn serve(&mut self, session: &Arc<ShardSession>, mut heartbeat: HeartbeatTask) -> ServingEnd {
        self.losses = 0;
        self.missing.clear();
        let common = self.shard.common.clone();
        let mut hint = common.engine.hint(HintKey::ClaimShard(self.shard.claim_shard.clone()));
        let mut timer = Instant::now() + common.config.ttl;
        loop {
            let shard = self.shard.clone();
            tokio::select! {
                biased;
                () = common.closing.cancelled() => {
                    self.hand_over(session, heartbeat).await;
                    return ServingEnd::Closing;
                }
                _ = &mut heartbeat.task => return ServingEnd::Over,
                changed = heartbeat.statuses.changed() => {
                    if changed.is_err() {
                        return ServingEnd::Over;
                    }
                    let reply = heartbeat.statuses.borrow_and_update().clone();
                    match self.act(session, &reply).await {
                        Ok(next) => timer = next,
                        Err(error) if error.kind() == ErrorKind::Fenced => return ServingEnd::Over,
                        Err(error) => {
                            tracing::warn!(%error, claim_shard = %shard.claim_shard, "cannot see to the claims; trying again");
                            timer = Instant::now() + common.config.backoff.delay(1).min(common.config.ttl / 3);
                        }
                    }
                }
                () = hint.wait() => heartbeat.ask(),
                () = shard.wake.notified() => heartbeat.ask(),
                () = common.queue.drained.notified() => heartbeat.ask(),
                () = tokio::time::sleep_until(timer) => {
                    timer = Instant::now() + common.config.ttl;
                    heartbeat.ask();
                }
            }
        }
    }

    /// Acts on a pulse; answers when the next one is wanted.
    async fn act(&mut self, session: &Arc<ShardSession>, reply: &HeartbeatReply) -> Result<Instant> {
        let status = &reply.status;
        let common = self.shard.common.clone();
        common.note(self.shard.index, status);
        let memberships = status.memberships.as_deref().unwrap_or_default();
        if status.losses != self.losses || reply.believed.is_some_and(|believed| believed != status.held) {
            self.shard.table().is_suspect = true;
        }
        self.losses = status.losses;
        if self.shard.table().is_suspect {
            self.compare(session).await?;
        }
        self.recall(session, memberships).await?;
        let can_be_had = status.orphaned > 0 || status.next_free.is_some_and(|after| after.is_zero());
        if can_be_had && common.config.automatic {
            self.grant(session, memberships).await?;
        }
        if status.orphaned > 0 {
            self.announce_orphans().await?;
        } else {
            self.announced.clear();
        }
        self.stalled.expel(&self.shard, session).await?;
        Ok(self.next_look(reply))
    }

    /// Time of the next look, for changes that no hint announces: another worker expires, the rest
    /// of a unit ends, or a handover is over.
    fn next_look(&self, reply: &HeartbeatReply) -> Instant {
        let now = Instant::now();
        let config = &self.shard.common.config;
        let rests = reply.status.next_free.filter(|after| !after.is_zero());
        let handover = self.shard.table().recalled.iter().map(|(_, until)| until.duration_since(now)).min();
        let soonest = [reply.status.next_expiry, rests, handover].into_iter().flatten().min();
        now + soonest.map_or(config.ttl, |after| after + TICK).min(config.ttl)
    }

    /// Asks for what is missing, page by page.
    async fn grant(&mut self, session: &Arc<ShardSession>, memberships: &[(Epoch, u64)]) -> Result<()> {
        let common = self.shard.common.clone();
        loop {
            let wanted = common.reserve(memberships, session.membership.number, MAX_CLAIM_SHARD_BATCH);
            if wanted == 0 || common.closing.is_cancelled() {
                common.granted(wanted);
                return Ok(());
            }
            let asked = Instant::now();
            let _alone = self.shard.grants.lock().await;
            let answer = common.engine.grant(&session.membership, wanted).await;
            common.granted(wanted);
            common.meter.asked(asked.elapsed());
            let granted = match answer {
                Ok(granted) => granted,
                Err(error) => {
                    self.shard.table().is_suspect |= error.may_have_happened();
                    return Err(error);
                }
            };
            let count = granted.len();
            for granted in granted {
                let unit = self.shard.insert(granted, session);
                self.shard.announce(&unit);
            }
            if count < wanted {
                return Ok(());
            }
        }
    }

    /// Recalls what others should have, and gives back what their holders let go or have kept too
    /// long.
    async fn recall(&mut self, session: &Arc<ShardSession>, memberships: &[(Epoch, u64)]) -> Result<()> {
        let common = self.shard.common.clone();
        let available = {
            let table = self.shard.table();
            table.units.len() - table.recalled.len().min(table.units.len())
        };
        let surplus = match common.closing.is_cancelled() {
            true => 0,
            false => common.surplus(memberships, session.membership.number, available),
        };
        if surplus > 0 {
            self.call_back(self.newest(surplus));
        }
        if self.shard.table().recalled.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let ripe: Vec<Arc<Unit>> = {
            let mut table = self.shard.table();
            table.recalled.retain(|(unit, _)| !unit.is_ended());
            let ripe = table
                .recalled
                .iter()
                .filter(|(unit, until)| !unit.is_settling() && (!unit.is_in_hand() || *until <= now));
            ripe.map(|(unit, _)| unit.clone()).collect()
        };
        for units in ripe.chunks(MAX_CLAIM_SHARD_BATCH) {
            let keys: Vec<ClaimKey> = units.iter().map(|unit| unit.key.clone()).collect();
            let outcomes = self.shard.hand_back(session, &keys).await?;
            for (unit, outcome) in units.iter().zip(outcomes) {
                let was_taken = unit.is_in_hand() || outcome != Outcome::Done;
                self.shard.finish(unit, if was_taken { LOST } else { RELEASED });
            }
        }
        Ok(())
    }

    /// The units that were granted last: they have the least to lose. Exactly `count`, or the
    /// difference is not recalled after all.
    fn newest(&self, count: usize) -> Vec<Arc<Unit>> {
        let mut units: Vec<Arc<Unit>> = {
            let table = self.shard.table();
            let open = table.units.values().filter(|unit| !unit.is_recalled() && !unit.is_settling());
            open.cloned().collect()
        };
        units.sort_by(|a, b| (b.key.epoch, &b.key.name).cmp(&(a.key.epoch, &a.key.name)));
        units.truncate(count);
        self.shard.common.count_recalled(units.len() as i64 - count as i64);
        units
    }

    /// Marks units as recalled; they must be counted as such already.
    fn call_back(&self, units: Vec<Arc<Unit>>) {
        let common = &self.shard.common;
        let until = Instant::now() + common.config.handover;
        for unit in units {
            if !unit.recall() {
                common.count_recalled(-1);
                continue;
            }
            common.meter.recalled.increment(1);
            common.queue.push(Notice::Recalled(unit.clone()));
            self.shard.table().recalled.push((unit, until));
        }
    }

    /// Compares the claims in the worker's table with those in the engine. A claim that the engine
    /// does not have is lost (if the answer has several pages, only after a second look). A claim
    /// that the table does not know (the answer to its grant was lost) is given back.
    async fn compare(&mut self, session: &Arc<ShardSession>) -> Result<()> {
        let shard = self.shard.clone();
        let _alone = shard.grants.lock().await;
        let (before, changes) = {
            let table = shard.table();
            let units = table.units.values().filter(|unit| !unit.is_settling());
            (units.cloned().collect::<Vec<_>>(), table.changes)
        };
        let mut there: HashMap<OfferName, Epoch> = HashMap::new();
        loop {
            let page =
                shard.common.engine.owned(&session.membership, there.len(), MAX_CLAIM_SHARD_BATCH).await?;
            let is_last = page.len() < MAX_CLAIM_SHARD_BATCH;
            there.extend(page.into_iter().map(|claim| (claim.name, claim.epoch)));
            if is_last {
                break;
            }
        }
        // Claims of ours changed during the reading: pages may have shifted. The suspicion stays,
        // and the next heartbeat tries again.
        let is_still = {
            let table = shard.table();
            table.changes == changes && table.busy == 0
        };
        let gone = before.iter().filter(|unit| there.get(&unit.key.name) != Some(&unit.key.epoch));
        let gone: Vec<&Arc<Unit>> = gone.filter(|unit| !unit.is_ended() && !unit.is_settling()).collect();
        let missing: BTreeSet<OfferName> = gone.iter().map(|unit| unit.key.name.clone()).collect();
        if !is_still {
            shard.wake.notify_one();
            return Ok(());
        }
        let is_certain = there.len() < MAX_CLAIM_SHARD_BATCH || missing.is_subset(&self.missing);
        if !is_certain {
            self.missing = missing;
            shard.wake.notify_one();
            return Ok(());
        }
        gone.into_iter().for_each(|unit| shard.finish(unit, LOST));
        let unknown: Vec<ClaimKey> = {
            let table = shard.table();
            let unknown = there.into_iter().filter(|(name, _)| !table.units.contains_key(name));
            unknown.map(|(name, epoch)| ClaimKey { name, epoch }).collect()
        };
        for keys in unknown.chunks(MAX_CLAIM_SHARD_BATCH) {
            shard.hand_back(session, keys).await?;
        }
        self.missing.clear();
        shard.table().is_suspect = false;
        shard.common.meter.reconciled.increment(1);
        Ok(())
    }

    /// Tells the program of orphans that this worker does not take by itself: it is full, or it
    /// takes units by name only.
    async fn announce_orphans(&mut self) -> Result<()> {
        let common = self.shard.common.clone();
        let is_full = common.held() >= common.config.max_claims;
        if common.config.automatic && !is_full {
            return Ok(());
        }
        let orphans = common
            .engine
            .orphans(&self.shard.claim_shard, common.queue.room().clamp(1, MAX_CLAIM_SHARD_BATCH))
            .await?;
        for orphan in orphans {
            let firth_engine::facet::OfferState::Orphaned { last } = orphan.state else { continue };
            let key = (orphan.name.clone(), orphan.epoch);
            if self.announced.contains(&key) {
                continue;
            }
            if self.announced.len() >= common.config.buffer {
                self.announced.clear();
            }
            if common.queue.push(Notice::Orphaned { name: orphan.name, last_owner: last }) {
                self.announced.insert(key);
            }
        }
        Ok(())
    }

    /// Recalls every claim, waits up to `handover` for the holders, then leaves in one step: the
    /// claims that are left are free at once.
    async fn hand_over(&mut self, session: &Arc<ShardSession>, mut heartbeat: HeartbeatTask) {
        let common = self.shard.common.clone();
        let units: Vec<Arc<Unit>> = self.shard.table().units.values().cloned().collect();
        let fresh: Vec<Arc<Unit>> = units.into_iter().filter(|unit| !unit.is_recalled()).collect();
        common.count_recalled(fresh.len() as i64);
        self.call_back(fresh);
        let until = Instant::now() + common.config.handover;
        while self.shard.table().units.values().any(|unit| unit.is_in_hand()) {
            tokio::select! {
                () = self.shard.wake.notified() => {}
                () = tokio::time::sleep_until(until) => break,
                _ = &mut heartbeat.task => break,
            }
        }
        heartbeat.task.stop().await;
        let mut failures = 0;
        while let Err(error) = common.engine.leave(&session.membership).await {
            failures += 1;
            if !error.is_retryable() || failures > common.config.retries || !session.is_valid() {
                tracing::warn!(%error, claim_shard = %self.shard.claim_shard, "a membership was not given back; it runs out");
                break;
            }
            tokio::time::sleep(common.config.backoff.delay(failures)).await;
        }
        let rest: Vec<Arc<Unit>> = self.shard.table().units.values().cloned().collect();
        for unit in rest {
            let how = if unit.is_in_hand() { LOST } else { RELEASED };
            self.shard.finish(&unit, how);
        }
        self.shard.table().session = None;
    }

    /// Begins a new session after the last one ended, unless another process took over the name;
    /// `None` if the worker closes first.
    async fn rejoin(&mut self, last: &Arc<ShardSession>) -> Result<Option<Arc<ShardSession>>> {
        let common = self.shard.common.clone();
        let request = Join { after: Some(last.membership.number), ..self.shard.request() };
        let mut failures = 0;
        loop {
            let joined = tokio::select! {
                () = common.closing.cancelled() => return Ok(None),
                joined = join(&self.shard, &request) => joined,
            };
            match joined {
                Ok(session) => return Ok(Some(session)),
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    tracing::warn!(%error, claim_shard = %self.shard.claim_shard, "cannot join; trying again");
                    let pause =
                        tokio::time::sleep(common.config.backoff.delay(failures).min(common.config.ttl));
                    if common.closing.run_until_cancelled(pause).await.is_none() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Joins the claim shard of `shard`.
pub(crate) async fn join(shard: &Arc<Shard>, request: &Join) -> Result<Arc<ShardSession>> {
    let common = &shard.common;
    let asked = Instant::now();
    let membership = common.engine.join(&shard.claim_shard, request.clone()).await?;
    common.meter.joins.increment(1);
    let session = ShardSession::new(membership, shard.index, asked, request.ttl);
    shard.table().session = Some(session.clone());
    Ok(session)
}
