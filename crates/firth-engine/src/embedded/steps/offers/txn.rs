//! [`ShardTxn`]: one claim shard in the hands of one step. It keeps counters, members and indexes
//! in agreement, so that the steps themselves only say what moves where.

use crate::embedded::claim_shard_values::{ClaimShardMeta, MemberEntry, OfferEntry, Presence};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::Value;
use crate::error::{Error, Result};
use crate::facet::{ClaimShard, Membership};
use crate::id::Epoch;
use crate::name::{MemberName, OfferName};
use crate::watch::HintKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

pub(super) struct ShardTxn<'s, 'a> {
    pub(super) step: &'s mut Step<'a>,
    pub(super) claim_shard: ClaimShard,
    pub(super) meta: ClaimShardMeta,
    pub(super) members: BTreeMap<u64, MemberEntry>,
    touched: BTreeSet<u64>,
    /// Offers that this step has seen or changed: a step does not see its own writes.
    offers: HashMap<OfferName, Option<OfferEntry>>,
}

impl<'s, 'a> ShardTxn<'s, 'a> {
    pub(super) fn open(step: &'s mut Step<'a>, claim_shard: &ClaimShard) -> Result<Self> {
        let meta = step.load(&keys::claim_shard(claim_shard))?.unwrap_or_default();
        let members = members(step, claim_shard)?;
        let claim_shard = claim_shard.clone();
        Ok(Self { step, claim_shard, meta, members, touched: BTreeSet::new(), offers: HashMap::new() })
    }

    /// As [`open`](Self::open) for a member that is there, after those whose time ran out are
    /// declared gone.
    pub(super) fn of_member(step: &'s mut Step<'a>, membership: &Membership) -> Result<Self> {
        let mut txn = Self::open(step, &membership.claim_shard)?;
        let revive = txn.step.planted(Mutation::ZombieBeats);
        let is_there = txn.members.get(&membership.number.0).is_some_and(|member| {
            let present = member.presence == Presence::Alive || revive;
            present && member.token == membership.token && member.member == membership.member
        });
        if !is_there {
            return Err(membership.over());
        }
        txn.sweep(membership.number.0);
        Ok(txn)
    }

    /// Declares members gone whose time ran out, but not `except`, which is just giving a sign of
    /// life.
    fn sweep(&mut self, except: u64) {
        if self.step.planted(Mutation::NeverSweep) {
            return;
        }
        let now = self.step.now;
        let over: Vec<u64> = self
            .members
            .iter()
            .filter(|(number, member)| {
                let ran_out = now.until(member.deadline).is_zero();
                **number != except && member.presence == Presence::Alive && ran_out
            })
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.depart(number, Presence::Vanished(now.ms()));
        }
    }

    /// A sign of life.
    pub(super) fn renew(&mut self, number: u64, ttl: Duration, capacity: u64) {
        let deadline = self.step.now.later_ms(ttl);
        let Some(member) = self.member_mut(number) else { return };
        let is_changed = member.capacity != capacity;
        (member.deadline, member.ttl_ms, member.capacity) = (deadline, millis(ttl), capacity);
        member.beats += 1;
        member.presence = Presence::Alive;
        if is_changed {
            self.meta.roster += 1;
            self.wake();
        }
    }

    /// The member is gone; what it had can be granted.
    pub(super) fn depart(&mut self, number: u64, presence: Presence) {
        let Some(member) = self.members.get_mut(&number) else { return };
        member.presence = presence;
        let name = member.member.clone();
        self.touched.insert(number);
        self.meta.roster += 1;
        if self.life_of(&name) == Some(number) {
            self.step.remove(keys::claim_shard_life(&self.claim_shard, &name));
        }
        self.wake();
    }

    /// The number of the newest life of a name.
    pub(super) fn life_of(&self, name: &MemberName) -> Option<u64> {
        let lives = self.members.iter().filter(|(_, member)| member.member == *name);
        lives.map(|(number, _)| *number).max()
    }

    pub(super) fn wake(&mut self) {
        self.step.hint(HintKey::ClaimShard(self.claim_shard.clone()));
    }

    pub(super) fn next_epoch(&mut self) -> Epoch {
        if !self.step.planted(Mutation::SameClaimEpoch) || self.meta.epoch == 0 {
            self.meta.epoch = Epoch(self.meta.epoch).next(self.step.now.us).0;
        }
        Epoch(self.meta.epoch)
    }

    pub(super) fn member_mut(&mut self, number: u64) -> Option<&mut MemberEntry> {
        self.touched.insert(number);
        self.members.get_mut(&number)
    }

    /// The member that has an offer, if it is alive.
    pub(super) fn alive(&self, number: u64) -> Option<&MemberEntry> {
        self.members.get(&number).filter(|member| member.presence == Presence::Alive)
    }

    pub(super) fn offer(&self, name: &OfferName) -> Result<Option<OfferEntry>> {
        match self.offers.get(name) {
            Some(known) => Ok(known.clone()),
            None => self.step.load(&keys::claim_shard_offer(&self.claim_shard, name)),
        }
    }

    /// Writes an offer with its place in the indexes; `was` is how it stood.
    pub(super) fn put(&mut self, name: &OfferName, was: Option<&OfferEntry>, offer: OfferEntry) {
        if let Some(was) = was {
            self.unlist(name, was);
        } else {
            self.meta.offers += 1;
        }
        if offer.owner == 0 {
            self.meta.free += 1;
            self.step
                .store_raw(keys::claim_shard_free(&self.claim_shard, offer.ready, name), bytes::Bytes::new());
            self.wake();
        } else {
            if let Some(member) = self.member_mut(offer.owner) {
                member.held += 1;
            }
            self.step.store_raw(
                keys::claim_shard_owned(&self.claim_shard, offer.owner, name),
                bytes::Bytes::new(),
            );
        }
        self.step.store(keys::claim_shard_offer(&self.claim_shard, name), &offer);
        self.offers.insert(name.clone(), Some(offer));
    }

    /// Removes an offer from the claim shard.
    pub(super) fn erase(&mut self, name: &OfferName, was: &OfferEntry) {
        self.unlist(name, was);
        self.meta.offers = self.meta.offers.saturating_sub(1);
        for key in [
            keys::claim_shard_offer(&self.claim_shard, name),
            keys::claim_shard_payload(&self.claim_shard, name),
            keys::claim_shard_checkpoint(&self.claim_shard, name),
        ] {
            self.step.remove(key);
        }
        self.offers.insert(name.clone(), None);
    }

    fn unlist(&mut self, name: &OfferName, was: &OfferEntry) {
        if was.owner == 0 {
            self.meta.free = self.meta.free.saturating_sub(1);
            self.step.remove(keys::claim_shard_free(&self.claim_shard, was.ready, name));
        } else {
            if let Some(member) = self.member_mut(was.owner) {
                member.held = member.held.saturating_sub(1);
            }
            self.step.remove(keys::claim_shard_owned(&self.claim_shard, was.owner, name));
        }
    }

    /// Makes an offer free, and lets a living owner know that it lost it.
    pub(super) fn free(&mut self, name: &OfferName, was: &OfferEntry, rest_until: u64) {
        let now = self.step.now.ms();
        let offer = OfferEntry { owner: 0, since: now, ready: rest_until, ..was.clone() };
        self.put(name, Some(was), offer);
    }

    pub(super) fn count_loss(&mut self, number: u64) {
        if self.alive(number).is_some()
            && let Some(member) = self.member_mut(number)
        {
            member.losses += 1;
            self.wake();
        }
    }

    /// Names listed under `prefix`, at most `max`, while `wanted` says so of the key.
    pub(super) fn names(
        &self,
        prefix: Vec<u8>,
        max: usize,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<OfferName>> {
        let mut names = Vec::new();
        if max == 0 {
            return Ok(names);
        }
        let skip = prefix.len();
        self.step.scan(Range::prefix(prefix), &mut |key, _| {
            if !wanted(&key[skip..]) {
                return Ok(false);
            }
            names.push(
                keys::claim_shard_name(key).ok_or_else(|| Error::corrupt("an offer has a damaged key"))?,
            );
            Ok(names.len() < max)
        })?;
        Ok(names)
    }

    /// Writes what is left to write.
    pub(super) fn close(mut self) {
        for number in std::mem::take(&mut self.touched) {
            let Some(member) = self.members.get(&number) else { continue };
            let key = keys::claim_shard_member(&self.claim_shard, number);
            if member.presence != Presence::Alive && member.held == 0 {
                self.step.remove(key);
            } else {
                self.step.store_raw(key, member.packed());
            }
        }
        self.step.store_raw(keys::claim_shard(&self.claim_shard), self.meta.packed());
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// All members of a claim shard, the living and the gone, by number.
pub(super) fn members(step: &Step<'_>, claim_shard: &ClaimShard) -> Result<BTreeMap<u64, MemberEntry>> {
    let mut members = BTreeMap::new();
    let prefix = keys::claim_shard_members(claim_shard);
    let skip = prefix.len();
    step.scan(Range::prefix(prefix), &mut |key, value| {
        let number =
            keys::number_at(key, skip).ok_or_else(|| Error::corrupt("a member has a damaged key"))?;
        members.insert(number, MemberEntry::read(value)?);
        Ok(true)
    })?;
    Ok(members)
}
