//! Offers and who has them: one function per call of the contract.

mod hand;
mod look;

pub(in crate::embedded) use look::{list, members, orphans, owned};

use crate::embedded::board_values::{MemberEntry, OfferEntry, Presence};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{Beat, Board, ClaimKey, Former, Granted, Join, NewOffer, Outcome, Pulse, Seat, Taken};
use crate::id::Epoch;
use crate::limits::{MAX_BOARD_BATCH, MAX_GRANT_BYTES, MAX_MEMBERS};
use crate::name::OfferName;
use bytes::Bytes;
use hand::Hand;
use std::time::Duration;

pub(in crate::embedded) fn offer(
    step: &mut Step<'_>,
    board: &Board,
    offers: &[NewOffer],
) -> Result<Vec<bool>> {
    let mut hand = Hand::open(step, board)?;
    let now = hand.step.now.ms();
    let mut made = Vec::with_capacity(offers.len());
    for offer in offers {
        let known = hand.offer(&offer.name)?;
        made.push(known.is_none());
        if let Some(known) = &known {
            if hand.step.planted(Mutation::OfferAgain) && known.owner != 0 {
                hand.free(&offer.name, known, now);
            }
            continue;
        }
        let entry = OfferEntry { epoch: 0, owner: 0, since: now, ready: now, offered: now, last: None };
        hand.put(&offer.name, None, entry);
        hand.step.store_raw(keys::board_payload(board, &offer.name), offer.payload.clone());
    }
    hand.close();
    Ok(made)
}

pub(in crate::embedded) fn withdraw(
    step: &mut Step<'_>,
    board: &Board,
    names: &[OfferName],
) -> Result<Vec<bool>> {
    step.batch.frugal = true;
    let mut hand = Hand::open(step, board)?;
    let mut gone = Vec::with_capacity(names.len());
    for name in names {
        let known = hand.offer(name)?;
        gone.push(known.is_some());
        if let Some(known) = known {
            hand.count_loss(known.owner);
            hand.erase(name, &known);
        }
    }
    hand.close();
    Ok(gone)
}

pub(in crate::embedded) fn join(step: &mut Step<'_>, board: &Board, wish: &Join) -> Result<Seat> {
    step.batch.frugal = true;
    let seat = |number| Seat { board: board.clone(), member: wish.member.clone(), number, token: wish.token };
    let mut hand = Hand::open(step, board)?;
    let now = hand.step.now;
    let former: Option<u64> = hand.step.load(&keys::board_life(board, &wish.member))?;
    if let Some((number, token)) = former.and_then(|number| Some((number, hand.alive(number)?.token))) {
        if token == wish.token && !hand.step.planted(Mutation::JoinTwice) {
            hand.renew(number, wish.ttl, wish.capacity);
            hand.close();
            return Ok(seat(Epoch(number)));
        }
        let is_newer = wish.after.is_some_and(|after| number > after.0);
        if is_newer && !hand.step.planted(Mutation::JoinOverNewer) {
            return Err(wish.superseded(board, Epoch(number)));
        }
        hand.depart(number, Presence::Vanished(now.ms()));
    }
    let alive = hand.members.values().filter(|member| member.presence == Presence::Alive).count();
    if alive >= MAX_MEMBERS {
        let context = format!("board {board} has {alive} members: spread the service over more shards");
        return Err(Error::new(ErrorKind::Overloaded, context));
    }
    let number = hand.next_epoch();
    let entry = MemberEntry {
        member: wish.member.clone(),
        token: wish.token,
        presence: Presence::Alive,
        deadline: now.later_ms(wish.ttl),
        joined: now.ms(),
        ttl_ms: hand::millis(wish.ttl),
        beats: 1,
        losses: 0,
        held: 0,
        capacity: wish.capacity,
    };
    hand.members.insert(number.0, entry);
    hand.member_mut(number.0);
    hand.step.store(keys::board_life(board, &wish.member), &number.0);
    hand.meta.roster += 1;
    hand.wake();
    hand.close();
    Ok(seat(number))
}

pub(in crate::embedded) fn leave(step: &mut Step<'_>, seat: &Seat) -> Result<bool> {
    step.batch.frugal = true;
    let mut hand = match Hand::seated(step, seat) {
        Ok(hand) => hand,
        Err(error) if error.kind() == ErrorKind::Fenced => return Ok(false),
        Err(error) => return Err(error),
    };
    if hand.step.planted(Mutation::LeaveDeletes) {
        for name in hand.names(keys::board_owned_by(&seat.board, seat.number.0), usize::MAX, |_| true)? {
            if let Some(known) = hand.offer(&name)? {
                hand.erase(&name, &known);
            }
        }
    }
    let now = hand.step.now.ms();
    hand.depart(seat.number.0, Presence::Left(now));
    hand.close();
    Ok(true)
}

pub(in crate::embedded) fn beat(step: &mut Step<'_>, seat: &Seat, beat: Beat) -> Result<Pulse> {
    (step.batch.relaxed, step.batch.frugal) = (true, true);
    let mut hand = Hand::seated(step, seat)?;
    let now = hand.step.now;
    hand.renew(seat.number.0, beat.ttl, beat.capacity);
    let me = &hand.members[&seat.number.0];
    let alive = || hand.members.iter().filter(|(_, member)| member.presence == Presence::Alive);
    let others = alive().filter(|(number, _)| **number != seat.number.0);
    let of = |is_wanted: fn(Presence) -> bool| -> u64 {
        let wanted = hand.members.values().filter(|member| is_wanted(member.presence));
        wanted.map(|member| member.held).sum()
    };
    let left = of(|presence| matches!(presence, Presence::Left(_)));
    let next_free = match hand.meta.free {
        _ if left > 0 => Some(Duration::ZERO),
        0 => None,
        _ => {
            let first = hand.step.first_key(Range::prefix(keys::board_frees(&seat.board)))?;
            first.and_then(|key| keys::board_ready(&seat.board, &key)).map(|ms| now.until(ms))
        }
    };
    let pulse = Pulse {
        held: me.held,
        losses: me.losses,
        offers: hand.meta.offers,
        free: hand.meta.free + left,
        orphaned: of(|presence| matches!(presence, Presence::Vanished(_))),
        next_free,
        next_expiry: others.map(|(_, member)| now.until(member.deadline)).min(),
        roster: hand.meta.roster,
        seats: (beat.roster != hand.meta.roster)
            .then(|| alive().map(|(number, member)| (Epoch(*number), member.capacity)).collect()),
    };
    hand.close();
    Ok(pulse)
}

pub(in crate::embedded) fn grant(step: &mut Step<'_>, seat: &Seat, max: usize) -> Result<Vec<Granted>> {
    step.batch.frugal = true;
    let mut hand = Hand::seated(step, seat)?;
    let max = max.min(MAX_BOARD_BATCH);
    let mut names = Vec::new();
    let gone: Vec<u64> = hand
        .members
        .iter()
        .filter(|(number, member)| {
            let steal = hand.step.planted(Mutation::GrantOwned) && **number != seat.number.0;
            (member.presence != Presence::Alive || steal) && member.held > 0
        })
        .map(|(number, _)| *number)
        .collect();
    for number in gone {
        let owned = keys::board_owned_by(&seat.board, number);
        names.extend(hand.names(owned, max - names.len(), |_| true)?);
    }
    let now = hand.step.now.ms();
    let ready = |rest: &[u8]| keys::number_at(rest, 0).is_some_and(|ms| ms <= now);
    names.extend(hand.names(keys::board_frees(&seat.board), max - names.len(), ready)?);
    if names.is_empty() {
        hand.close();
        return Ok(Vec::new());
    }
    let epoch = hand.next_epoch();
    let (mut granted, mut bytes) = (Vec::with_capacity(names.len()), 0);
    for name in names {
        let Some(known) = hand.offer(&name)? else { continue };
        let grant = hand_over(&mut hand, seat, &name, &known, epoch)?;
        bytes += grant.payload.len() + grant.checkpoint.as_ref().map_or(0, Bytes::len);
        granted.push(grant);
        if bytes >= MAX_GRANT_BYTES {
            break;
        }
    }
    hand.close();
    Ok(granted)
}

/// Gives an offer to the seat under `epoch`.
fn hand_over(
    hand: &mut Hand<'_, '_>,
    seat: &Seat,
    name: &OfferName,
    known: &OfferEntry,
    epoch: Epoch,
) -> Result<Granted> {
    let presence = hand.members.get(&known.owner).map(|member| member.presence);
    let former = match (&known.last, presence) {
        (None, _) => Former::Nobody,
        (Some(last), Some(Presence::Vanished(_))) => Former::Vanished(last.clone()),
        (Some(last), _) => Former::Released(last.clone()),
    };
    let view = hand.step.view;
    let get = |key: Vec<u8>| view.get(keys::Space::State, &key);
    let payload = get(keys::board_payload(&seat.board, name))?.unwrap_or_default();
    let checkpoint = get(keys::board_checkpoint(&seat.board, name))?;
    let now = hand.step.now.ms();
    let offer = OfferEntry {
        epoch: epoch.0,
        owner: seat.number.0,
        since: now,
        last: Some(seat.member.clone()),
        ..known.clone()
    };
    hand.put(name, Some(known), offer);
    Ok(Granted { name: name.clone(), epoch, payload, checkpoint, former })
}

pub(in crate::embedded) fn take(
    step: &mut Step<'_>,
    seat: &Seat,
    name: &OfferName,
    seize: bool,
) -> Result<Taken> {
    step.batch.frugal = true;
    let mut hand = Hand::seated(step, seat)?;
    let Some(known) = hand.offer(name)? else {
        hand.close();
        return Ok(Taken::Missing);
    };
    if let Some(owner) = hand.alive(known.owner).filter(|_| !seize || known.owner == seat.number.0) {
        let held = Taken::Held { by: owner.member.clone(), remaining: hand.step.now.until(owner.deadline) };
        hand.close();
        return Ok(held);
    }
    hand.count_loss(known.owner);
    let epoch = hand.next_epoch();
    let granted = hand_over(&mut hand, seat, name, &known, epoch)?;
    hand.close();
    Ok(Taken::Granted(granted))
}

/// The offer if the claim is good, else what to answer.
fn claimed(hand: &Hand<'_, '_>, seat: &Seat, claim: &ClaimKey) -> Result<Result<OfferEntry, Outcome>> {
    let Some(known) = hand.offer(&claim.name)? else { return Ok(Err(Outcome::Missing)) };
    let same_grant = known.epoch == claim.epoch.0 || hand.step.planted(Mutation::SkipFenceOnClaim);
    Ok(if known.owner == seat.number.0 && same_grant { Ok(known) } else { Err(Outcome::Fenced) })
}

pub(in crate::embedded) fn done(
    step: &mut Step<'_>,
    seat: &Seat,
    claims: &[ClaimKey],
) -> Result<Vec<Outcome>> {
    each(step, seat, claims, |hand, claim, known| hand.erase(&claim.name, known))
}

pub(in crate::embedded) fn give_back(
    step: &mut Step<'_>,
    seat: &Seat,
    claims: &[ClaimKey],
    rest: Duration,
) -> Result<Vec<Outcome>> {
    let ready = step.now.later_ms(rest);
    each(step, seat, claims, |hand, claim, known| hand.free(&claim.name, known, ready))
}

fn each(
    step: &mut Step<'_>,
    seat: &Seat,
    claims: &[ClaimKey],
    mut act: impl FnMut(&mut Hand<'_, '_>, &ClaimKey, &OfferEntry),
) -> Result<Vec<Outcome>> {
    step.batch.frugal = true;
    let mut hand = Hand::seated(step, seat)?;
    let mut outcomes = Vec::with_capacity(claims.len());
    for claim in claims {
        outcomes.push(match claimed(&hand, seat, claim)? {
            Ok(known) => {
                act(&mut hand, claim, &known);
                Outcome::Done
            }
            Err(outcome) => outcome,
        });
    }
    hand.close();
    Ok(outcomes)
}

pub(in crate::embedded) fn checkpoint(
    step: &mut Step<'_>,
    seat: &Seat,
    claim: &ClaimKey,
    state: Bytes,
) -> Result<Outcome> {
    let hand = Hand::seated(step, seat)?;
    let outcome = match claimed(&hand, seat, claim)? {
        Ok(_) => {
            if !hand.step.planted(Mutation::LoseCheckpoint) {
                hand.step.store_raw(keys::board_checkpoint(&seat.board, &claim.name), state);
            }
            Outcome::Done
        }
        Err(outcome) => outcome,
    };
    hand.close();
    Ok(outcome)
}

pub(in crate::embedded) fn force_release(
    step: &mut Step<'_>,
    board: &Board,
    names: &[OfferName],
) -> Result<Vec<bool>> {
    step.batch.frugal = true;
    let mut hand = Hand::open(step, board)?;
    let now = hand.step.now.ms();
    let mut released = Vec::with_capacity(names.len());
    for name in names {
        let known = hand.offer(name)?.filter(|known| known.owner != 0);
        released.push(known.is_some());
        if let Some(known) = known {
            hand.count_loss(known.owner);
            hand.free(name, &known, now);
        }
    }
    hand.close();
    Ok(released)
}

pub(in crate::embedded) fn expel(
    step: &mut Step<'_>,
    board: &Board,
    number: Epoch,
    beats: u64,
) -> Result<bool> {
    step.batch.frugal = true;
    let mut hand = Hand::open(step, board)?;
    let stands_still = hand.alive(number.0).is_some_and(|member| member.beats == beats);
    if stands_still {
        let now = hand.step.now.ms();
        hand.depart(number.0, Presence::Vanished(now));
    }
    hand.close();
    Ok(stands_still)
}
