//! Looking at a claim shard: its offers, its orphans, its members, the claims of one of them.

use super::txn::{self, ShardTxn};
use crate::embedded::claim_shard_values::{MemberEntry, OfferEntry, Presence};
use crate::embedded::keys;
use crate::embedded::step::{Now, Range, Step};
use crate::embedded::values::Value;
use crate::error::{Error, Result};
use crate::facet::{ClaimKey, ClaimShard, Membership, MembershipInfo, OfferInfo, OfferState};
use crate::id::Epoch;
use crate::limits::MAX_READ;
use crate::name::OfferName;
use std::collections::BTreeMap;
use std::time::Duration;

pub(in crate::embedded) fn owned(
    step: &mut Step<'_>,
    membership: &Membership,
    skip: usize,
    max: usize,
) -> Result<Vec<ClaimKey>> {
    step.batch.relaxed = true;
    let txn = ShardTxn::of_member(step, membership)?;
    let all = txn.names(
        keys::claim_shard_owned_by(&membership.claim_shard, membership.number.0),
        skip.saturating_add(max),
        |_| true,
    )?;
    let mut claims = Vec::new();
    for name in all.into_iter().skip(skip) {
        if let Some(offer) = txn.offer(&name)? {
            claims.push(ClaimKey { name, epoch: Epoch(offer.epoch) });
        }
    }
    txn.close();
    Ok(claims)
}

pub(in crate::embedded) fn list(
    step: &Step<'_>,
    claim_shard: &ClaimShard,
    after: Option<&OfferName>,
    max: usize,
) -> Result<Vec<OfferInfo>> {
    let members = txn::members(step, claim_shard)?;
    let prefix = keys::claim_shard_offers(claim_shard);
    let range = match after {
        Some(after) => Range::prefix_after(prefix, keys::claim_shard_offer(claim_shard, after)),
        None => Range::prefix(prefix),
    };
    let mut found = Vec::new();
    let max = max.clamp(1, MAX_READ);
    step.scan(range, &mut |key, value| {
        let name = keys::claim_shard_name(key).ok_or_else(|| Error::corrupt("an offer has a damaged key"))?;
        found.push(info(step.now, &members, name, &OfferEntry::read(value)?));
        Ok(found.len() < max)
    })?;
    Ok(found)
}

pub(in crate::embedded) fn orphans(
    step: &Step<'_>,
    claim_shard: &ClaimShard,
    max: usize,
) -> Result<Vec<OfferInfo>> {
    let members = txn::members(step, claim_shard)?;
    let mut found = Vec::new();
    let max = max.clamp(1, MAX_READ);
    for (number, _) in members.iter().filter(|(_, member)| matches!(member.presence, Presence::Vanished(_))) {
        let mut names = Vec::new();
        step.scan(Range::prefix(keys::claim_shard_owned_by(claim_shard, *number)), &mut |key, _| {
            names.push(
                keys::claim_shard_name(key).ok_or_else(|| Error::corrupt("an offer has a damaged key"))?,
            );
            Ok(found.len() + names.len() < max)
        })?;
        for name in names {
            if let Some(offer) = step.load(&keys::claim_shard_offer(claim_shard, &name))? {
                found.push(info(step.now, &members, name, &offer));
            }
        }
        if found.len() >= max {
            break;
        }
    }
    Ok(found)
}

fn info(now: Now, members: &BTreeMap<u64, MemberEntry>, name: OfferName, offer: &OfferEntry) -> OfferInfo {
    let owner = members.get(&offer.owner);
    let (state, since) = match (owner, owner.map(|member| member.presence)) {
        (Some(member), Some(Presence::Vanished(since))) => {
            (OfferState::Orphaned { last: member.member.clone() }, since)
        }
        (Some(member), Some(Presence::Left(since))) => {
            (OfferState::Free { last: Some(member.member.clone()) }, since)
        }
        (Some(member), _) => {
            (OfferState::Owned { by: member.member.clone(), number: Epoch(offer.owner) }, offer.since)
        }
        (None, _) => (OfferState::Free { last: offer.last.clone() }, offer.since),
    };
    let since = now.since(since);
    let age = now.since(offer.offered);
    OfferInfo { name, epoch: Epoch(offer.epoch), state, since, age }
}

pub(in crate::embedded) fn members(step: &Step<'_>, claim_shard: &ClaimShard) -> Result<Vec<MembershipInfo>> {
    let membership = |(number, member): (u64, MemberEntry)| MembershipInfo {
        number: Epoch(number),
        remaining: (member.presence == Presence::Alive).then(|| step.now.until(member.deadline)),
        beats: member.beats,
        ttl: Duration::from_millis(member.ttl_ms),
        held: member.held,
        capacity: member.capacity,
        age: step.now.since(member.joined),
        member: member.member,
    };
    Ok(txn::members(step, claim_shard)?.into_iter().map(membership).collect())
}
