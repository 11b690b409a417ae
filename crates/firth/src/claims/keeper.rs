//! The keeper: one task per shard that sees to it that the worker has its share there, no more and no less, and that what it believes to
//! have is what it has.
//!
//! Each pulse of the heart is looked at once. Hints, the next expiry of a rival and room in the event queue ask for a pulse; so does,
//! three times per TTL, the heart itself: that sweep on the engine's clock is the guarantee, everything else is speed.

use super::events::Notice;
use super::heart::{Heard, Heart};
use super::shard::Shard;
use super::unit::{LOST, Life, RELEASED, Unit};
use super::watchman::Watchman;
use crate::error::{ErrorKind, Result};
use firth_engine::facet::{ClaimKey, Join, Outcome};
use firth_engine::limits::MAX_BOARD_BATCH;
use firth_engine::{Epoch, HintKey, OfferName};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// One more than what was asked for: the engine counts in milliseconds and rounds a deadline up.
const TICK: Duration = Duration::from_millis(1);

/// Why serving ended.
enum End {
    Closing,
    Over,
}

pub(crate) struct Keeper {
    shard: Arc<Shard>,
    watchman: Watchman,
    losses: u64,
    /// Missing at the engine when last compared: missing twice is lost.
    missing: BTreeSet<OfferName>,
    /// Orphans that were announced.
    announced: BTreeSet<(OfferName, Epoch)>,
}

impl Keeper {
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        let (missing, announced) = (BTreeSet::new(), BTreeSet::new());
        Self { shard, watchman: Watchman::default(), losses: 0, missing, announced }
    }

    /// Runs until the worker closes; an error means that it cannot go on.
    pub(crate) async fn run(mut self, mut life: Arc<Life>) -> Result<()> {
        loop {
            let heart = Heart::start(self.shard.clone(), life.clone());
            match self.serve(&life, heart).await {
                End::Closing => {
                    return Ok(());
                }
                End::Over => self.shard.lose_all(&life),
            }
            match self.rejoin(&life).await? {
                Some(next) => life = next,
                None => return Ok(()),
            }
        }
    }

    async fn serve(&mut self, life: &Arc<Life>, mut heart: Heart) -> End {
        self.losses = 0;
        self.missing.clear();
        let common = self.shard.common.clone();
        let mut hint = common.engine.hint(HintKey::Board(self.shard.board.clone()));
        let mut timer = Instant::now() + common.config.ttl;
        loop {
            let shard = self.shard.clone();
            tokio::select! {
                biased;
                () = common.closing.cancelled() => {
                    self.hand_over(life, heart).await;
                    return End::Closing;
                }
                _ = &mut heart.task => return End::Over,
                changed = heart.pulses.changed() => {
                    if changed.is_err() {
                        return End::Over;
                    }
                    let heard = heart.pulses.borrow_and_update().clone();
                    match self.act(life, &heard).await {
                        Ok(next) => timer = next,
                        Err(error) if error.kind() == ErrorKind::Fenced => return End::Over,
                        Err(error) => {
                            tracing::warn!(%error, board = %shard.board, "cannot see to the claims; trying again");
                            timer = Instant::now() + common.config.backoff.delay(1).min(common.config.ttl / 3);
                        }
                    }
                }
                () = hint.wait() => heart.ask(),
                () = shard.wake.notified() => heart.ask(),
                () = common.queue.drained.notified() => heart.ask(),
                () = tokio::time::sleep_until(timer) => {
                    timer = Instant::now() + common.config.ttl;
                    heart.ask();
                }
            }
        }
    }

    /// Acts on a pulse; answers when the next one is wanted.
    async fn act(&mut self, life: &Arc<Life>, heard: &Heard) -> Result<Instant> {
        let (pulse, common) = (&heard.pulse, self.shard.common.clone());
        common.note(self.shard.index, pulse);
        let seats = pulse.seats.as_deref().unwrap_or_default();
        if pulse.losses != self.losses || heard.believed.is_some_and(|believed| believed != pulse.held) {
            self.shard.table().is_suspect = true;
        }
        self.losses = pulse.losses;
        if self.shard.table().is_suspect {
            self.compare(life).await?;
        }
        self.recall(life, seats).await?;
        let can_be_had = pulse.orphaned > 0 || pulse.next_free.is_some_and(|after| after.is_zero());
        if can_be_had && common.config.automatic {
            self.grant(life, seats).await?;
        }
        if pulse.orphaned > 0 {
            self.announce_orphans().await?;
        } else {
            self.announced.clear();
        }
        self.watchman.look(&self.shard, life).await?;
        Ok(self.next_look(heard))
    }

    /// When something will be different even if nobody says so.
    fn next_look(&self, heard: &Heard) -> Instant {
        let now = Instant::now();
        let config = &self.shard.common.config;
        let rests = heard.pulse.next_free.filter(|after| !after.is_zero());
        let handover = self.shard.table().recalled.iter().map(|(_, until)| until.duration_since(now)).min();
        let soonest = [heard.pulse.next_expiry, rests, handover].into_iter().flatten().min();
        now + soonest.map_or(config.ttl, |after| after + TICK).min(config.ttl)
    }

    /// Asks for what is missing, page by page.
    async fn grant(&mut self, life: &Arc<Life>, seats: &[(Epoch, u64)]) -> Result<()> {
        let common = self.shard.common.clone();
        loop {
            let wanted = common.reserve(seats, life.seat.number, MAX_BOARD_BATCH);
            if wanted == 0 || common.closing.is_cancelled() {
                common.granted(wanted);
                return Ok(());
            }
            let asked = Instant::now();
            let _alone = self.shard.grants.lock().await;
            let answer = common.engine.grant(&life.seat, wanted).await;
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
                let unit = self.shard.insert(granted, life);
                self.shard.announce(&unit);
            }
            if count < wanted {
                return Ok(());
            }
        }
    }

    /// Recalls what others should have, and gives back what their holders let go or have kept too long.
    async fn recall(&mut self, life: &Arc<Life>, seats: &[(Epoch, u64)]) -> Result<()> {
        let common = self.shard.common.clone();
        let available = {
            let table = self.shard.table();
            table.units.len() - table.recalled.len().min(table.units.len())
        };
        let surplus = match common.closing.is_cancelled() {
            true => 0,
            false => common.surplus(seats, life.seat.number, available),
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
        for units in ripe.chunks(MAX_BOARD_BATCH) {
            let keys: Vec<ClaimKey> = units.iter().map(|unit| unit.key.clone()).collect();
            let outcomes = self.shard.hand_back(life, &keys).await?;
            for (unit, outcome) in units.iter().zip(outcomes) {
                let was_taken = unit.is_in_hand() || outcome != Outcome::Done;
                self.shard.finish(unit, if was_taken { LOST } else { RELEASED });
            }
        }
        Ok(())
    }

    /// The units that were granted last: they have the least to lose. Exactly `count`, or the difference is not recalled after all.
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

    /// Compares what the worker believes to have with what it has: what is not there (twice) is lost, what nobody here knows of
    /// (the answer was lost) is given back.
    async fn compare(&mut self, life: &Arc<Life>) -> Result<()> {
        let shard = self.shard.clone();
        let _alone = shard.grants.lock().await;
        let (before, changes) = {
            let table = shard.table();
            let units = table.units.values().filter(|unit| !unit.is_settling());
            (units.cloned().collect::<Vec<_>>(), table.changes)
        };
        let mut there: HashMap<OfferName, Epoch> = HashMap::new();
        loop {
            let page = shard.common.engine.owned(&life.seat, there.len(), MAX_BOARD_BATCH).await?;
            let is_last = page.len() < MAX_BOARD_BATCH;
            there.extend(page.into_iter().map(|claim| (claim.name, claim.epoch)));
            if is_last {
                break;
            }
        }
        // Something of ours happened meanwhile: pages may have shifted. The suspicion stays, the next pulse tries again.
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
        let is_certain = there.len() < MAX_BOARD_BATCH || missing.is_subset(&self.missing);
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
        for keys in unknown.chunks(MAX_BOARD_BATCH) {
            shard.hand_back(life, keys).await?;
        }
        self.missing.clear();
        shard.table().is_suspect = false;
        shard.common.meter.reconciled.increment(1);
        Ok(())
    }

    /// Tells of orphans that nobody takes: all workers are full, or this one takes only what it asks for.
    async fn announce_orphans(&mut self) -> Result<()> {
        let common = self.shard.common.clone();
        let is_full = common.held() >= common.config.max_claims;
        if common.config.automatic && !is_full {
            return Ok(());
        }
        let orphans =
            common.engine.orphans(&self.shard.board, common.queue.room().clamp(1, MAX_BOARD_BATCH)).await?;
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

    /// Asks everything back, waits for those who hold claims, then leaves in one step: whatever is left is free at once.
    async fn hand_over(&mut self, life: &Arc<Life>, mut heart: Heart) {
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
                _ = &mut heart.task => break,
            }
        }
        heart.task.stop().await;
        let mut failures = 0;
        while let Err(error) = common.engine.leave(&life.seat).await {
            failures += 1;
            if !error.is_retryable() || failures > common.config.retries || !life.is_valid() {
                tracing::warn!(%error, board = %self.shard.board, "a seat was not given back; it runs out");
                break;
            }
            tokio::time::sleep(common.config.backoff.delay(failures)).await;
        }
        let rest: Vec<Arc<Unit>> = self.shard.table().units.values().cloned().collect();
        for unit in rest {
            let how = if unit.is_in_hand() { LOST } else { RELEASED };
            self.shard.finish(&unit, how);
        }
        self.shard.table().life = None;
    }

    /// Begins a new life after the last one ended, unless another process took over the name; `None` if the worker closes meanwhile.
    async fn rejoin(&mut self, last: &Arc<Life>) -> Result<Option<Arc<Life>>> {
        let common = self.shard.common.clone();
        let wish = Join { after: Some(last.seat.number), ..self.shard.wish() };
        let mut failures = 0;
        loop {
            let joined = tokio::select! {
                () = common.closing.cancelled() => return Ok(None),
                joined = join(&self.shard, &wish) => joined,
            };
            match joined {
                Ok(life) => return Ok(Some(life)),
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    tracing::warn!(%error, board = %self.shard.board, "cannot join; trying again");
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

/// Takes a seat on the shard's board.
pub(crate) async fn join(shard: &Arc<Shard>, wish: &Join) -> Result<Arc<Life>> {
    let common = &shard.common;
    let asked = Instant::now();
    let seat = common.engine.join(&shard.board, wish.clone()).await?;
    common.meter.joins.increment(1);
    let life = Life::new(seat, shard.index, asked, wish.ttl);
    shard.table().life = Some(life.clone());
    Ok(life)
}
