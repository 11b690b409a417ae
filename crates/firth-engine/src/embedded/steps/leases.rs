//! Leases: who may, until when, with which epoch.

use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Now, Range, Step};
use crate::embedded::values::{GroupMeta, LeaseEntry, PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{Acquire, Acquired, LeaseQuery};
use crate::hold::{Hold, LeaseInfo, LeaseName, Token};
use crate::id::Epoch;
use crate::name::MemberName;
use std::time::Duration;

pub(in crate::embedded) fn acquire(step: &mut Step<'_>, wish: &Acquire) -> Result<Acquired> {
    let key = keys::lease(&wish.name);
    let stored: Option<LeaseEntry> = step.load(&key)?;
    if let (Some(lease), Some(rank)) = (&stored, wish.rank) {
        if lease.rank > rank.0 && !step.planted(Mutation::IgnoreRank) {
            return Ok(Acquired::Held(info(step.now, &wish.name, lease)));
        }
    } else if let Some(lease) = &stored
        && !step.planted(Mutation::AcquireHeldLease)
    {
        let stands_still = wish.stalled == Some((lease.epoch, lease.beats));
        let info = info(step.now, &wish.name, lease);
        if info.is_held() && !stands_still {
            return Ok(Acquired::Held(info));
        }
    }
    let epoch = next_epoch(step, &wish.name, stored.as_ref())?;
    let token = Token::random();
    let lease = LeaseEntry {
        holder: Some(wish.holder.clone()),
        epoch,
        token,
        deadline: step.now.later_ms(wish.ttl),
        beats: stored.as_ref().map_or(0, |lease| lease.beats) + 1,
        note: wish.note.clone(),
        rank: wish.rank.map_or(0, |rank| rank.0).max(stored.map_or(0, |lease| lease.rank)),
    };
    step.store(key, &lease);
    step.batch.frugal = true;
    step.hint(wish.name.hint());
    Ok(Acquired::Granted(Hold { lease: wish.name.clone(), holder: wish.holder.clone(), epoch, token }))
}

/// The next epoch of a lease. Pools keep their newest one apart, because their released leases leave no trace.
fn next_epoch(step: &mut Step<'_>, name: &LeaseName, stored: Option<&LeaseEntry>) -> Result<Epoch> {
    let mut newest = stored.map_or(Epoch(0), |lease| lease.epoch);
    if step.planted(Mutation::SameEpoch) {
        return Ok(Epoch(newest.0.max(1)));
    }
    if let LeaseName::Pool { pool, .. } = name {
        newest = newest.max(Epoch(step.load(&keys::pool_epoch(pool))?.unwrap_or(0)));
    }
    let next = newest.next(step.now.us);
    if let LeaseName::Pool { pool, .. } = name {
        step.store(keys::pool_epoch(pool), &next.0);
    }
    Ok(next)
}

/// The lease if `hold` is the newest proof of it.
pub(super) fn held(step: &Step<'_>, hold: &Hold) -> Result<Option<LeaseEntry>> {
    let stored: Option<LeaseEntry> = step.load(&keys::lease(&hold.lease))?;
    Ok(stored.filter(|lease| {
        let same_token = lease.token == hold.token || step.planted(Mutation::IgnoreToken);
        lease.holder.is_some() && lease.epoch == hold.epoch && same_token
    }))
}

/// Passes only for the newest hold of exactly this lease.
pub(super) fn fence(step: &Step<'_>, hold: &Hold, name: &LeaseName) -> Result<()> {
    crate::checks::is_for(hold, name)?;
    match held(step, hold)? {
        Some(_) => Ok(()),
        None => Err(Error::new(
            ErrorKind::Fenced,
            format!("epoch {} of {name} is over: somebody else took it or it was revoked", hold.epoch),
        )),
    }
}

pub(in crate::embedded) fn renew(step: &mut Step<'_>, holds: &[Hold], ttl: Duration) -> Result<Vec<bool>> {
    (step.batch.relaxed, step.batch.frugal) = (true, true);
    let deadline = step.now.later_ms(ttl);
    let mut renewed = Vec::with_capacity(holds.len());
    for hold in holds {
        let key = keys::lease(&hold.lease);
        let lease = match step.planted(Mutation::RenewAnything) {
            true => step.load(&key)?,
            false => held(step, hold)?,
        };
        renewed.push(lease.is_some());
        if let Some(lease) = lease {
            step.store(key, &LeaseEntry { deadline, beats: lease.beats + 1, ..lease });
        }
    }
    Ok(renewed)
}

pub(in crate::embedded) fn release(step: &mut Step<'_>, hold: &Hold) -> Result<bool> {
    step.batch.frugal = true;
    let Some(lease) = held(step, hold)? else {
        return Ok(false);
    };
    note_leaving(step, &hold.lease, lease.epoch)?;
    vacate(step, &hold.lease, lease);
    Ok(true)
}

/// Who releases or is revoked has not crashed; who vanished before it still has.
fn note_leaving(step: &mut Step<'_>, name: &LeaseName, epoch: Epoch) -> Result<()> {
    if let LeaseName::Group { at, group } = name
        && let Some(part) = step.load::<PartitionMeta>(&keys::partition(at))?
        && let Some(meta) = step.load::<GroupMeta>(&keys::group(part.no, group))?
        && meta.opened == epoch
        && !step.planted(Mutation::RevokeIsCrash)
    {
        step.store(keys::group(part.no, group), &GroupMeta { left: true, ..meta });
    }
    Ok(())
}

/// Leaves the lease to nobody. The epoch of a group's lease stays on record; a pool keeps its own.
fn vacate(step: &mut Step<'_>, name: &LeaseName, lease: LeaseEntry) {
    match name {
        LeaseName::Pool { .. } => step.remove(keys::lease(name)),
        LeaseName::Group { .. } => {
            step.store(
                keys::lease(name),
                &LeaseEntry { holder: None, deadline: 0, note: bytes::Bytes::new(), ..lease },
            );
        }
    }
    step.hint(name.hint());
}

/// Takes the lease away from whoever has it; true if there was one.
pub(in crate::embedded) fn revoke(step: &mut Step<'_>, name: &LeaseName) -> Result<bool> {
    if let Some(lease) = step.load::<LeaseEntry>(&keys::lease(name))? {
        note_leaving(step, name, lease.epoch)?;
    }
    take_away(step, name)
}

/// As [`revoke`], for steps that write the group themselves.
pub(super) fn take_away(step: &mut Step<'_>, name: &LeaseName) -> Result<bool> {
    step.batch.frugal = true;
    let Some(lease) = step.load::<LeaseEntry>(&keys::lease(name))? else {
        return Ok(false);
    };
    let epoch = next_epoch(step, name, Some(&lease))?;
    vacate(step, name, LeaseEntry { epoch, ..lease });
    Ok(true)
}

pub(in crate::embedded) fn list(step: &Step<'_>, query: &LeaseQuery) -> Result<Vec<LeaseInfo>> {
    let mut found = Vec::new();
    match query {
        LeaseQuery::Names(names) => {
            for name in names {
                found.extend(step.load(&keys::lease(name))?.map(|lease| info(step.now, name, &lease)));
            }
        }
        LeaseQuery::Pool(pool) => {
            let prefix = keys::pool_leases(pool);
            let skip = prefix.len();
            step.scan(Range::prefix(prefix), &mut |key, value| {
                let name = std::str::from_utf8(&key[skip..]).ok().and_then(|name| MemberName::new(name).ok());
                let name = name.ok_or_else(|| Error::corrupt("a lease has a damaged key"))?;
                found.push(info(step.now, &LeaseName::pool(pool, &name), &LeaseEntry::read(value)?));
                Ok(true)
            })?;
        }
    }
    Ok(found)
}

pub(super) fn info(now: Now, name: &LeaseName, lease: &LeaseEntry) -> LeaseInfo {
    LeaseInfo {
        name: name.clone(),
        holder: lease.holder.clone(),
        epoch: lease.epoch,
        remaining: now.until(lease.deadline),
        beats: lease.beats,
        note: lease.note.clone(),
    }
}
