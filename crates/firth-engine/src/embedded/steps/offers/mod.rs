//! Offers and who has them: one function per call of the contract.

mod listing;
mod txn;

pub(in crate::embedded) use listing::{list, members, orphans, owned};

use crate::embedded::claim_shard_values::{MemberEntry, OfferEntry, Presence};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{
    Beat, ClaimKey, ClaimShard, ClaimShardStatus, Granted, Join, Membership, NewOffer, Outcome,
    PreviousOwner, Taken,
};
use crate::id::Epoch;
use crate::limits::{MAX_CLAIM_SHARD_BATCH, MAX_GRANT_BYTES, MAX_MEMBERS};
use crate::name::OfferName;
use bytes::Bytes;
use std::time::Duration;
use txn::ShardTxn;

pub(in crate::embedded) fn offer(
    step: &mut Step<'_>,
    claim_shard: &ClaimShard,
    offers: &[NewOffer],
) -> Result<Vec<bool>> {
    let mut txn = ShardTxn::open(step, claim_shard)?;
    let now = txn.step.now.ms();
    let mut made = Vec::with_capacity(offers.len());
    for offer in offers {
        let known = txn.offer(&offer.name)?;
        made.push(known.is_none());
        if let Some(known) = &known {
            if txn.step.planted(Mutation::OfferAgain) && known.owner != 0 {
                txn.free(&offer.name, known, now);
            }
            continue;
        }
        let entry = OfferEntry { epoch: 0, owner: 0, since: now, ready: now, offered: now, last: None };
        txn.put(&offer.name, None, entry);
        txn.step.store_raw(keys::claim_shard_payload(claim_shard, &offer.name), offer.payload.clone());
    }
    txn.close();
    Ok(made)
}

pub(in crate::embedded) fn withdraw(
    step: &mut Step<'_>,
    claim_shard: &ClaimShard,
    names: &[OfferName],
) -> Result<Vec<bool>> {
    step.batch.frugal = true;
    let mut txn = ShardTxn::open(step, claim_shard)?;
    let mut gone = Vec::with_capacity(names.len());
    for name in names {
        let known = txn.offer(name)?;
        gone.push(known.is_some());
        if let Some(known) = known {
            txn.count_loss(known.owner);
            txn.erase(name, &known);
        }
    }
    txn.close();
    Ok(gone)
}

pub(in crate::embedded) fn join(
    step: &mut Step<'_>,
    claim_shard: &ClaimShard,
    request: &Join,
) -> Result<Membership> {
    step.batch.frugal = true;
    let membership = |number| Membership {
        claim_shard: claim_shard.clone(),
        member: request.member.clone(),
        number,
        token: request.token,
    };
    let mut txn = ShardTxn::open(step, claim_shard)?;
    let now = txn.step.now;
    let former: Option<u64> = txn.step.load(&keys::claim_shard_life(claim_shard, &request.member))?;
    if let Some((number, token)) = former.and_then(|number| Some((number, txn.alive(number)?.token))) {
        if token == request.token && !txn.step.planted(Mutation::JoinTwice) {
            txn.renew(number, request.ttl, request.capacity);
            txn.close();
            return Ok(membership(Epoch(number)));
        }
        let is_newer = request.after.is_some_and(|after| number > after.0);
        if is_newer && !txn.step.planted(Mutation::JoinOverNewer) {
            return Err(request.superseded(claim_shard, Epoch(number)));
        }
        txn.depart(number, Presence::Vanished(now.ms()));
    }
    let alive = txn.members.values().filter(|member| member.presence == Presence::Alive).count();
    if alive >= MAX_MEMBERS {
        let context =
            format!("claim shard {claim_shard} has {alive} members: spread the service over more shards");
        return Err(Error::new(ErrorKind::Overloaded, context));
    }
    let number = txn.next_epoch();
    let entry = MemberEntry {
        member: request.member.clone(),
        token: request.token,
        presence: Presence::Alive,
        deadline: now.later_ms(request.ttl),
        joined: now.ms(),
        ttl_ms: txn::millis(request.ttl),
        beats: 1,
        losses: 0,
        held: 0,
        capacity: request.capacity,
    };
    txn.members.insert(number.0, entry);
    txn.member_mut(number.0);
    txn.step.store(keys::claim_shard_life(claim_shard, &request.member), &number.0);
    txn.meta.roster += 1;
    txn.wake();
    txn.close();
    Ok(membership(number))
}

pub(in crate::embedded) fn leave(step: &mut Step<'_>, membership: &Membership) -> Result<bool> {
    step.batch.frugal = true;
    let mut txn = match ShardTxn::of_member(step, membership) {
        Ok(txn) => txn,
        Err(error) if error.kind() == ErrorKind::Fenced => return Ok(false),
        Err(error) => return Err(error),
    };
    if txn.step.planted(Mutation::LeaveDeletes) {
        for name in txn.names(
            keys::claim_shard_owned_by(&membership.claim_shard, membership.number.0),
            usize::MAX,
            |_| true,
        )? {
            if let Some(known) = txn.offer(&name)? {
                txn.erase(&name, &known);
            }
        }
    }
    let now = txn.step.now.ms();
    txn.depart(membership.number.0, Presence::Left(now));
    txn.close();
    Ok(true)
}

pub(in crate::embedded) fn beat(
    step: &mut Step<'_>,
    membership: &Membership,
    beat: Beat,
) -> Result<ClaimShardStatus> {
    (step.batch.relaxed, step.batch.frugal) = (true, true);
    let mut txn = ShardTxn::of_member(step, membership)?;
    let now = txn.step.now;
    txn.renew(membership.number.0, beat.ttl, beat.capacity);
    let me = &txn.members[&membership.number.0];
    let alive = || txn.members.iter().filter(|(_, member)| member.presence == Presence::Alive);
    let others = alive().filter(|(number, _)| **number != membership.number.0);
    let of = |is_wanted: fn(Presence) -> bool| -> u64 {
        let wanted = txn.members.values().filter(|member| is_wanted(member.presence));
        wanted.map(|member| member.held).sum()
    };
    let left = of(|presence| matches!(presence, Presence::Left(_)));
    let next_free = match txn.meta.free {
        _ if left > 0 => Some(Duration::ZERO),
        0 => None,
        _ => {
            let first =
                txn.step.first_key(Range::prefix(keys::claim_shard_frees(&membership.claim_shard)))?;
            first
                .and_then(|key| keys::claim_shard_ready(&membership.claim_shard, &key))
                .map(|ms| now.until(ms))
        }
    };
    let status = ClaimShardStatus {
        held: me.held,
        losses: me.losses,
        offers: txn.meta.offers,
        free: txn.meta.free + left,
        orphaned: of(|presence| matches!(presence, Presence::Vanished(_))),
        next_free,
        next_expiry: others.map(|(_, member)| now.until(member.deadline)).min(),
        roster: txn.meta.roster,
        memberships: (beat.roster != txn.meta.roster)
            .then(|| alive().map(|(number, member)| (Epoch(*number), member.capacity)).collect()),
    };
    txn.close();
    Ok(status)
}

pub(in crate::embedded) fn grant(
    step: &mut Step<'_>,
    membership: &Membership,
    max: usize,
) -> Result<Vec<Granted>> {
    step.batch.frugal = true;
    let mut txn = ShardTxn::of_member(step, membership)?;
    let max = max.min(MAX_CLAIM_SHARD_BATCH);
    let mut names = Vec::new();
    let gone: Vec<u64> = txn
        .members
        .iter()
        .filter(|(number, member)| {
            let steal = txn.step.planted(Mutation::GrantOwned) && **number != membership.number.0;
            (member.presence != Presence::Alive || steal) && member.held > 0
        })
        .map(|(number, _)| *number)
        .collect();
    for number in gone {
        let owned = keys::claim_shard_owned_by(&membership.claim_shard, number);
        names.extend(txn.names(owned, max - names.len(), |_| true)?);
    }
    let now = txn.step.now.ms();
    let ready = |rest: &[u8]| keys::number_at(rest, 0).is_some_and(|ms| ms <= now);
    names.extend(txn.names(keys::claim_shard_frees(&membership.claim_shard), max - names.len(), ready)?);
    if names.is_empty() {
        txn.close();
        return Ok(Vec::new());
    }
    let epoch = txn.next_epoch();
    let mut granted = Vec::with_capacity(names.len());
    let mut bytes = 0;
    for name in names {
        let Some(known) = txn.offer(&name)? else { continue };
        let grant = hand_over(&mut txn, membership, &name, &known, epoch)?;
        bytes += grant.payload.len() + grant.checkpoint.as_ref().map_or(0, Bytes::len);
        granted.push(grant);
        if bytes >= MAX_GRANT_BYTES {
            break;
        }
    }
    txn.close();
    Ok(granted)
}

/// Gives an offer to the membership under `epoch`.
fn hand_over(
    txn: &mut ShardTxn<'_, '_>,
    membership: &Membership,
    name: &OfferName,
    known: &OfferEntry,
    epoch: Epoch,
) -> Result<Granted> {
    let presence = txn.members.get(&known.owner).map(|member| member.presence);
    let former = match (&known.last, presence) {
        (None, _) => PreviousOwner::Nobody,
        (Some(last), Some(Presence::Vanished(_))) => PreviousOwner::Vanished(last.clone()),
        (Some(last), _) => PreviousOwner::Released(last.clone()),
    };
    let view = txn.step.view;
    let get = |key: Vec<u8>| view.get(keys::Space::State, &key);
    let payload = get(keys::claim_shard_payload(&membership.claim_shard, name))?.unwrap_or_default();
    let checkpoint = get(keys::claim_shard_checkpoint(&membership.claim_shard, name))?;
    let now = txn.step.now.ms();
    let offer = OfferEntry {
        epoch: epoch.0,
        owner: membership.number.0,
        since: now,
        last: Some(membership.member.clone()),
        ..known.clone()
    };
    txn.put(name, Some(known), offer);
    Ok(Granted { name: name.clone(), epoch, payload, checkpoint, former })
}

pub(in crate::embedded) fn take(
    step: &mut Step<'_>,
    membership: &Membership,
    name: &OfferName,
    seize: bool,
) -> Result<Taken> {
    step.batch.frugal = true;
    let mut txn = ShardTxn::of_member(step, membership)?;
    let Some(known) = txn.offer(name)? else {
        txn.close();
        return Ok(Taken::Missing);
    };
    if let Some(owner) = txn.alive(known.owner).filter(|_| !seize || known.owner == membership.number.0) {
        let held = Taken::Held { by: owner.member.clone(), remaining: txn.step.now.until(owner.deadline) };
        txn.close();
        return Ok(held);
    }
    txn.count_loss(known.owner);
    let epoch = txn.next_epoch();
    let granted = hand_over(&mut txn, membership, name, &known, epoch)?;
    txn.close();
    Ok(Taken::Granted(granted))
}

/// The offer if the claim is good, else what to answer.
fn claimed(
    txn: &ShardTxn<'_, '_>,
    membership: &Membership,
    claim: &ClaimKey,
) -> Result<Result<OfferEntry, Outcome>> {
    let Some(known) = txn.offer(&claim.name)? else { return Ok(Err(Outcome::Missing)) };
    let same_grant = known.epoch == claim.epoch.0 || txn.step.planted(Mutation::SkipFenceOnClaim);
    Ok(if known.owner == membership.number.0 && same_grant { Ok(known) } else { Err(Outcome::Fenced) })
}

pub(in crate::embedded) fn done(
    step: &mut Step<'_>,
    membership: &Membership,
    claims: &[ClaimKey],
) -> Result<Vec<Outcome>> {
    each(step, membership, claims, |txn, claim, known| txn.erase(&claim.name, known))
}

pub(in crate::embedded) fn give_back(
    step: &mut Step<'_>,
    membership: &Membership,
    claims: &[ClaimKey],
    rest: Duration,
) -> Result<Vec<Outcome>> {
    let ready = step.now.later_ms(rest);
    each(step, membership, claims, |txn, claim, known| txn.free(&claim.name, known, ready))
}

fn each(
    step: &mut Step<'_>,
    membership: &Membership,
    claims: &[ClaimKey],
    mut act: impl FnMut(&mut ShardTxn<'_, '_>, &ClaimKey, &OfferEntry),
) -> Result<Vec<Outcome>> {
    step.batch.frugal = true;
    let mut txn = ShardTxn::of_member(step, membership)?;
    let mut outcomes = Vec::with_capacity(claims.len());
    for claim in claims {
        outcomes.push(match claimed(&txn, membership, claim)? {
            Ok(known) => {
                act(&mut txn, claim, &known);
                Outcome::Done
            }
            Err(outcome) => outcome,
        });
    }
    txn.close();
    Ok(outcomes)
}

pub(in crate::embedded) fn checkpoint(
    step: &mut Step<'_>,
    membership: &Membership,
    claim: &ClaimKey,
    state: Bytes,
) -> Result<Outcome> {
    let txn = ShardTxn::of_member(step, membership)?;
    let outcome = match claimed(&txn, membership, claim)? {
        Ok(_) => {
            if !txn.step.planted(Mutation::LoseCheckpoint) {
                txn.step.store_raw(keys::claim_shard_checkpoint(&membership.claim_shard, &claim.name), state);
            }
            Outcome::Done
        }
        Err(outcome) => outcome,
    };
    txn.close();
    Ok(outcome)
}

pub(in crate::embedded) fn force_release(
    step: &mut Step<'_>,
    claim_shard: &ClaimShard,
    names: &[OfferName],
) -> Result<Vec<bool>> {
    step.batch.frugal = true;
    let mut txn = ShardTxn::open(step, claim_shard)?;
    let now = txn.step.now.ms();
    let mut released = Vec::with_capacity(names.len());
    for name in names {
        let known = txn.offer(name)?.filter(|known| known.owner != 0);
        released.push(known.is_some());
        if let Some(known) = known {
            txn.count_loss(known.owner);
            txn.free(name, &known, now);
        }
    }
    txn.close();
    Ok(released)
}

pub(in crate::embedded) fn expel(
    step: &mut Step<'_>,
    claim_shard: &ClaimShard,
    number: Epoch,
    beats: u64,
) -> Result<bool> {
    step.batch.frugal = true;
    let mut txn = ShardTxn::open(step, claim_shard)?;
    let stands_still = txn.alive(number.0).is_some_and(|member| member.beats == beats);
    if stands_still {
        let now = txn.step.now.ms();
        txn.depart(number.0, Presence::Vanished(now));
    }
    txn.close();
    Ok(stands_still)
}
