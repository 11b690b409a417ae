//! Offers become claims: once, to one worker, fairly.

use super::{Hand, Log, event, grants, names, owned, put_up, service};
use crate::world::{eventually, fails, soon};
use firth::ErrorKind;
use firth::claims::Event;
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_claim_carries_what_was_offered_and_ends_with_done() {
    let (broker, claims) = service();
    assert!(claims.offer("call-1", "alice").await.unwrap());
    assert!(!claims.offer("call-1", "bob").await.unwrap(), "offering again changes nothing");
    let mut worker = claims.worker("w").await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    assert_eq!((claim.name(), &claim.payload()[..]), ("call-1", &b"alice"[..]));
    assert!(claim.is_valid() && claim.last_owner().is_none() && claim.last_checkpoint().is_none());
    claim.done().await.unwrap();
    fails(claim.done().await, ErrorKind::Fenced);
    fails(claim.checkpoint("late").await, ErrorKind::Fenced);
    assert!(claims.offers(None, 10).await.unwrap().is_empty());
    assert_eq!(worker.health().claims, 0);
    worker.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn offers_that_come_later_are_granted_too() {
    let (_broker, claims) = service();
    let mut worker = claims.worker("w").await.unwrap();
    for name in names(3) {
        claims.offer(&name, "").await.unwrap();
        assert_eq!(grants(&mut worker, 1).await[0].name(), name);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_workers_that_join_over_many_offers_end_with_an_even_share() {
    for shards in [1, 4] {
        let (_broker, claims) = service();
        let claims = claims.shards(shards);
        put_up(&claims, 5000).await;
        let log = Log::default();
        let mut hands = Vec::new();
        for n in 0..10 {
            hands.push(Hand::start(claims.worker(format!("w{n}")).await.unwrap(), log.clone()));
            tokio::time::sleep(Duration::from_millis(n * 37)).await;
        }
        eventually("an even share", async || {
            let shares: Vec<u64> = hands.iter().map(|hand| hand.handle.claim_count()).collect();
            shares.iter().sum::<u64>() == 5000 && shares.iter().all(|share| (450..=550).contains(share))
        })
        .await;
        let owned = owned(&claims).await;
        assert_eq!(owned.values().map(BTreeSet::len).sum::<usize>(), 5000);
        log.check();
    }
}

#[tokio::test(start_paused = true)]
async fn few_offers_are_spread_too() {
    let (_broker, claims) = service();
    put_up(&claims, 3).await;
    let log = Log::default();
    let first = Hand::start(claims.worker("a").await.unwrap(), log.clone());
    eventually("all", async || first.handle.claim_count() == 3).await;
    let second = Hand::start(claims.worker("b").await.unwrap(), log.clone());
    let third = Hand::start(claims.worker("c").await.unwrap(), log.clone());
    eventually("one each", async || {
        [&first, &second, &third].iter().all(|hand| hand.handle.claim_count() == 1)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nobody_gets_more_than_it_wants() {
    let (_broker, claims) = service();
    put_up(&claims, 10).await;
    let log = Log::default();
    let small = Hand::start(claims.worker("small").max_claims(2).await.unwrap(), log.clone());
    let large = Hand::start(claims.worker("large").max_claims(5).await.unwrap(), log.clone());
    eventually("both are full", async || (small.handle.claim_count(), large.handle.claim_count()) == (2, 5))
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((small.handle.claim_count(), large.handle.claim_count()), (2, 5));
    assert_eq!(claims.status().await.unwrap().free, 3);
    fails(
        small.handle.claim("unit-00000").await.map(drop).or(Err(small
            .handle
            .claim("unit-00009")
            .await
            .unwrap_err())),
        ErrorKind::Overloaded,
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_grants_back_and_loses_none() {
    let (_broker, claims) = service();
    put_up(&claims, 50).await;
    let mut worker = claims.worker("slow").buffer(4).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let health = worker.health();
    assert_eq!((health.claims, health.events_waiting, health.free), (4, 4, 46), "the rest stays for others");
    let mut seen = BTreeSet::new();
    for claim in grants(&mut worker, 50).await {
        assert!(seen.insert(claim.name().to_owned()), "once");
        assert!(claim.is_valid());
    }
}

#[tokio::test(start_paused = true)]
async fn a_unit_is_claimed_by_name_and_the_loser_is_told_by_whom() {
    let (_broker, claims) = service();
    put_up(&claims, 2).await;
    let a = claims.worker("a").by_name_only().await.unwrap();
    let mut b = claims.worker("b").by_name_only().await.unwrap();
    let claim = b.claim("unit-00001").await.unwrap();
    let refused = a.claim("unit-00001").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
    assert!(refused.to_string().contains("claimed by b"), "{refused}");
    fails(a.claim("nothing").await, ErrorKind::NotFound);
    fails(a.claim("a b").await, ErrorKind::Invalid);
    let seized = a.handle().seize("unit-00001").await.unwrap();
    assert!(seized.epoch() > claim.epoch() && seized.last_owner() == Some("b"));
    soon("the loss", claim.lost()).await;
    let Event::Lost(lost) = event(&mut b).await else { panic!("b is told") };
    assert_eq!(lost.name(), "unit-00001");
    fails(claim.done().await, ErrorKind::Fenced);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(seized.is_valid());
    assert_eq!((a.health().claims, b.health().claims), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn racing_claims_by_name_have_one_winner() {
    let (_broker, claims) = service();
    put_up(&claims, 1).await;
    let mut workers = Vec::new();
    for n in 0..8 {
        workers.push(claims.worker(format!("w{n}")).by_name_only().await.unwrap());
    }
    let tries = workers.iter().map(|worker| worker.claim("unit-00000"));
    let won = futures_util::future::join_all(tries).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(won, 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_unit_goes_to_somebody_and_rests_if_told_so() {
    let (_broker, claims) = service();
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    claim.release_for(Duration::from_secs(20)).await.unwrap();
    let begun = tokio::time::Instant::now();
    assert!(matches!(event(&mut worker).await, Event::Released(_)));
    let again = grants(&mut worker, 1).await.remove(0);
    let waited = begun.elapsed();
    assert!((Duration::from_secs(19)..Duration::from_secs(22)).contains(&waited), "{waited:?}");
    assert!(again.epoch() > claim.epoch() && !again.is_takeover());
    fails(claim.release().await, ErrorKind::Fenced);
    again.release().await.unwrap();
    assert_eq!(grants(&mut worker, 1).await[0].last_owner(), Some("w"));
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_unit_is_lost_to_its_owner() {
    let (_broker, claims) = service();
    put_up(&claims, 2).await;
    let mut worker = claims.worker("w").await.unwrap();
    let held = grants(&mut worker, 2).await;
    assert!(claims.withdraw(held[0].name()).await.unwrap());
    assert!(!claims.withdraw(held[0].name()).await.unwrap());
    let Event::Lost(lost) = event(&mut worker).await else { panic!("it is lost") };
    assert_eq!(lost.name(), held[0].name());
    soon("the loss", held[0].lost()).await;
    assert!(held[1].is_valid());
    assert_eq!(worker.health().claims, 1);
}

#[tokio::test(start_paused = true)]
async fn services_in_one_process_share_nothing() {
    let (broker, calls) = service();
    let chats = broker.claims("chats");
    put_up(&calls, 3).await;
    put_up(&chats, 2).await;
    let mut caller = calls.worker("pod").await.unwrap();
    let mut chatter = chats.worker("pod").await.unwrap();
    assert_eq!(grants(&mut caller, 3).await.len(), 3);
    assert_eq!(grants(&mut chatter, 2).await.len(), 2);
    assert_eq!(broker.list_services().await.unwrap(), ["calls", "chats"]);
    fails(calls.clone().shards(3).offer("x", "").await, ErrorKind::Invalid);
    fails(broker.claims("new").shards(0).offer("x", "").await, ErrorKind::Invalid);
}
