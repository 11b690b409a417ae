//! Laws of claim shards beside those of single offers: what is there besides, and what is said
//! twice.

use crate::world::{LONG, SHORT, eventually, fresh, soon};
use bytes::Bytes;
use firth_engine::facet::{
    Beat, ClaimKey, ClaimShard, ClaimShardStatus, Granted, Join, Membership, NewOffer, Taken,
};
use firth_engine::{Engine, HintKey, MemberName, OfferName, ServiceName};
use std::time::Duration;

fn name(n: usize) -> OfferName {
    OfferName::new(format!("unit-{n}")).unwrap()
}

/// A claim shard with `offers` offers.
async fn claim_shard(engine: &Engine, offers: usize) -> ClaimShard {
    let claim_shard = ClaimShard::new(ServiceName::new(fresh("service")).unwrap(), 0);
    offer(engine, &claim_shard, offers).await;
    claim_shard
}

async fn offer(engine: &Engine, shard: &ClaimShard, offers: usize) {
    let offers = (0..offers).map(|n| NewOffer { name: name(n), payload: Bytes::new() }).collect();
    engine.offer(shard, offers).await.unwrap();
}

fn keys(granted: &[Granted]) -> Vec<ClaimKey> {
    granted.iter().map(|one| ClaimKey { name: one.name.clone(), epoch: one.epoch }).collect()
}

async fn join(engine: &Engine, claim_shard: &ClaimShard, who: &str, ttl: Duration) -> Membership {
    engine.join(claim_shard, Join::new(MemberName::new(who).unwrap(), ttl, 1000)).await.unwrap()
}

async fn beat(engine: &Engine, membership: &Membership) -> ClaimShardStatus {
    engine.beat(membership, Beat { ttl: LONG, capacity: 1000, roster: 0 }).await.unwrap()
}

/// What a member left can be granted at once, though other offers rest.
pub async fn what_was_left_is_granted_before_what_rests(engine: Engine) {
    let claim_shard = claim_shard(&engine, 2).await;
    let leaver = join(&engine, &claim_shard, "leaver", LONG).await;
    let granted = engine.grant(&leaver, 1).await.unwrap();
    let resting = engine.grant(&leaver, 1).await.unwrap();
    engine.give_back(&leaver, &keys(&resting), Duration::from_secs(3600)).await.unwrap();
    assert!(engine.leave(&leaver).await.unwrap());
    let heir = join(&engine, &claim_shard, "heir", LONG).await;
    let status = beat(&engine, &heir).await;
    assert_eq!((status.free, status.next_free), (2, Some(Duration::ZERO)));
    let taken = engine.grant(&heir, 5).await.unwrap();
    assert_eq!(taken.iter().map(|one| &one.name).collect::<Vec<_>>(), [&granted[0].name]);
    assert!(beat(&engine, &heir).await.next_free.is_some_and(|wait| wait > Duration::from_secs(3000)));
}

/// A name that is given twice is one offer: it is released, withdrawn and lost once.
pub async fn a_name_that_is_given_twice_counts_once(engine: Engine) {
    let claim_shard = claim_shard(&engine, 3).await;
    let owner = join(&engine, &claim_shard, "owner", LONG).await;
    assert_eq!(engine.grant(&owner, 5).await.unwrap().len(), 3);
    let twice = |n| [name(n), name(n)];
    assert_eq!(engine.force_release(&claim_shard, &twice(0)).await.unwrap(), [true, false]);
    assert_eq!(beat(&engine, &owner).await.losses, 1);
    assert_eq!(engine.withdraw(&claim_shard, &twice(1)).await.unwrap(), [true, false]);
    let status = beat(&engine, &owner).await;
    assert_eq!((status.losses, status.held, status.free, status.offers), (2, 1, 1, 2));
}

/// A member whose time ran out, but whom nothing has noticed, still has what it has.
pub async fn a_late_member_has_its_own_claims(engine: Engine) {
    let claim_shard = claim_shard(&engine, 1).await;
    let late = join(&engine, &claim_shard, "late", SHORT).await;
    assert_eq!(engine.grant(&late, 1).await.unwrap().len(), 1);
    eventually("its time has run out", || async {
        let deadline = engine.members(&claim_shard).await.unwrap()[0].remaining;
        deadline.is_none_or(|left| left.is_zero())
    })
    .await;
    let own = engine.take(&late, &name(0), false).await.unwrap();
    assert!(matches!(own, Taken::Held { .. }), "{own:?}");
    assert_eq!(beat(&engine, &late).await.held, 1, "and it goes on");
}

/// Claim shards share nothing.
pub async fn claim_shards_share_nothing(engine: Engine) {
    let one = claim_shard(&engine, 2).await;
    let two = ClaimShard::new(one.service.clone(), 1);
    let three = claim_shard(&engine, 0).await;
    for other in [&two, &three] {
        let membership = join(&engine, other, "a", LONG).await;
        assert!(engine.grant(&membership, 5).await.unwrap().is_empty());
        assert_eq!(beat(&engine, &membership).await.offers, 0);
    }
    assert!(engine.members(&one).await.unwrap().is_empty());
    assert!(engine.offers(&three, None, 10).await.unwrap().is_empty());
}

/// Who waits on a claim shard is woken by new offers, by releases and by members that come and go.
pub async fn who_waits_on_a_claim_shard_is_woken(engine: Engine) {
    let shard = claim_shard(&engine, 0).await;
    let mut hint = engine.hint(HintKey::ClaimShard(shard.clone()));
    offer(&engine, &shard, 1).await;
    soon("the offer", hint.wait()).await;
    let mut hint = engine.hint(HintKey::ClaimShard(shard.clone()));
    let membership = join(&engine, &shard, "a", LONG).await;
    soon("the member", hint.wait()).await;
    let granted = engine.grant(&membership, 1).await.unwrap();
    let mut hint = engine.hint(HintKey::ClaimShard(shard.clone()));
    engine.give_back(&membership, &keys(&granted), Duration::ZERO).await.unwrap();
    soon("the release", hint.wait()).await;
    let mut hint = engine.hint(HintKey::ClaimShard(shard.clone()));
    engine.leave(&membership).await.unwrap();
    soon("the leave", hint.wait()).await;
}
