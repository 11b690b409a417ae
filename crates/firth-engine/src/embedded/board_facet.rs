//! The offers facet of the embedded engine: each call checks what needs no stored state, then runs its step.

use super::Embedded;
use super::steps::offers;
use crate::error::Result;
use crate::facet::{
    Beat, Board, ClaimKey, Granted, Join, NewOffer, OfferInfo, Offers, Outcome, Pulse, Reply, Seat, SeatInfo,
    Taken, check_checkpoint, check_count, check_offers, check_rest,
};
use crate::id::Epoch;
use crate::name::OfferName;
use bytes::Bytes;
use std::time::Duration;

/// About what one offer costs in memory while its step waits.
const EACH: usize = 256;

impl Embedded {
    async fn on_claims<T: Send + 'static>(
        &self,
        seat: &Seat,
        claims: &[ClaimKey],
        run: impl FnOnce(&mut super::step::Step<'_>, &Seat, &[ClaimKey]) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        check_count(claims.len())?;
        let (seat, claims) = (seat.clone(), claims.to_vec());
        self.driver.change(EACH * (claims.len() + 1), move |step| run(step, &seat, &claims)).await
    }

    async fn on_names<T: Send + 'static>(
        &self,
        board: &Board,
        names: &[OfferName],
        run: impl FnOnce(&mut super::step::Step<'_>, &Board, &[OfferName]) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        check_count(names.len())?;
        let (board, names) = (board.clone(), names.to_vec());
        self.driver.change(EACH * (names.len() + 1), move |step| run(step, &board, &names)).await
    }
}

impl Offers for Embedded {
    fn offer<'a>(&'a self, board: &'a Board, new: Vec<NewOffer>) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            check_offers(&new)?;
            let board = board.clone();
            let cost = new.iter().map(|offer| offer.payload.len() + EACH).sum();
            self.driver.change(cost, move |step| offers::offer(step, &board, &new)).await
        })
    }

    fn withdraw<'a>(&'a self, board: &'a Board, names: &'a [OfferName]) -> Reply<'a, Vec<bool>> {
        Box::pin(self.on_names(board, names, offers::withdraw))
    }

    fn join<'a>(&'a self, board: &'a Board, wish: Join) -> Reply<'a, Seat> {
        Box::pin(async move {
            wish.check()?;
            let board = board.clone();
            self.driver.change(EACH, move |step| offers::join(step, &board, &wish)).await
        })
    }

    fn leave<'a>(&'a self, seat: &'a Seat) -> Reply<'a, bool> {
        let seat = seat.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::leave(step, &seat)))
    }

    fn beat<'a>(&'a self, seat: &'a Seat, beat: Beat) -> Reply<'a, Pulse> {
        Box::pin(async move {
            beat.check()?;
            let seat = seat.clone();
            self.driver.change(EACH, move |step| offers::beat(step, &seat, beat)).await
        })
    }

    fn grant<'a>(&'a self, seat: &'a Seat, max: usize) -> Reply<'a, Vec<Granted>> {
        let seat = seat.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::grant(step, &seat, max)))
    }

    fn take<'a>(&'a self, seat: &'a Seat, name: &'a OfferName, seize: bool) -> Reply<'a, Taken> {
        let (seat, name) = (seat.clone(), name.clone());
        Box::pin(self.driver.change(EACH, move |step| offers::take(step, &seat, &name, seize)))
    }

    fn done<'a>(&'a self, seat: &'a Seat, claims: &'a [ClaimKey]) -> Reply<'a, Vec<Outcome>> {
        Box::pin(self.on_claims(seat, claims, offers::done))
    }

    fn give_back<'a>(
        &'a self,
        seat: &'a Seat,
        claims: &'a [ClaimKey],
        rest: Duration,
    ) -> Reply<'a, Vec<Outcome>> {
        Box::pin(async move {
            check_rest(rest)?;
            self.on_claims(seat, claims, move |step, seat, claims| {
                offers::give_back(step, seat, claims, rest)
            })
            .await
        })
    }

    fn checkpoint<'a>(&'a self, seat: &'a Seat, claim: &'a ClaimKey, state: Bytes) -> Reply<'a, Outcome> {
        Box::pin(async move {
            check_checkpoint(&state)?;
            let (seat, claim) = (seat.clone(), claim.clone());
            let cost = state.len() + EACH;
            self.driver.change(cost, move |step| offers::checkpoint(step, &seat, &claim, state)).await
        })
    }

    fn force_release<'a>(&'a self, board: &'a Board, names: &'a [OfferName]) -> Reply<'a, Vec<bool>> {
        Box::pin(self.on_names(board, names, offers::force_release))
    }

    fn owned<'a>(&'a self, seat: &'a Seat, skip: usize, max: usize) -> Reply<'a, Vec<ClaimKey>> {
        Box::pin(async move {
            check_count(max)?;
            let seat = seat.clone();
            self.driver.change(EACH, move |step| offers::owned(step, &seat, skip, max)).await
        })
    }

    fn offers<'a>(
        &'a self,
        board: &'a Board,
        after: Option<&'a OfferName>,
        max: usize,
    ) -> Reply<'a, Vec<OfferInfo>> {
        let (board, after) = (board.clone(), after.cloned());
        Box::pin(self.driver.look(move |step| offers::list(step, &board, after.as_ref(), max)))
    }

    fn orphans<'a>(&'a self, board: &'a Board, max: usize) -> Reply<'a, Vec<OfferInfo>> {
        let board = board.clone();
        Box::pin(self.driver.look(move |step| offers::orphans(step, &board, max)))
    }

    fn members<'a>(&'a self, board: &'a Board) -> Reply<'a, Vec<SeatInfo>> {
        let board = board.clone();
        Box::pin(self.driver.look(move |step| offers::members(step, &board)))
    }

    fn expel<'a>(&'a self, board: &'a Board, number: Epoch, beats: u64) -> Reply<'a, bool> {
        let board = board.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::expel(step, &board, number, beats)))
    }
}
