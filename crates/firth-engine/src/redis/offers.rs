//! The offers facet: one script per step, all on the keys of one board. A beat is one call whatever the number of claims.

use super::RedisEngine;
use super::answer::Parts;
use super::leases::print_token;
use super::micros;
use super::scripts::SCRIPTS;
use super::trouble::odd_answer;
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{
    Beat, Board, ClaimKey, Former, Granted, Join, NewOffer, OfferInfo, OfferState, Offers, Outcome, Pulse,
    Reply, Seat, SeatInfo, Taken, check_checkpoint, check_count, check_offers, check_rest,
};
use crate::id::Epoch;
use crate::limits::{MAX_BOARD_BATCH, MAX_GRANT_BYTES, MAX_MEMBERS, MAX_READ};
use crate::name::{MemberName, OfferName};
use bytes::Bytes;
use firth_redis::resp::{Frame, Value};
use firth_redis::{Script, ScriptCall};
use std::time::Duration;

impl RedisEngine {
    fn on_board(&self, script: &Script, board: &Board) -> ScriptCall {
        script.keys(self.keys.board(board))
    }

    fn seated(&self, script: &Script, seat: &Seat) -> ScriptCall {
        self.on_board(script, &seat.board).arg(seat.number.0).arg(print_token(seat.token))
    }

    /// A step by name, for anyone; per name, whether it changed anything.
    async fn by_names(&self, script: &Script, board: &Board, names: &[OfferName]) -> Result<Vec<bool>> {
        check_count(names.len())?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let call = self.on_board(script, board).args(names.iter().map(OfferName::as_str));
        flags(&self.steps.durable(script, call).await?)
    }

    async fn settle(&self, seat: &Seat, how: String, claims: &[ClaimKey]) -> Result<Vec<Outcome>> {
        check_count(claims.len())?;
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let script = &SCRIPTS.board_settle;
        let mut call = self.seated(script, seat).arg(how);
        for claim in claims {
            call = call.arg(claim.name.as_str()).arg(claim.epoch.0);
        }
        let answer = accept(seat, self.steps.durable(script, call).await?)?;
        answer.value().iter().map(outcome).collect()
    }

    /// Reads pages of offers until there are `max`, or no more.
    async fn board_page(&self, board: &Board, from: Option<&str>, max: usize) -> Result<Vec<OfferInfo>> {
        let mut call = self.on_board(&SCRIPTS.board_list, board).arg(max);
        if let Some(from) = from {
            call = call.arg(from);
        }
        let answer = self.steps.quick(call).await?;
        let mut parts = Parts::of(answer.value());
        let (now, mut found) = (parts.number()?, Vec::new());
        while !parts.is_empty() {
            found.push(offer_info(now, &mut parts)?);
        }
        Ok(found)
    }
}

impl Offers for RedisEngine {
    fn offer<'a>(&'a self, board: &'a Board, offers: Vec<NewOffer>) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            check_offers(&offers)?;
            if offers.is_empty() {
                return Ok(Vec::new());
            }
            let script = &SCRIPTS.board_offer;
            let mut call = self.on_board(script, board);
            for offer in &offers {
                call = call.arg(offer.name.as_str()).arg(&offer.payload);
            }
            flags(&self.steps.durable(script, call).await?)
        })
    }

    fn withdraw<'a>(&'a self, board: &'a Board, names: &'a [OfferName]) -> Reply<'a, Vec<bool>> {
        Box::pin(self.by_names(&SCRIPTS.board_withdraw, board, names))
    }

    fn join<'a>(&'a self, board: &'a Board, wish: Join) -> Reply<'a, Seat> {
        Box::pin(async move {
            wish.check()?;
            let script = &SCRIPTS.board_join;
            let call = self
                .on_board(script, board)
                .arg(wish.member.as_str())
                .arg(print_token(wish.token))
                .arg(micros(wish.ttl))
                .arg(wish.capacity)
                .arg(MAX_MEMBERS)
                .arg(wish.after.map(|after| after.0.to_string()).unwrap_or_default());
            let answer = self.steps.durable(script, call).await?;
            if let Some(refusal) = answer.value().as_str().filter(|_| super::durability::is_refusal(&answer))
            {
                return Err(refused_join(board, &wish, refusal));
            }
            let number = Epoch(Parts::of(answer.value()).number()?);
            Ok(Seat { board: board.clone(), member: wish.member, number, token: wish.token })
        })
    }

    fn leave<'a>(&'a self, seat: &'a Seat) -> Reply<'a, bool> {
        Box::pin(async move {
            // Losing this step only means that the seat runs out by itself.
            let answer = self.steps.quick(self.seated(&SCRIPTS.board_leave, seat)).await?;
            answer.value().as_i64().map(|left| left == 1).ok_or_else(odd_answer)
        })
    }

    fn beat<'a>(&'a self, seat: &'a Seat, beat: Beat) -> Reply<'a, Pulse> {
        Box::pin(async move {
            beat.check()?;
            let call = self
                .seated(&SCRIPTS.board_beat, seat)
                .arg(micros(beat.ttl))
                .arg(beat.capacity)
                .arg(beat.roster);
            let answer = accept(seat, self.steps.quick(call).await?)?;
            let mut parts = Parts::of(answer.value());
            let mut pulse = Pulse {
                held: parts.number()?,
                losses: parts.number()?,
                offers: parts.number()?,
                free: parts.number()?,
                orphaned: parts.number()?,
                next_free: parts.duration()?,
                next_expiry: parts.duration()?,
                roster: parts.number()?,
                seats: None,
            };
            if pulse.roster != beat.roster {
                let mut seats = Vec::new();
                while !parts.is_empty() {
                    seats.push((Epoch(parts.number()?), parts.number()?));
                }
                seats.sort_unstable();
                pulse.seats = Some(seats);
            }
            Ok(pulse)
        })
    }

    fn grant<'a>(&'a self, seat: &'a Seat, max: usize) -> Reply<'a, Vec<Granted>> {
        Box::pin(async move {
            let script = &SCRIPTS.board_grant;
            let max = max.min(MAX_BOARD_BATCH);
            let call = self.seated(script, seat).arg(max).arg(MAX_GRANT_BYTES);
            // A grant counts only when it is as durable as everything else: two sides of a network partition may both give it.
            let answer = accept(seat, self.steps.durable(script, call).await?)?;
            granted(answer.value())
        })
    }

    fn take<'a>(&'a self, seat: &'a Seat, name: &'a OfferName, seize: bool) -> Reply<'a, Taken> {
        Box::pin(async move {
            let script = &SCRIPTS.board_take;
            let call = self.seated(script, seat).arg(name.as_str()).arg(u8::from(seize));
            let answer = accept(seat, self.steps.durable(script, call).await?)?;
            let mut parts = Parts::of(answer.value());
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

    fn done<'a>(&'a self, seat: &'a Seat, claims: &'a [ClaimKey]) -> Reply<'a, Vec<Outcome>> {
        Box::pin(self.settle(seat, "done".to_owned(), claims))
    }

    fn give_back<'a>(
        &'a self,
        seat: &'a Seat,
        claims: &'a [ClaimKey],
        rest: Duration,
    ) -> Reply<'a, Vec<Outcome>> {
        Box::pin(async move {
            check_rest(rest)?;
            self.settle(seat, micros(rest).to_string(), claims).await
        })
    }

    fn checkpoint<'a>(&'a self, seat: &'a Seat, claim: &'a ClaimKey, state: Bytes) -> Reply<'a, Outcome> {
        Box::pin(async move {
            check_checkpoint(&state)?;
            let script = &SCRIPTS.board_checkpoint;
            let call = self.seated(script, seat).arg(claim.name.as_str()).arg(claim.epoch.0).arg(&state);
            let answer = accept(seat, self.steps.durable(script, call).await?)?;
            outcome(answer.value())
        })
    }

    fn force_release<'a>(&'a self, board: &'a Board, names: &'a [OfferName]) -> Reply<'a, Vec<bool>> {
        Box::pin(self.by_names(&SCRIPTS.board_force, board, names))
    }

    fn owned<'a>(&'a self, seat: &'a Seat, skip: usize, max: usize) -> Reply<'a, Vec<ClaimKey>> {
        Box::pin(async move {
            check_count(max)?;
            let call = self.seated(&SCRIPTS.board_owned, seat).arg(skip).arg(max);
            let answer = accept(seat, self.steps.quick(call).await?)?;
            let (mut parts, mut claims) = (Parts::of(answer.value()), Vec::new());
            while !parts.is_empty() {
                claims.push(ClaimKey { name: OfferName::new(parts.text()?)?, epoch: Epoch(parts.number()?) });
            }
            Ok(claims)
        })
    }

    fn offers<'a>(
        &'a self,
        board: &'a Board,
        after: Option<&'a OfferName>,
        max: usize,
    ) -> Reply<'a, Vec<OfferInfo>> {
        Box::pin(async move {
            let (mut found, max): (Vec<OfferInfo>, _) = (Vec::new(), max.clamp(1, MAX_READ));
            let mut from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
            while found.len() < max {
                let wanted = MAX_BOARD_BATCH.min(max - found.len());
                let page = self.board_page(board, Some(&from), wanted).await?;
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

    fn orphans<'a>(&'a self, board: &'a Board, max: usize) -> Reply<'a, Vec<OfferInfo>> {
        Box::pin(self.board_page(board, None, max.clamp(1, MAX_BOARD_BATCH)))
    }

    fn members<'a>(&'a self, board: &'a Board) -> Reply<'a, Vec<SeatInfo>> {
        Box::pin(async move {
            let answer = self.steps.quick(self.on_board(&SCRIPTS.board_members, board)).await?;
            let mut parts = Parts::of(answer.value());
            let (now, mut found) = (parts.number()?, Vec::new());
            while !parts.is_empty() {
                found.push(seat_info(now, &mut parts)?);
            }
            found.sort_by_key(|seat| seat.number);
            Ok(found)
        })
    }

    fn expel<'a>(&'a self, board: &'a Board, number: Epoch, beats: u64) -> Reply<'a, bool> {
        Box::pin(async move {
            let script = &SCRIPTS.board_expel;
            let call = self.on_board(script, board).arg(number.0).arg(beats);
            let answer = self.steps.durable(script, call).await?;
            answer.value().as_i64().map(|gone| gone == 1).ok_or_else(odd_answer)
        })
    }
}

fn refused_join(board: &Board, wish: &Join, refusal: &str) -> Error {
    match refusal.split_once(' ').map(|(why, number)| (why, number.parse::<u64>())) {
        Some(("newer", Ok(number))) => wish.superseded(board, Epoch(number)),
        Some(("full", Ok(count))) => {
            let context = format!("board {board} has {count} members: spread the service over more shards");
            Error::new(ErrorKind::Overloaded, context)
        }
        _ => odd_answer(),
    }
}

/// Passes an answer on, unless the seat is over.
fn accept(seat: &Seat, answer: Frame) -> Result<Frame> {
    match super::durability::is_refusal(&answer) {
        false => Ok(answer),
        true if answer.value().as_str() == Some("fenced") => Err(seat.over()),
        true => Err(odd_answer()),
    }
}

fn flags(answer: &Frame) -> Result<Vec<bool>> {
    answer.value().iter().map(|flag| flag.as_i64().map(|flag| flag == 1).ok_or_else(odd_answer)).collect()
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
    let (epoch, mut granted) = (Epoch(parts.number()?), Vec::new());
    while !parts.is_empty() {
        let name = OfferName::new(parts.text()?)?;
        let (kind, last) = (parts.number()?, parts.text()?);
        let (payload, checkpoint) = (parts.bytes()?, parts.value()?);
        let former = match (kind, last) {
            (_, "") => Former::Nobody,
            (1, last) => Former::Vanished(MemberName::new(last)?),
            (_, last) => Former::Released(MemberName::new(last)?),
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
    let (name, text) = (OfferName::new(parts.text()?)?, parts.text()?);
    let (state, gone_since) = (parts.number()?, parts.number()?);
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

/// `token ttl joined beats losses capacity presence since member`, with its number, deadline and claims before it.
pub(super) fn seat_info(now: u64, parts: &mut Parts<'_>) -> Result<SeatInfo> {
    let (life, deadline, held) = (Epoch(parts.number()?), parts.signed()?, parts.number()?);
    let words: Vec<&str> = parts.text()?.splitn(9, ' ').collect();
    let [_token, ttl, joined, beats, _losses, capacity, _presence, _since, member] = words[..] else {
        return Err(odd_answer());
    };
    let deadline = u64::try_from(deadline).ok();
    Ok(SeatInfo {
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
