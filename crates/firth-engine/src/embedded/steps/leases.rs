//! Leases: who may, until when, with which epoch.

use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Now, Range, Step};
use crate::embedded::values::{GroupMeta, LeaseEntry, PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{Acquire, Acquired, LeaseQuery};
use crate::hold::{Hold, LeaseInfo, LeaseName, Token};
use crate::id::Epoch;
use crate::name::{MemberName, PoolName};
use std::time::Duration;

pub(in crate::embedded) fn acquire(step: &mut Step<'_>, request: &Acquire) -> Result<Acquired> {
    if let LeaseName::Group { at, .. } = &request.name {
        step.partition(at)?;
    }
    let key = keys::lease(&request.name);
    let stored: Option<LeaseEntry> = step.load(&key)?;
    if let (Some(lease), Some(rank)) = (&stored, request.rank) {
        if lease.rank > rank.0 && !step.planted(Mutation::IgnoreRank) {
            return Ok(Acquired::Held(info(step.now, &request.name, lease)));
        }
    } else if let Some(lease) = &stored
        && !step.planted(Mutation::AcquireHeldLease)
    {
        let stands_still = request.stalled == Some((lease.epoch, lease.beats));
        let info = info(step.now, &request.name, lease);
        if info.is_held() && !stands_still {
            return Ok(Acquired::Held(info));
        }
    }
    let epoch = next_epoch(step, &request.name, stored.as_ref())?;
    let token = Token::random();
    let lease = LeaseEntry {
        holder: Some(request.holder.clone()),
        epoch,
        token,
        deadline: step.now.later_ms(request.ttl),
        beats: stored.as_ref().map_or(0, |lease| lease.beats) + 1,
        note: request.note.clone(),
        rank: request.rank.map_or(0, |rank| rank.0).max(stored.map_or(0, |lease| lease.rank)),
    };
    step.store(key, &lease);
    step.batch.frugal = true;
    step.hint(request.name.hint());
    Ok(Acquired::Granted(Hold { lease: request.name.clone(), holder: request.holder.clone(), epoch, token }))
}

/// The next epoch of a lease. Pools keep their newest one apart, because their released leases
/// leave no trace; and so does the engine for all that left none.
fn next_epoch(step: &mut Step<'_>, name: &LeaseName, stored: Option<&LeaseEntry>) -> Result<Epoch> {
    let gone = Epoch(step.load(&keys::gone_epoch())?.unwrap_or(0));
    let mut newest = stored.map_or(gone, |lease| lease.epoch);
    if step.planted(Mutation::SameEpoch) {
        return Ok(Epoch(newest.0.max(1)));
    }
    if let LeaseName::Pool { pool, .. } = name {
        newest = newest.max(gone).max(Epoch(step.load(&keys::pool_epoch(pool))?.unwrap_or(0)));
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
            format!("epoch {} of {name} is over: a newer owner took it or it was revoked", hold.epoch),
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
    let has_group = note_leaving(step, &hold.lease, lease.epoch)?;
    vacate(step, &hold.lease, lease, has_group)?;
    Ok(true)
}

/// Who releases or is revoked has not crashed; who vanished before it still has. Answers whether
/// the lease is one of a group that exists.
fn note_leaving(step: &mut Step<'_>, name: &LeaseName, epoch: Epoch) -> Result<bool> {
    let LeaseName::Group { at, group } = name else { return Ok(false) };
    let Some(part) = step.load::<PartitionMeta>(&keys::partition(at))? else { return Ok(false) };
    let Some(meta) = step.load::<GroupMeta>(&keys::group(part.no, group))? else { return Ok(false) };
    if meta.opened == epoch && !step.planted(Mutation::RevokeIsCrash) {
        step.store(keys::group(part.no, group), &GroupMeta { left: true, ..meta });
    }
    Ok(true)
}

/// Leaves the lease without a holder. It stays on record while its group exists (`has_group`), and
/// for its rank. Otherwise only its epoch stays: with its pool, or with all that are gone.
fn vacate(step: &mut Step<'_>, name: &LeaseName, lease: LeaseEntry, has_group: bool) -> Result<()> {
    if has_group || lease.rank > 0 {
        let lease = LeaseEntry { holder: None, deadline: 0, note: bytes::Bytes::new(), ..lease };
        step.store(keys::lease(name), &lease);
    } else {
        step.remove(keys::lease(name));
        match name {
            LeaseName::Pool { pool, .. } => leave_pool(step, pool, &keys::lease(name), lease.epoch)?,
            LeaseName::Group { .. } => note_gone(step, lease.epoch)?,
        }
    }
    step.hint(name.hint());
    Ok(())
}

/// A pool whose last lease is gone leaves no trace either.
fn leave_pool(step: &mut Step<'_>, pool: &PoolName, lease: &[u8], epoch: Epoch) -> Result<()> {
    let mut is_last = true;
    step.scan(Range::prefix(keys::pool_leases(pool)), &mut |key, _| {
        is_last = key == lease;
        Ok(is_last)
    })?;
    if is_last {
        let newest = Epoch(step.load(&keys::pool_epoch(pool))?.unwrap_or(0));
        step.remove(keys::pool_epoch(pool));
        note_gone(step, newest.max(epoch))?;
    }
    Ok(())
}

fn note_gone(step: &mut Step<'_>, epoch: Epoch) -> Result<()> {
    let newest: u64 = step.load(&keys::gone_epoch())?.unwrap_or(0);
    if epoch.0 > newest {
        step.store(keys::gone_epoch(), &epoch.0);
    }
    Ok(())
}

/// The group is gone, or never came: without its lease, unless that is held (by an owner about to
/// make the group) or has a rank.
pub(super) fn forget(step: &mut Step<'_>, name: &LeaseName, was_there: bool) -> Result<()> {
    let Some(lease) = step.load::<LeaseEntry>(&keys::lease(name))? else { return Ok(()) };
    if was_there {
        revoke_lease(step, name, lease, false)?;
    } else if !info(step.now, name, &lease).is_held() {
        vacate(step, name, lease, false)?;
    }
    Ok(())
}

/// Takes the lease away from its holder; false if the lease is not on record.
pub(in crate::embedded) fn revoke(step: &mut Step<'_>, name: &LeaseName) -> Result<bool> {
    step.batch.frugal = true;
    let Some(lease) = step.load::<LeaseEntry>(&keys::lease(name))? else {
        return Ok(false);
    };
    let has_group = note_leaving(step, name, lease.epoch)?;
    revoke_lease(step, name, lease, has_group)?;
    Ok(true)
}

/// As [`revoke`], for a step that writes the group itself.
pub(super) fn take_away(step: &mut Step<'_>, name: &LeaseName) -> Result<()> {
    step.batch.frugal = true;
    match step.load::<LeaseEntry>(&keys::lease(name))? {
        Some(lease) => revoke_lease(step, name, lease, true),
        None => Ok(()),
    }
}

fn revoke_lease(step: &mut Step<'_>, name: &LeaseName, lease: LeaseEntry, has_group: bool) -> Result<()> {
    let epoch = next_epoch(step, name, Some(&lease))?;
    vacate(step, name, LeaseEntry { epoch, ..lease }, has_group)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::hooks::Hooks;
    use crate::embedded::keys::Space;
    use crate::embedded::memory::MemoryStore;
    use crate::embedded::step::KeyView;
    use crate::embedded::steps::{groups, partitions};
    use crate::facet::StartPosition;
    use crate::name::{GroupName, HolderName, Partition, TopicName};

    #[derive(Default)]
    struct World(MemoryStore, u64);

    impl World {
        fn run<T>(&mut self, step: impl FnOnce(&mut Step<'_>) -> Result<T>) -> Result<T> {
            let hooks = Hooks::default();
            self.1 += 1;
            let mut one = Step::new(&self.0, Now { us: self.1 }, &hooks);
            let answer = step(&mut one)?;
            let mut batch = one.batch;
            self.0.apply(&mut batch);
            Ok(answer)
        }

        fn acquire(&mut self, name: &LeaseName) -> Hold {
            let request = Acquire::new(name.clone(), HolderName::new("h").unwrap(), Duration::from_millis(1));
            self.run(|step| acquire(step, &request)).unwrap().granted().unwrap()
        }

        fn keys(&self) -> usize {
            let mut count = 0;
            let all = Range { from: vec![], to: vec![0xff] };
            self.0
                .scan(Space::State, all, &mut |_, _| {
                    Ok({
                        count += 1;
                        true
                    })
                })
                .unwrap();
            count
        }
    }

    #[test]
    fn q14_groups_and_pools_that_are_gone_leave_one_epoch() {
        let mut world = World::default();
        let at = Partition::new(TopicName::new("orders").unwrap(), 0);
        world.run(|step| partitions::create(step, &at, 1)).unwrap();
        // The counter of groups, and the newest epoch of all that is gone.
        let before = world.keys() + 1;
        let mut newest = Epoch(0);
        let mut grows = |hold: &Hold| {
            assert!(hold.epoch > newest, "{} after {newest}", hold.epoch);
            newest = hold.epoch;
        };
        for n in 0..6 {
            // Later lives of the same names, and names of their own.
            let group = GroupName::new(format!("g{}", n % 4)).unwrap();
            let pool = PoolName::new(format!("p{}", n % 4)).unwrap();
            let name = LeaseName::group(&at, &group);
            let delete = |step: &mut Step<'_>| groups::delete(step, &at, &group, None);
            let from = StartPosition::Start;
            let hold = world.acquire(&name);
            grows(&hold);
            world.run(|step| groups::open(step, &at, &group, from, &hold)).unwrap();
            assert!(world.run(delete).unwrap());
            // A member that finds the group deleted, and one that vanishes before it looks.
            let late = world.acquire(&name);
            grows(&late);
            assert!(
                world.run(|step| groups::open(step, &at, &group, StartPosition::Existing, &late)).is_err()
            );
            assert!(world.run(|step| release(step, &late)).unwrap());
            grows(&world.acquire(&name));
            world.1 += 10_000;
            assert!(!world.run(delete).unwrap());
            while world.run(partitions::sweep).unwrap() {}
            let members = ["a", "b"].map(|name| LeaseName::pool(&pool, &MemberName::new(name).unwrap()));
            let holds = members.each_ref().map(|name| world.acquire(name));
            holds.iter().for_each(&mut grows);
            assert!(world.run(|step| release(step, &holds[0])).unwrap());
            assert!(world.run(|step| revoke(step, &members[1])).unwrap());
            assert_eq!(world.keys(), before, "round {n}");
        }
    }
}
