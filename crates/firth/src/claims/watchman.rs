//! The watchman: finds members that stand still although the engine's clock says that they are in time (that clock may have
//! gone back), and has them declared gone. Fencing keeps that safe even if it is wrong.

use super::shard::Shard;
use super::unit::Life;
use crate::error::Result;
use firth_engine::Epoch;
use firth_engine::facet::SeatInfo;
use std::collections::HashMap;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct Watchman {
    seen: HashMap<Epoch, (u64, Instant)>,
    looked: Option<Instant>,
}

impl Watchman {
    /// Looks once per TTL.
    pub(crate) async fn look(&mut self, shard: &Shard, life: &Life) -> Result<()> {
        let now = Instant::now();
        let ttl = shard.common.config.ttl;
        if self.looked.is_some_and(|looked| now.duration_since(looked) < ttl) {
            return Ok(());
        }
        self.looked = Some(now);
        let seats = shard.common.engine.members(&shard.board).await?;
        for (number, beats) in self.still(&seats, life.seat.number, now) {
            if shard.common.engine.expel(&shard.board, number, beats).await? {
                tracing::warn!(board = %shard.board, %number, "a member stood still and was declared gone");
            }
        }
        Ok(())
    }

    /// Members whose beats stood still for one and a half of their own TTL.
    fn still(&mut self, seats: &[SeatInfo], me: Epoch, now: Instant) -> Vec<(Epoch, u64)> {
        let mut still = Vec::new();
        let there = seats.iter().filter(|seat| seat.remaining.is_some() && seat.number != me);
        self.seen.retain(|number, _| there.clone().any(|seat| seat.number == *number));
        for seat in there {
            let seen = self.seen.entry(seat.number).or_insert((seat.beats, now));
            if seen.0 != seat.beats {
                *seen = (seat.beats, now);
            }
            if now.duration_since(seen.1) > seat.ttl + seat.ttl / 2 {
                still.push((seat.number, seat.beats));
            }
        }
        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::MemberName;
    use std::time::Duration;

    fn seat(number: u64, beats: u64) -> SeatInfo {
        SeatInfo {
            member: MemberName::new("m").unwrap(),
            number: Epoch(number),
            remaining: Some(Duration::from_secs(9999)),
            beats,
            ttl: Duration::from_secs(1),
            held: 0,
            capacity: 1,
            age: Duration::ZERO,
        }
    }

    #[test]
    fn a_member_whose_beats_stand_still_is_found_whatever_the_engines_clock_says() {
        let (mut watchman, start) = (Watchman::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(watchman.still(&[seat(1, 5), seat(2, 5)], Epoch(2), at(0)).is_empty());
        assert!(watchman.still(&[seat(1, 5), seat(2, 5)], Epoch(2), at(1500)).is_empty());
        assert_eq!(watchman.still(&[seat(1, 5), seat(2, 5)], Epoch(2), at(1600)), [(Epoch(1), 5)]);
        assert!(watchman.still(&[seat(1, 6)], Epoch(2), at(1700)).is_empty());
        let gone = SeatInfo { remaining: None, ..seat(1, 6) };
        assert!(watchman.still(&[gone], Epoch(2), at(9000)).is_empty());
    }
}
