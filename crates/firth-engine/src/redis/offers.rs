//! The offers facet: one script per step, all on the keys of one claim shard. A beat is one call
//! for any number of claims.

use super::RedisEngine;
use super::error_mapping::odd_answer;
use super::leases::print_token;
use super::micros;
use super::reply_decoding::Parts;
use super::scripts::SCRIPTS;
use super::unit_clock::{SentAt, UnitClock};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{
    Beat, ClaimKey, ClaimShard, ClaimShardStatus, Granted, Join, Membership, MembershipInfo, NewOffer,
    OfferInfo, OfferState, Offers, Outcome, PreviousOwner, Reply, Taken, check_checkpoint, check_count,
    check_offers, check_rest,
};
use crate::id::Epoch;
use crate::limits::{MAX_CLAIM_SHARD_BATCH, MAX_GRANT_BYTES, MAX_MEMBERS, MAX_READ};
use crate::name::{MemberName, OfferName};
use bytes::Bytes;
use firth_redis::resp::{Frame, Value};
use firth_redis::{Script, ScriptCall};
use std::sync::Arc;
use std::time::Duration;

impl RedisEngine {
    fn on_claim_shard(&self, script: &Script, claim_shard: &ClaimShard) -> ScriptCall {
        script.keys(self.keys.claim_shard(claim_shard))
    }

    fn of_member(&self, script: &Script, membership: &Membership) -> ScriptCall {
        self.on_claim_shard(script, &membership.claim_shard)
            .arg(membership.number.0)
            .arg(print_token(membership.token))
    }

    /// Adds what a timed script takes.
    fn timed(&self, claim_shard: &ClaimShard, call: ScriptCall) -> (ScriptCall, Arc<UnitClock>, SentAt) {
        let clock = self.keys.claim_shard_clock(claim_shard);
        let (call, sent) = clock.timed(call);
        (call, clock, sent)
    }

    /// A step by name, for anyone; per name, whether it changed anything.
    async fn by_names(
        &self,
        script: &Script,
        claim_shard: &ClaimShard,
        names: &[OfferName],
    ) -> Result<Vec<bool>> {
        check_count(names.len())?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let call = self.on_claim_shard(script, claim_shard).args(names.iter().map(OfferName::as_str));
        flags(Parts::of(self.steps.durable(script, call).await?.value()))
    }

    async fn settle(
        &self,
        membership: &Membership,
        how: String,
        claims: &[ClaimKey],
    ) -> Result<Vec<Outcome>> {
        check_count(claims.len())?;
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let script = &SCRIPTS.claim_shard_settle;
        let mut call = self.of_member(script, membership).arg(how);
        for claim in claims {
            call = call.arg(claim.name.as_str()).arg(claim.epoch.0);
        }
        let (call, clock, sent) = self.timed(&membership.claim_shard, call);
        let answer = accept(membership, self.steps.durable(script, call).await?)?;
        let mut parts = clock.heard(sent, answer.value())?;
        claims.iter().map(|_| outcome(parts.value()?)).collect()
    }

    /// Reads pages of offers until there are `max`, or no more.
    async fn claim_shard_page(
        &self,
        claim_shard: &ClaimShard,
        from: Option<&str>,
        max: usize,
    ) -> Result<Vec<OfferInfo>> {
        let mut call = self.on_claim_shard(&SCRIPTS.claim_shard_list, claim_shard).arg(max);
        if let Some(from) = from {
            call = call.arg(from);
        }
        let answer = self.steps.quick(call).await?;
        let mut parts = Parts::of(answer.value());
        let now = parts.number()?;
        let mut found = Vec::new();
        while !parts.is_empty() {
            found.push(offer_info(now, &mut parts)?);
        }
        Ok(found)
    }
}

impl Offers for RedisEngine {
    fn offer<'a>(&'a self, claim_shard: &'a ClaimShard, offers: Vec<NewOffer>) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            check_offers(&offers)?;
            if offers.is_empty() {
                return Ok(Vec::new());
            }
            let script = &SCRIPTS.claim_shard_offer;
            let mut call = self.on_claim_shard(script, claim_shard);
            for offer in &offers {
                call = call.arg(offer.name.as_str()).arg(&offer.payload);
            }
            let (call, clock, sent) = self.timed(claim_shard, call);
            let answer = self.steps.durable(script, call).await?;
            flags(clock.heard(sent, answer.value())?)
        })
    }

    fn withdraw<'a>(&'a self, claim_shard: &'a ClaimShard, names: &'a [OfferName]) -> Reply<'a, Vec<bool>> {
        Box::pin(self.by_names(&SCRIPTS.claim_shard_withdraw, claim_shard, names))
    }

    fn join<'a>(&'a self, claim_shard: &'a ClaimShard, request: Join) -> Reply<'a, Membership> {
        Box::pin(async move {
            request.check()?;
            let script = &SCRIPTS.claim_shard_join;
            let call = self
                .on_claim_shard(script, claim_shard)
                .arg(request.member.as_str())
                .arg(print_token(request.token))
                .arg(micros(request.ttl))
                .arg(request.capacity)
                .arg(MAX_MEMBERS)
                .arg(request.after.map(|after| after.0.to_string()).unwrap_or_default());
            let (call, clock, sent) = self.timed(claim_shard, call);
            let answer = self.steps.durable(script, call).await?;
            if let Some(refusal) = answer.value().as_str().filter(|_| super::durability::is_refusal(&answer))
            {
                return Err(refused_join(claim_shard, &request, refusal));
            }
            let number = Epoch(clock.heard(sent, answer.value())?.number()?);
            Ok(Membership {
                claim_shard: claim_shard.clone(),
                member: request.member,
                number,
                token: request.token,
            })
        })
    }

    fn leave<'a>(&'a self, membership: &'a Membership) -> Reply<'a, bool> {
        Box::pin(async move {
            // Losing this step only means that the membership runs out by itself.
            let answer = self.steps.quick(self.of_member(&SCRIPTS.claim_shard_leave, membership)).await?;
            answer.value().as_i64().map(|left| left == 1).ok_or_else(odd_answer)
        })
    }

    fn beat<'a>(&'a self, membership: &'a Membership, beat: Beat) -> Reply<'a, ClaimShardStatus> {
        Box::pin(async move {
            beat.check()?;
            let call = self
                .of_member(&SCRIPTS.claim_shard_beat, membership)
                .arg(micros(beat.ttl))
                .arg(beat.capacity)
                .arg(beat.roster);
            let (call, clock, sent) = self.timed(&membership.claim_shard, call);
            let answer = accept(membership, self.steps.quick(call).await?)?;
            let mut parts = clock.heard(sent, answer.value())?;
            let mut status = ClaimShardStatus {
                held: parts.number()?,
                losses: parts.number()?,
                offers: parts.number()?,
                free: parts.number()?,
                orphaned: parts.number()?,
                next_free: parts.duration()?,
                next_expiry: parts.duration()?,
                roster: parts.number()?,
                memberships: None,
            };
            if status.roster != beat.roster {
                let mut memberships = Vec::new();
                while !parts.is_empty() {
                    memberships.push((Epoch(parts.number()?), parts.number()?));
                }
                memberships.sort_unstable();
                status.memberships = Some(memberships);
            }
            Ok(status)
        })
    }

    fn grant<'a>(&'a self, membership: &'a Membership, max: usize) -> Reply<'a, Vec<Granted>> {
        Box::pin(async move {
            let script = &SCRIPTS.claim_shard_grant;
            let max = max.min(MAX_CLAIM_SHARD_BATCH);
            let call = self.of_member(script, membership).arg(max).arg(MAX_GRANT_BYTES);
            let (call, clock, sent) = self.timed(&membership.claim_shard, call);
            // A grant counts only when it is as durable as everything else: two sides of a network
            // partition may both give it.
            let answer = accept(membership, self.steps.durable(script, call).await?)?;
            granted(clock.heard(sent, answer.value())?.value()?)
        })
    }

    fn take<'a>(&'a self, membership: &'a Membership, name: &'a OfferName, seize: bool) -> Reply<'a, Taken> {
        Box::pin(async move {
            let script = &SCRIPTS.claim_shard_take;
            let call = self.of_member(script, membership).arg(name.as_str()).arg(u8::from(seize));
            let (call, clock, sent) = self.timed(&membership.claim_shard, call);
            let answer = accept(membership, self.steps.durable(script, call).await?)?;
            let mut parts = clock.heard(sent, answer.value())?;
            match parts.number()? {
                0 => Ok(Taken::Missing),
                1 => Ok(Taken::Held {
                    by: MemberName::new(parts.text()?)?,
                    remaining: parts.duration()?.unwrap_or_default(),
                }),
                _ => granted(parts.value()?)?.pop().map(Taken::Granted).ok_or_else(odd_answer),
            }
        })
    }

    fn done<'a>(&'a self, membership: &'a Membership, claims: &'a [ClaimKey]) -> Reply<'a, Vec<Outcome>> {
        Box::pin(self.settle(membership, "done".to_owned(), claims))
    }

    fn give_back<'a>(
        &'a self,
        membership: &'a Membership,
        claims: &'a [ClaimKey],
        rest: Duration,
    ) -> Reply<'a, Vec<Outcome>> {
        Box::pin(async move {
            check_rest(rest)?;
            self.settle(membership, micros(rest).to_string(), claims).await
        })
    }

    fn checkpoint<'a>(
        &'a self,
        membership: &'a Membership,
        claim: &'a ClaimKey,
        state: Bytes,
    ) -> Reply<'a, Outcome> {
        Box::pin(async move {
            check_checkpoint(&state)?;
            let script = &SCRIPTS.claim_shard_checkpoint;
            let call =
                self.of_member(script, membership).arg(claim.name.as_str()).arg(claim.epoch.0).arg(&state);
            let answer = accept(membership, self.steps.durable(script, call).await?)?;
            outcome(answer.value())
        })
    }

    fn force_release<'a>(
        &'a self,
        claim_shard: &'a ClaimShard,
        names: &'a [OfferName],
    ) -> Reply<'a, Vec<bool>> {
        Box::pin(self.by_names(&SCRIPTS.claim_shard_force, claim_shard, names))
    }

    fn owned<'a>(&'a self, membership: &'a Membership, skip: usize, max: usize) -> Reply<'a, Vec<ClaimKey>> {
        Box::pin(async move {
            check_count(max)?;
            let call = self.of_member(&SCRIPTS.claim_shard_owned, membership).arg(skip).arg(max);
            let answer = accept(membership, self.steps.quick(call).await?)?;
            let mut parts = Parts::of(answer.value());
            let mut claims = Vec::new();
            while !parts.is_empty() {
                claims.push(ClaimKey { name: OfferName::new(parts.text()?)?, epoch: Epoch(parts.number()?) });
            }
            Ok(claims)
        })
    }

    fn offers<'a>(
        &'a self,
        claim_shard: &'a ClaimShard,
        after: Option<&'a OfferName>,
        max: usize,
    ) -> Reply<'a, Vec<OfferInfo>> {
        Box::pin(async move {
            let mut found: Vec<OfferInfo> = Vec::new();
            let max = max.clamp(1, MAX_READ);
            let mut from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
            while found.len() < max {
                let wanted = MAX_CLAIM_SHARD_BATCH.min(max - found.len());
                let page = self.claim_shard_page(claim_shard, Some(&from), wanted).await?;
                let is_last = page.len() < wanted;
                found.extend(page);
                match found.last() {
                    Some(last) if !is_last => from = format!("({}", last.name),
                    _ => break,
                }
            }
            Ok(found)
        })
    }

    fn orphans<'a>(&'a self, claim_shard: &'a ClaimShard, max: usize) -> Reply<'a, Vec<OfferInfo>> {
        Box::pin(self.claim_shard_page(claim_shard, None, max.clamp(1, MAX_CLAIM_SHARD_BATCH)))
    }

    fn members<'a>(&'a self, claim_shard: &'a ClaimShard) -> Reply<'a, Vec<MembershipInfo>> {
        Box::pin(async move {
            let answer =
                self.steps.quick(self.on_claim_shard(&SCRIPTS.claim_shard_members, claim_shard)).await?;
            let mut parts = Parts::of(answer.value());
            let now = parts.number()?;
            let mut found = Vec::new();
            while !parts.is_empty() {
                found.push(membership_info(now, &mut parts)?);
            }
            found.sort_by_key(|membership| membership.number);
            Ok(found)
        })
    }

    fn expel<'a>(&'a self, claim_shard: &'a ClaimShard, number: Epoch, beats: u64) -> Reply<'a, bool> {
        Box::pin(async move {
            let script = &SCRIPTS.claim_shard_expel;
            let call = self.on_claim_shard(script, claim_shard).arg(number.0).arg(beats);
            let answer = self.steps.durable(script, call).await?;
            answer.value().as_i64().map(|gone| gone == 1).ok_or_else(odd_answer)
        })
    }
}

fn refused_join(claim_shard: &ClaimShard, request: &Join, refusal: &str) -> Error {
    match refusal.split_once(' ').map(|(why, number)| (why, number.parse::<u64>())) {
        Some(("newer", Ok(number))) => request.superseded(claim_shard, Epoch(number)),
        Some(("full", Ok(count))) => {
            let context =
                format!("claim shard {claim_shard} has {count} members: spread the service over more shards");
            Error::new(ErrorKind::Overloaded, context)
        }
        _ => odd_answer(),
    }
}

/// Passes an answer on, unless the membership is over.
fn accept(membership: &Membership, answer: Frame) -> Result<Frame> {
    match super::durability::is_refusal(&answer) {
        false => Ok(answer),
        true if answer.value().as_str() == Some("fenced") => Err(membership.over()),
        true => Err(odd_answer()),
    }
}

fn flags(mut parts: Parts<'_>) -> Result<Vec<bool>> {
    let mut flags = Vec::new();
    while !parts.is_empty() {
        flags.push(parts.number()? == 1);
    }
    Ok(flags)
}

fn outcome(value: Value<'_>) -> Result<Outcome> {
    match value.as_i64() {
        Some(0) => Ok(Outcome::Done),
        Some(1) => Ok(Outcome::Fenced),
        Some(2) => Ok(Outcome::Missing),
        _ => Err(odd_answer()),
    }
}

/// The epoch, then five parts per claim.
pub(super) fn granted(answer: Value<'_>) -> Result<Vec<Granted>> {
    let mut parts = Parts::of(answer);
    let epoch = Epoch(parts.number()?);
    let mut granted = Vec::new();
    while !parts.is_empty() {
        let name = OfferName::new(parts.text()?)?;
        let kind = parts.number()?;
        let last = parts.text()?;
        let payload = parts.bytes()?;
        let checkpoint = parts.value()?;
        let former = match (kind, last) {
            (_, "") => PreviousOwner::Nobody,
            (1, last) => PreviousOwner::Vanished(MemberName::new(last)?),
            (_, last) => PreviousOwner::Released(MemberName::new(last)?),
        };
        granted.push(Granted { name, epoch, payload, checkpoint: checkpoint.bytes(), former });
    }
    Ok(granted)
}

fn since(now_us: u64, ms: u64) -> Duration {
    Duration::from_micros(now_us.saturating_sub(ms.saturating_mul(1000)))
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| odd_answer())
}

/// `epoch owner since offered last`, and how the owner is.
pub(super) fn offer_info(now: u64, parts: &mut Parts<'_>) -> Result<OfferInfo> {
    let name = OfferName::new(parts.text()?)?;
    let text = parts.text()?;
    let state = parts.number()?;
    let gone_since = parts.number()?;
    let words: Vec<&str> = text.splitn(5, ' ').collect();
    let [epoch, owner, changed, offered, last] = words[..] else { return Err(odd_answer()) };
    let last_member = || MemberName::new(last);
    let state_name = match state {
        1 => OfferState::Owned { by: last_member()?, number: Epoch(number(owner)?) },
        2 => OfferState::Orphaned { last: last_member()? },
        _ if last.is_empty() => OfferState::Free { last: None },
        _ => OfferState::Free { last: Some(last_member()?) },
    };
    let changed = if gone_since > 0 { gone_since } else { number(changed)? };
    Ok(OfferInfo {
        name,
        epoch: Epoch(number(epoch)?),
        state: state_name,
        since: since(now, changed),
        age: since(now, number(offered)?),
    })
}

/// `token ttl joined beats losses capacity presence since member`, with its number, deadline and
/// claims before it.
pub(super) fn membership_info(now: u64, parts: &mut Parts<'_>) -> Result<MembershipInfo> {
    let life = Epoch(parts.number()?);
    let deadline = parts.signed()?;
    let held = parts.number()?;
    let words: Vec<&str> = parts.text()?.splitn(9, ' ').collect();
    let [_token, ttl, joined, beats, _losses, capacity, _presence, _since, member] = words[..] else {
        return Err(odd_answer());
    };
    let deadline = u64::try_from(deadline).ok();
    Ok(MembershipInfo {
        member: MemberName::new(member)?,
        number: life,
        remaining: deadline.map(|ms| Duration::from_micros(ms.saturating_mul(1000).saturating_sub(now))),
        beats: number(beats)?,
        ttl: Duration::from_millis(number(ttl)?),
        held,
        capacity: number(capacity)?,
        age: since(now, number(joined)?),
    })
}
