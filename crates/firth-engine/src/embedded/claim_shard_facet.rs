//! The offers facet of the embedded engine: each call checks what needs no stored state, then runs
//! its step.

use super::Embedded;
use super::steps::offers;
use crate::error::Result;
use crate::facet::{
    Beat, ClaimKey, ClaimShard, ClaimShardStatus, Granted, Join, Membership, MembershipInfo, NewOffer,
    OfferInfo, Offers, Outcome, Reply, Taken, check_checkpoint, check_count, check_offers, check_rest,
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
        membership: &Membership,
        claims: &[ClaimKey],
        run: impl FnOnce(&mut super::step::Step<'_>, &Membership, &[ClaimKey]) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        check_count(claims.len())?;
        let membership = membership.clone();
        let claims = claims.to_vec();
        self.driver.change(EACH * (claims.len() + 1), move |step| run(step, &membership, &claims)).await
    }

    async fn on_names<T: Send + 'static>(
        &self,
        claim_shard: &ClaimShard,
        names: &[OfferName],
        run: impl FnOnce(&mut super::step::Step<'_>, &ClaimShard, &[OfferName]) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        check_count(names.len())?;
        let claim_shard = claim_shard.clone();
        let names = names.to_vec();
        self.driver.change(EACH * (names.len() + 1), move |step| run(step, &claim_shard, &names)).await
    }
}

impl Offers for Embedded {
    fn offer<'a>(&'a self, claim_shard: &'a ClaimShard, new: Vec<NewOffer>) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            check_offers(&new)?;
            let claim_shard = claim_shard.clone();
            let cost = new.iter().map(|offer| offer.payload.len() + EACH).sum();
            self.driver.change(cost, move |step| offers::offer(step, &claim_shard, &new)).await
        })
    }

    fn withdraw<'a>(&'a self, claim_shard: &'a ClaimShard, names: &'a [OfferName]) -> Reply<'a, Vec<bool>> {
        Box::pin(self.on_names(claim_shard, names, offers::withdraw))
    }

    fn join<'a>(&'a self, claim_shard: &'a ClaimShard, request: Join) -> Reply<'a, Membership> {
        Box::pin(async move {
            request.check()?;
            let claim_shard = claim_shard.clone();
            self.driver.change(EACH, move |step| offers::join(step, &claim_shard, &request)).await
        })
    }

    fn leave<'a>(&'a self, membership: &'a Membership) -> Reply<'a, bool> {
        let membership = membership.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::leave(step, &membership)))
    }

    fn beat<'a>(&'a self, membership: &'a Membership, beat: Beat) -> Reply<'a, ClaimShardStatus> {
        Box::pin(async move {
            beat.check()?;
            let membership = membership.clone();
            self.driver.change(EACH, move |step| offers::beat(step, &membership, beat)).await
        })
    }

    fn grant<'a>(&'a self, membership: &'a Membership, max: usize) -> Reply<'a, Vec<Granted>> {
        let membership = membership.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::grant(step, &membership, max)))
    }

    fn take<'a>(&'a self, membership: &'a Membership, name: &'a OfferName, seize: bool) -> Reply<'a, Taken> {
        let membership = membership.clone();
        let name = name.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::take(step, &membership, &name, seize)))
    }

    fn done<'a>(&'a self, membership: &'a Membership, claims: &'a [ClaimKey]) -> Reply<'a, Vec<Outcome>> {
        Box::pin(self.on_claims(membership, claims, offers::done))
    }

    fn give_back<'a>(
        &'a self,
        membership: &'a Membership,
        claims: &'a [ClaimKey],
        rest: Duration,
    ) -> Reply<'a, Vec<Outcome>> {
        Box::pin(async move {
            check_rest(rest)?;
            self.on_claims(membership, claims, move |step, membership, claims| {
                offers::give_back(step, membership, claims, rest)
            })
            .await
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
            let membership = membership.clone();
            let claim = claim.clone();
            let cost = state.len() + EACH;
            self.driver.change(cost, move |step| offers::checkpoint(step, &membership, &claim, state)).await
        })
    }

    fn force_release<'a>(
        &'a self,
        claim_shard: &'a ClaimShard,
        names: &'a [OfferName],
    ) -> Reply<'a, Vec<bool>> {
        Box::pin(self.on_names(claim_shard, names, offers::force_release))
    }

    fn owned<'a>(&'a self, membership: &'a Membership, skip: usize, max: usize) -> Reply<'a, Vec<ClaimKey>> {
        Box::pin(async move {
            check_count(max)?;
            let membership = membership.clone();
            self.driver.change(EACH, move |step| offers::owned(step, &membership, skip, max)).await
        })
    }

    fn offers<'a>(
        &'a self,
        claim_shard: &'a ClaimShard,
        after: Option<&'a OfferName>,
        max: usize,
    ) -> Reply<'a, Vec<OfferInfo>> {
        let claim_shard = claim_shard.clone();
        let after = after.cloned();
        Box::pin(self.driver.look(move |step| offers::list(step, &claim_shard, after.as_ref(), max)))
    }

    fn orphans<'a>(&'a self, claim_shard: &'a ClaimShard, max: usize) -> Reply<'a, Vec<OfferInfo>> {
        let claim_shard = claim_shard.clone();
        Box::pin(self.driver.look(move |step| offers::orphans(step, &claim_shard, max)))
    }

    fn members<'a>(&'a self, claim_shard: &'a ClaimShard) -> Reply<'a, Vec<MembershipInfo>> {
        let claim_shard = claim_shard.clone();
        Box::pin(self.driver.look(move |step| offers::members(step, &claim_shard)))
    }

    fn expel<'a>(&'a self, claim_shard: &'a ClaimShard, number: Epoch, beats: u64) -> Reply<'a, bool> {
        let claim_shard = claim_shard.clone();
        Box::pin(self.driver.change(EACH, move |step| offers::expel(step, &claim_shard, number, beats)))
    }
}
