//! Offers: one owner at a time, instant handover, nothing lost that was not done.

use crate::world::{LONG, SHORT, eventually, fails, fresh, soon};
use bytes::Bytes;
use firth_engine::facet::{
    Beat, ClaimKey, ClaimShard, ClaimShardStatus, Granted, Join, Membership, NewOffer, OfferInfo, OfferState,
    Outcome, PreviousOwner, Taken,
};
use firth_engine::limits::{MAX_CAPACITY, MAX_CHECKPOINT, MAX_CLAIM_SHARD_BATCH, MAX_OFFER};
use firth_engine::{Engine, Epoch, ErrorKind, MemberName, OfferName, ServiceName};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Engines count in milliseconds and round a deadline up.
const TICK: Duration = Duration::from_millis(1);

fn claim_shard() -> ClaimShard {
    ClaimShard::new(ServiceName::new(fresh("service")).unwrap(), 0)
}

fn name(n: usize) -> OfferName {
    OfferName::new(format!("unit-{n:05}")).unwrap()
}

fn member(name: &str) -> MemberName {
    MemberName::new(name).unwrap()
}

async fn put_up(engine: &Engine, shard: &ClaimShard, count: usize) -> Vec<OfferName> {
    let names: Vec<OfferName> = (0..count).map(name).collect();
    for names in names.chunks(MAX_CLAIM_SHARD_BATCH) {
        let payload = |name: &OfferName| Bytes::from(format!("for {name}"));
        let offer = |name: &OfferName| NewOffer { name: name.clone(), payload: payload(name) };
        let offers = names.iter().map(offer).collect();
        assert!(engine.offer(shard, offers).await.unwrap().iter().all(|new| *new));
    }
    names
}

async fn join(engine: &Engine, shard: &ClaimShard, who: &str, ttl: Duration) -> Membership {
    engine.join(shard, Join::new(member(who), ttl, 1000)).await.unwrap()
}

async fn beat(engine: &Engine, membership: &Membership, ttl: Duration) -> ClaimShardStatus {
    engine.beat(membership, Beat { ttl, capacity: 1000, roster: 0 }).await.unwrap()
}

async fn beats(engine: &Engine, membership: &Membership) -> firth_engine::Result<ClaimShardStatus> {
    engine.beat(membership, Beat { ttl: LONG, capacity: 1000, roster: 0 }).await
}

fn key(granted: &Granted) -> ClaimKey {
    ClaimKey { name: granted.name.clone(), epoch: granted.epoch }
}

fn keys(granted: &[Granted]) -> Vec<ClaimKey> {
    granted.iter().map(key).collect()
}

/// A member that joined with a short lease, took everything and vanished, seen as gone by `heir`.
async fn vanished(engine: &Engine, shard: &ClaimShard, heir: &Membership) -> (Membership, Vec<Granted>) {
    let membership = join(engine, shard, "mortal", SHORT).await;
    let mut granted = Vec::new();
    loop {
        let page = engine.grant(&membership, MAX_CLAIM_SHARD_BATCH).await.unwrap();
        if page.is_empty() {
            break;
        }
        granted.extend(page);
        beat(engine, &membership, SHORT).await;
    }
    eventually("the member is declared gone", || async {
        beat(engine, heir, LONG).await.orphaned == granted.len() as u64
    })
    .await;
    (membership, granted)
}

/// The same name is the same offer: its payload and its owner stay.
pub async fn an_offer_is_made_once(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 2).await;
    let membership = join(&engine, &shard, "a", LONG).await;
    let granted = engine.grant(&membership, 2).await.unwrap();
    let again = |text: &'static str| NewOffer { name: names[0].clone(), payload: Bytes::from(text) };
    assert_eq!(engine.offer(&shard, vec![again("other")]).await.unwrap(), [false]);
    let third = NewOffer { name: name(2), payload: Bytes::new() };
    assert_eq!(engine.offer(&shard, vec![third.clone(), third]).await.unwrap(), [true, false]);
    let status = beat(&engine, &membership, LONG).await;
    assert_eq!((status.offers, status.free, status.held), (3, 1, 2));
    assert_eq!(engine.done(&membership, &keys(&granted)).await.unwrap(), [Outcome::Done; 2]);
    assert_eq!(granted[0].payload, format!("for {}", granted[0].name));
    assert!(engine.offer(&shard, Vec::new()).await.unwrap().is_empty());
}

/// Offers made before the first member joined are granted to it, in the order they became free.
pub async fn offers_made_before_any_member_are_granted(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 3).await;
    let membership = join(&engine, &shard, "a", LONG).await;
    let granted = engine.grant(&membership, 10).await.unwrap();
    let found: Vec<OfferName> = granted.iter().map(|granted| granted.name.clone()).collect();
    assert_eq!(found, names);
    assert!(
        granted.iter().all(|granted| granted.former == PreviousOwner::Nobody && granted.checkpoint.is_none())
    );
    assert!(engine.grant(&membership, 10).await.unwrap().is_empty());
}

/// Members that grab at the same time never get the same offer, and together they get all.
pub async fn racing_members_never_share_an_offer(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 60).await;
    let mut grabs = Vec::new();
    for who in 0..6 {
        let membership = join(&engine, &shard, &format!("m{who}"), LONG).await;
        let engine = engine.clone();
        grabs.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let page = engine.grant(&membership, 7).await.unwrap();
                if page.is_empty() {
                    return mine;
                }
                mine.extend(page.into_iter().map(|granted| granted.name));
            }
        }));
    }
    let mut all = Vec::new();
    for grab in grabs {
        all.extend(grab.await.unwrap());
    }
    assert_eq!(all.len(), 60);
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), names.into_iter().collect());
}

/// One beat keeps all claims of a member, at the price of one call.
pub async fn one_beat_keeps_all_claims(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 700).await;
    let membership = join(&engine, &shard, "a", SHORT).await;
    let first = engine.grant(&membership, 10_000).await.unwrap();
    assert_eq!(first.len(), MAX_CLAIM_SHARD_BATCH, "a step is bounded");
    assert_eq!(engine.grant(&membership, 10_000).await.unwrap().len(), 200);
    assert_eq!(beat(&engine, &membership, LONG).await.held, 700);
    tokio::time::sleep(SHORT * 2).await;
    let other = join(&engine, &shard, "b", LONG).await;
    assert!(engine.grant(&other, 10).await.unwrap().is_empty());
    assert_eq!(beat(&engine, &membership, LONG).await.held, 700);
}

/// Claims of a vanished member go to other members, with payload and checkpoint, at a larger epoch.
pub async fn a_vanished_members_claims_go_to_others(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 5).await;
    let heir = join(&engine, &shard, "heir", LONG).await;
    let mortal = join(&engine, &shard, "mortal", SHORT).await;
    let granted = engine.grant(&mortal, 10).await.unwrap();
    let state = Bytes::from("half way");
    assert_eq!(engine.checkpoint(&mortal, &key(&granted[1]), state.clone()).await.unwrap(), Outcome::Done);
    let mut taken = Vec::new();
    soon("the takeover", async {
        while taken.len() < 5 {
            taken.extend(engine.grant(&heir, 10).await.unwrap());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before: BTreeMap<_, _> =
        granted.iter().map(|granted| (granted.name.clone(), granted.epoch)).collect();
    for claim in &taken {
        assert!(claim.epoch > before[&claim.name], "each change of owner raises the epoch");
        assert_eq!(claim.former, PreviousOwner::Vanished(member("mortal")));
        assert_eq!(claim.payload, format!("for {}", claim.name));
        let expected = (claim.name == granted[1].name).then(|| state.clone());
        assert_eq!(claim.checkpoint, expected);
    }
    let status = beat(&engine, &heir, LONG).await;
    assert_eq!((status.held, status.orphaned, status.free), (5, 0, 0));
}

/// A late beat counts until a member is declared gone; after that it never counts.
pub async fn a_late_beat_counts_only_if_nobody_noticed(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 1).await;
    let membership = join(&engine, &shard, "a", SHORT).await;
    engine.grant(&membership, 1).await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(beat(&engine, &membership, SHORT).await.held, 1);
    let rival = join(&engine, &shard, "b", LONG).await;
    eventually("it is noticed", || async { beat(&engine, &rival, LONG).await.orphaned == 1 }).await;
    fails(beats(&engine, &membership).await, ErrorKind::Fenced);
}

/// Nothing that a member asks for after it was declared gone changes anything.
pub async fn a_zombie_member_changes_nothing(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 3).await;
    let heir = join(&engine, &shard, "heir", LONG).await;
    let (zombie, granted) = vanished(&engine, &shard, &heir).await;
    let taken = engine.grant(&heir, 2).await.unwrap();
    for claims in [keys(&granted), keys(&taken)] {
        fails(engine.done(&zombie, &claims).await, ErrorKind::Fenced);
        fails(engine.give_back(&zombie, &claims, Duration::ZERO).await, ErrorKind::Fenced);
        fails(engine.checkpoint(&zombie, &claims[0], Bytes::from("late")).await, ErrorKind::Fenced);
    }
    fails(beats(&engine, &zombie).await, ErrorKind::Fenced);
    fails(engine.grant(&zombie, 3).await, ErrorKind::Fenced);
    fails(engine.take(&zombie, &name(0), true).await, ErrorKind::Fenced);
    fails(engine.owned(&zombie, 0, 10).await, ErrorKind::Fenced);
    assert!(!engine.leave(&zombie).await.unwrap());
    let status = beat(&engine, &heir, LONG).await;
    assert_eq!((status.offers, status.held, status.orphaned, status.losses), (3, 2, 1, 0));
    assert!(engine.grant(&heir, 5).await.unwrap().iter().all(|granted| granted.checkpoint.is_none()));
}

/// A claim that was lost and regained is not the old one.
pub async fn an_old_epoch_of_a_claim_is_fenced(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 1).await;
    let membership = join(&engine, &shard, "a", LONG).await;
    let old = key(&engine.grant(&membership, 1).await.unwrap()[0]);
    assert_eq!(
        engine.give_back(&membership, std::slice::from_ref(&old), Duration::ZERO).await.unwrap(),
        [Outcome::Done]
    );
    let new = key(&engine.grant(&membership, 1).await.unwrap()[0]);
    assert!(new.epoch > old.epoch);
    let olds = std::slice::from_ref(&old);
    assert_eq!(engine.checkpoint(&membership, &old, Bytes::new()).await.unwrap(), Outcome::Fenced);
    assert_eq!(engine.give_back(&membership, olds, Duration::ZERO).await.unwrap(), [Outcome::Fenced]);
    assert_eq!(engine.done(&membership, olds).await.unwrap(), [Outcome::Fenced]);
    assert_eq!(
        engine.done(&membership, &[new.clone(), new]).await.unwrap(),
        [Outcome::Done, Outcome::Missing]
    );
}

/// A member that leaves hands all claims over and deletes nothing.
pub async fn a_member_that_leaves_hands_everything_over(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 4).await;
    let first = join(&engine, &shard, "first", LONG).await;
    let granted = engine.grant(&first, 10).await.unwrap();
    engine.checkpoint(&first, &key(&granted[0]), Bytes::from("so far")).await.unwrap();
    assert!(engine.leave(&first).await.unwrap());
    assert!(!engine.leave(&first).await.unwrap());
    fails(beats(&engine, &first).await, ErrorKind::Fenced);
    let second = join(&engine, &shard, "second", LONG).await;
    let taken = engine.grant(&second, 10).await.unwrap();
    assert_eq!(
        taken.iter().map(|granted| granted.name.clone()).collect::<BTreeSet<_>>(),
        names.into_iter().collect()
    );
    assert!(taken.iter().all(|granted| granted.former == PreviousOwner::Released(member("first"))));
    let with_state = taken.iter().filter(|granted| granted.checkpoint.as_deref() == Some(b"so far"));
    assert_eq!(with_state.count(), 1);
}

/// What a member left is free, and what one had that vanished is an orphan, in every view.
pub async fn what_was_left_is_free_and_no_orphan(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 3).await;
    let leaver = join(&engine, &shard, "leaver", LONG).await;
    assert_eq!(engine.grant(&leaver, 2).await.unwrap().len(), 2);
    assert!(engine.leave(&leaver).await.unwrap());
    let heir = join(&engine, &shard, "heir", LONG).await;
    let status = beat(&engine, &heir, LONG).await;
    assert_eq!((status.free, status.orphaned, status.next_free), (3, 0, Some(Duration::ZERO)));
    let left = |offer: &&OfferInfo| offer.state == OfferState::Free { last: Some(member("leaver")) };
    assert_eq!(engine.offers(&shard, None, 10).await.unwrap().iter().filter(left).count(), 2);
    assert!(engine.orphans(&shard, 10).await.unwrap().is_empty());
    let (_, granted) = vanished(&engine, &shard, &heir).await;
    assert_eq!(granted.len(), 3);
    assert_eq!(engine.orphans(&shard, 10).await.unwrap().len(), 3);
    let status = beat(&engine, &heir, LONG).await;
    assert_eq!((status.free, status.orphaned, status.next_free), (0, 3, None));
}

/// A process that joins again under its name ends its former life at once and inherits nothing.
pub async fn a_member_that_joins_again_ends_its_former_life(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 2).await;
    let former = join(&engine, &shard, "pod", LONG).await;
    let granted = engine.grant(&former, 2).await.unwrap();
    let newer = join(&engine, &shard, "pod", LONG).await;
    assert!(newer.number > former.number);
    fails(beats(&engine, &former).await, ErrorKind::Fenced);
    fails(engine.done(&former, &keys(&granted)).await, ErrorKind::Fenced);
    assert_eq!(engine.done(&newer, &keys(&granted)).await.unwrap(), [Outcome::Fenced; 2]);
    let mixed = Membership { number: newer.number, ..former };
    fails(beats(&engine, &mixed).await, ErrorKind::Fenced);
    let taken = engine.grant(&newer, 2).await.unwrap();
    assert_eq!(taken.len(), 2);
    assert!(taken.iter().all(|granted| granted.former == PreviousOwner::Vanished(member("pod"))));
}

/// A refused member can read why: the newer life that ended it is visible to every reader.
pub async fn who_is_refused_sees_why(engine: Engine) {
    let shard = claim_shard();
    let mut former = join(&engine, &shard, "pod", LONG).await;
    for _ in 0..100 {
        let refused = async {
            while beats(&engine, &former).await.is_ok() {}
            engine.members(&shard).await.unwrap()
        };
        let (newer, seen) = tokio::join!(join(&engine, &shard, "pod", LONG), refused);
        assert!(
            seen.iter().any(|membership| membership.number > former.number),
            "fenced by nobody: {seen:?}"
        );
        former = newer;
    }
}

/// A member that lost its membership returns only after its own life: one wins, never over a newer
/// life.
pub async fn a_join_after_a_life_ends_no_newer_one(engine: Engine) {
    let shard = claim_shard();
    let former = join(&engine, &shard, "pod", LONG).await;
    let after = |life: &Membership| Join { after: Some(life.number), ..Join::new(member("pod"), LONG, 1000) };
    let tries = (0..8).map(|_| {
        let engine = engine.clone();
        let shard = shard.clone();
        let request = after(&former);
        tokio::spawn(async move { engine.join(&shard, request).await })
    });
    let mut joined = Vec::new();
    for attempt in tries.collect::<Vec<_>>() {
        match attempt.await.unwrap() {
            Ok(membership) => joined.push(membership),
            refused => fails(refused, ErrorKind::Fenced),
        }
    }
    assert_eq!(joined.len(), 1, "one of them comes first, and the others come late");
    assert!(joined[0].number > former.number);
    beat(&engine, &joined[0], LONG).await;
    let next = engine.join(&shard, after(&joined[0])).await.unwrap();
    fails(beats(&engine, &joined[0]).await, ErrorKind::Fenced);
    assert!(engine.leave(&next).await.unwrap());
    let again = engine.join(&shard, after(&former)).await.unwrap();
    assert!(again.number > next.number, "a newer life that is over is in nobody's way");
}

/// A join repeated after a lost reply is the same life: it keeps its grants and lasts from now on.
pub async fn a_join_that_is_repeated_is_one_life(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 2).await;
    let former = join(&engine, &shard, "pod", LONG).await;
    for after in [None, Some(former.number)] {
        let request = Join { after, ..Join::new(member("pod"), SHORT, 1000) };
        let membership = engine.join(&shard, request.clone()).await.unwrap();
        assert_eq!(engine.grant(&membership, 2).await.unwrap().len(), 2);
        let again = Join { ttl: LONG, capacity: 7, ..request };
        assert_eq!(engine.join(&shard, again).await.unwrap(), membership);
        let seen = engine.members(&shard).await.unwrap();
        assert_eq!(
            (seen.len(), seen[0].number, seen[0].held, seen[0].capacity),
            (1, membership.number, 2, 7)
        );
        assert!(seen[0].remaining.unwrap() > SHORT, "{:?}", seen[0]);
        assert!(engine.leave(&membership).await.unwrap());
    }
}

/// A free offer is taken by name at once; a second taker learns the owner; seizing always takes it.
pub async fn an_offer_is_taken_by_name_once(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 2).await;
    let a = join(&engine, &shard, "a", LONG).await;
    let b = join(&engine, &shard, "b", LONG).await;
    let Taken::Granted(first) = engine.take(&a, &name(1), false).await.unwrap() else { panic!("it is free") };
    assert_eq!(first.former, PreviousOwner::Nobody);
    let Taken::Held { by, remaining } = engine.take(&b, &name(1), false).await.unwrap() else {
        panic!("a has it")
    };
    assert!(by == member("a") && !remaining.is_zero());
    assert!(matches!(engine.take(&a, &name(1), true).await.unwrap(), Taken::Held { .. }), "one's own");
    assert_eq!(engine.take(&a, &name(9), false).await.unwrap(), Taken::Missing);
    let Taken::Granted(seized) = engine.take(&b, &name(1), true).await.unwrap() else { panic!("seized") };
    assert!(seized.epoch > first.epoch && seized.former == PreviousOwner::Released(member("a")));
    assert_eq!(engine.done(&a, &[key(&first)]).await.unwrap(), [Outcome::Fenced]);
    let a = beat(&engine, &a, LONG).await;
    let b = beat(&engine, &b, LONG).await;
    assert_eq!((a.held, a.losses, b.held, b.losses), (0, 1, 1, 0));
}

/// An expired member's offer can be taken by name at once, even before the expiry was noticed.
pub async fn what_an_expired_member_had_is_taken_by_name(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 1).await;
    let mortal = join(&engine, &shard, "mortal", SHORT).await;
    engine.grant(&mortal, 1).await.unwrap();
    let heir = join(&engine, &shard, "heir", LONG).await;
    eventually("it can be taken", || async {
        match engine.take(&heir, &name(0), false).await.unwrap() {
            Taken::Granted(granted) => granted.former == PreviousOwner::Vanished(member("mortal")),
            Taken::Held { by, .. } => {
                assert_eq!(by, member("mortal"));
                false
            }
            Taken::Missing => panic!("it is there"),
        }
    })
    .await;
    fails(beats(&engine, &mortal).await, ErrorKind::Fenced);
}

/// Finished and withdrawn offers are gone, and come back empty when they are offered again.
pub async fn what_is_done_or_withdrawn_is_gone(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 3).await;
    let membership = join(&engine, &shard, "a", LONG).await;
    let granted = engine.grant(&membership, 2).await.unwrap();
    engine.checkpoint(&membership, &key(&granted[0]), Bytes::from("old")).await.unwrap();
    assert_eq!(engine.done(&membership, &[key(&granted[0])]).await.unwrap(), [Outcome::Done]);
    assert_eq!(
        engine.withdraw(&shard, &[names[1].clone(), names[2].clone(), name(7)]).await.unwrap(),
        [true, true, false]
    );
    let status = beat(&engine, &membership, LONG).await;
    assert_eq!((status.offers, status.free, status.held, status.losses), (0, 0, 0, 1));
    assert_eq!(
        engine.checkpoint(&membership, &key(&granted[1]), Bytes::new()).await.unwrap(),
        Outcome::Missing
    );
    put_up(&engine, &shard, 1).await;
    let again = engine.grant(&membership, 5).await.unwrap();
    assert_eq!((again.len(), again[0].checkpoint.clone()), (1, None));
    assert!(again[0].epoch > granted[0].epoch, "also after it was gone");
}

/// An offer that was given back rests as long as it was told to; others go before it.
pub async fn an_offer_that_was_given_back_rests(engine: Engine) {
    // On a starved machine a short rest is over before anybody looks.
    for rest in [300, 3000, 10_000].map(Duration::from_millis) {
        if rests(&engine, rest).await {
            return;
        }
    }
    panic!("no answer within ten seconds");
}

/// False if it took too long to say.
async fn rests(engine: &Engine, rest: Duration) -> bool {
    let shard = claim_shard();
    put_up(engine, &shard, 2).await;
    let membership = join(engine, &shard, "a", LONG).await;
    let granted = engine.grant(&membership, 1).await.unwrap();
    let begun = tokio::time::Instant::now();
    engine.give_back(&membership, &keys(&granted), rest).await.unwrap();
    let next = engine.grant(&membership, 5).await.unwrap();
    let wait = beat(engine, &membership, LONG).await.next_free;
    if begun.elapsed() >= rest {
        return false;
    }
    assert_eq!(next.len(), 1, "the other one");
    assert_ne!(next[0].name, granted[0].name);
    assert!(wait.expect("one rests") <= rest + TICK);
    let again = soon("the end of the rest", async {
        loop {
            if let Some(again) = engine.grant(&membership, 5).await.unwrap().pop() {
                return again;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(begun.elapsed() >= rest - Duration::from_millis(2), "never early");
    assert_eq!(again.former, PreviousOwner::Released(member("a")));
    true
}

/// An offer released by force is free at once; its owner is fenced and sees the loss.
pub async fn a_forced_release_frees_at_once(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 2).await;
    let a = join(&engine, &shard, "a", LONG).await;
    let b = join(&engine, &shard, "b", LONG).await;
    let granted = engine.grant(&a, 1).await.unwrap();
    assert_eq!(
        engine.force_release(&shard, &[names[0].clone(), names[1].clone(), name(5)]).await.unwrap(),
        [true, false, false]
    );
    assert_eq!(beat(&engine, &a, LONG).await.losses, 1);
    assert_eq!(engine.checkpoint(&a, &key(&granted[0]), Bytes::new()).await.unwrap(), Outcome::Fenced);
    assert_eq!(engine.grant(&b, 5).await.unwrap().len(), 2);
}

/// Offers are listed in the order of their names, with who has them; pages do not overlap.
pub async fn offers_are_listed_and_paged(engine: Engine) {
    let shard = claim_shard();
    let names = put_up(&engine, &shard, 1203).await;
    let heir = join(&engine, &shard, "heir", LONG).await;
    engine.take(&heir, &names[7], false).await.unwrap();
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = engine.offers(&shard, after.as_ref(), 600).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        found.extend(page);
    }
    assert_eq!(found.iter().map(|offer| offer.name.clone()).collect::<Vec<_>>(), names);
    assert_eq!(found[7].state, OfferState::Owned { by: member("heir"), number: heir.number });
    assert_eq!((&found[8].state, found[8].epoch), (&OfferState::Free { last: None }, Epoch(0)));
    assert!(found.iter().all(|offer| offer.since <= offer.age && offer.age < Duration::from_secs(600)));
    let (_, granted) = vanished(&engine, &shard, &heir).await;
    let orphans = engine.orphans(&shard, 100).await.unwrap();
    assert_eq!((granted.len(), orphans.len()), (1202, 100));
    assert!(orphans.iter().all(|offer| offer.state == OfferState::Orphaned { last: member("mortal") }));
}

/// A member can ask what it has, page by page.
pub async fn a_member_sees_what_it_has(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 25).await;
    let membership = join(&engine, &shard, "a", LONG).await;
    let mut granted = keys(&engine.grant(&membership, 20).await.unwrap());
    let mut owned = Vec::new();
    while let Some(page) =
        Some(engine.owned(&membership, owned.len(), 8).await.unwrap()).filter(|page| !page.is_empty())
    {
        owned.extend(page);
    }
    granted.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(owned, granted);
    let memberships = engine.members(&shard).await.unwrap();
    assert_eq!((memberships.len(), memberships[0].held, memberships[0].capacity), (1, 20, 1000));
    assert_eq!((&memberships[0].member, memberships[0].number), (&membership.member, membership.number));
    assert!(memberships[0].remaining.is_some() && memberships[0].beats >= 1);
}

/// A beat tells who else is there only when that has changed, and when the next of them runs out.
pub async fn a_beat_tells_of_the_others(engine: Engine) {
    let shard = claim_shard();
    let a = join(&engine, &shard, "a", LONG).await;
    let first = beat(&engine, &a, LONG).await;
    assert_eq!((first.memberships.as_deref(), first.next_expiry), (Some(&[(a.number, 1000)][..]), None));
    let again = Beat { ttl: LONG, capacity: 1000, roster: first.roster };
    assert_eq!(engine.beat(&a, again).await.unwrap().memberships, None);
    let b = engine.join(&shard, Join::new(member("b"), LONG / 2, 7)).await.unwrap();
    let second = engine.beat(&a, again).await.unwrap();
    assert_eq!(second.memberships, Some(vec![(a.number, 1000), (b.number, 7)]), "somebody joined");
    assert!(second.next_expiry.is_some_and(|left| !left.is_zero() && left <= LONG / 2 + TICK));
    engine.beat(&b, Beat { ttl: LONG, capacity: 8, roster: 0 }).await.unwrap();
    let third = engine.beat(&a, Beat { roster: second.roster, ..again }).await.unwrap();
    assert!(third.memberships.is_some_and(|memberships| memberships.contains(&(b.number, 8))));
}

/// A member that sees another stand still on its own clock may declare it gone.
pub async fn a_member_that_stands_still_can_be_expelled(engine: Engine) {
    let shard = claim_shard();
    put_up(&engine, &shard, 1).await;
    let a = join(&engine, &shard, "a", LONG).await;
    let b = join(&engine, &shard, "b", LONG).await;
    engine.grant(&a, 1).await.unwrap();
    let seen = |memberships: Vec<firth_engine::facet::MembershipInfo>| {
        memberships.into_iter().find(|membership| membership.member == member("a")).expect("a is there").beats
    };
    let stale = seen(engine.members(&shard).await.unwrap());
    beat(&engine, &a, LONG).await;
    assert!(!engine.expel(&shard, a.number, stale).await.unwrap(), "it has moved");
    let now = seen(engine.members(&shard).await.unwrap());
    assert!(engine.expel(&shard, a.number, now).await.unwrap());
    fails(beats(&engine, &a).await, ErrorKind::Fenced);
    assert_eq!(engine.grant(&b, 1).await.unwrap().len(), 1);
}

/// Limits are checked.
pub async fn odd_requests_are_refused(engine: Engine) {
    let shard = claim_shard();
    let offer = |size: usize| NewOffer { name: name(1), payload: vec![b'x'; size].into() };
    fails(engine.offer(&shard, vec![offer(MAX_OFFER + 1)]).await, ErrorKind::Invalid);
    fails(engine.offer(&shard, vec![offer(1); MAX_CLAIM_SHARD_BATCH + 1]).await, ErrorKind::Invalid);
    fails(engine.offer(&shard, vec![offer(MAX_OFFER); 200]).await, ErrorKind::Invalid);
    fails(engine.withdraw(&shard, &vec![name(1); MAX_CLAIM_SHARD_BATCH + 1]).await, ErrorKind::Invalid);
    let request = |ttl, capacity| Join::new(member("a"), ttl, capacity);
    fails(engine.join(&shard, request(Duration::ZERO, 1)).await, ErrorKind::Invalid);
    fails(engine.join(&shard, request(LONG, MAX_CAPACITY + 1)).await, ErrorKind::Invalid);
    let membership = join(&engine, &shard, "a", LONG).await;
    put_up(&engine, &shard, 1).await;
    let claim = key(&engine.grant(&membership, 1).await.unwrap()[0]);
    let large = vec![b'x'; MAX_CHECKPOINT + 1].into();
    fails(engine.checkpoint(&membership, &claim, large).await, ErrorKind::Invalid);
    let days = engine.give_back(&membership, &[claim], Duration::from_secs(90_000)).await.unwrap_err();
    assert_eq!((days.field(), days.limit()), (Some("rest_ms"), Some(86_400_000)));
    let beat = Beat { ttl: Duration::ZERO, capacity: 1, roster: 0 };
    fails(engine.beat(&membership, beat).await, ErrorKind::Invalid);
}
