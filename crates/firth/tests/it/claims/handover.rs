//! Leaving, recalling, restarting: work is handed over, never dropped.

use super::{Hand, Log, TTL, event, grants, put_up, service};
use crate::faulty::{Fault, process};
use crate::world::{eventually, fails, soon};
use firth::claims::{Event, OfferOwner};
use firth::{Broker, Engine, ErrorKind};
use firth_engine::ServiceName;
use firth_engine::facet::ClaimShard;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_close_hands_over_at_once_and_deletes_nothing() {
    let (_broker, claims) = service();
    put_up(&claims, 300).await;
    let mut first = claims.worker("first").ttl(TTL).await.unwrap();
    for claim in grants(&mut first, 300).await {
        claim.checkpoint("so far").await.unwrap();
    }
    let begun = Instant::now();
    first.close().await.unwrap();
    let mut second = claims.worker("second").ttl(TTL).await.unwrap();
    let taken = grants(&mut second, 300).await;
    assert!(
        begun.elapsed() < Duration::from_millis(100),
        "handed over, not waited for: {:?}",
        begun.elapsed()
    );
    for claim in taken {
        assert!(!claim.is_takeover());
        assert_eq!(
            (claim.last_owner(), claim.last_checkpoint().map(|state| &state[..])),
            (Some("first"), Some(&b"so far"[..]))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_those_who_have_a_claim_in_hand() {
    let (_broker, claims) = service();
    put_up(&claims, 2).await;
    let mut worker = claims.worker("w").ttl(TTL).handover(Duration::from_secs(60)).await.unwrap();
    let mut held = grants(&mut worker, 2).await;
    let slow = held.remove(0);
    let quick = held.remove(0);
    let close = tokio::spawn(worker.close());
    soon("the recall", quick.recalled()).await;
    quick.checkpoint("at the end").await.unwrap();
    quick.release().await.unwrap();
    // Renewed while its holder takes its time.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(slow.is_valid() && !close.is_finished());
    slow.done().await.unwrap();
    drop((slow, quick));
    soon("the close", close).await.unwrap().unwrap();
    let left = claims.offers(None, 10).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].owner, OfferOwner::Free { last: Some("w".into()) });
}

#[tokio::test(start_paused = true)]
async fn who_does_not_let_go_loses_the_claim_after_the_handover_time() {
    let (_broker, claims) = service();
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(TTL).handover(Duration::from_secs(2)).await.unwrap();
    let stubborn = grants(&mut worker, 1).await.remove(0);
    let begun = Instant::now();
    worker.handle().close();
    assert!(matches!(event(&mut worker).await, Event::Recalled(_)));
    assert!(matches!(event(&mut worker).await, Event::Lost(_)));
    assert!(worker.next().await.is_none(), "the events end");
    assert!(begun.elapsed() >= Duration::from_secs(2));
    soon("the loss", stubborn.lost()).await;
    fails(stubborn.done().await, ErrorKind::Fenced);
    assert_eq!(claims.offers(None, 10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claims_are_recalled_for_a_newcomer_and_their_holders_decide_when() {
    let (_broker, claims) = service();
    put_up(&claims, 10).await;
    let mut first = claims.worker("first").ttl(TTL).handover(Duration::from_secs(60)).await.unwrap();
    let held = grants(&mut first, 10).await;
    let mut second = claims.worker("second").ttl(TTL).await.unwrap();
    let mut recalled = Vec::new();
    for _ in 0..5 {
        let Event::Recalled(claim) = event(&mut first).await else { panic!("the surplus is recalled") };
        recalled.push(claim);
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(recalled.iter().all(firth::claims::Claim::is_valid), "its holder has time");
    assert_eq!(second.health().claims, 0);
    for claim in &recalled {
        assert!(claim.is_recalled());
        claim.release().await.unwrap();
    }
    let moved = grants(&mut second, 5).await;
    assert!(moved.iter().all(|claim| claim.last_owner() == Some("first") && !claim.is_takeover()));
    assert_eq!(held.iter().filter(|claim| claim.is_valid()).count(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_rolling_restart_loses_nothing_and_leaves_nothing_unowned_for_long() {
    let (_broker, claims) = service();
    put_up(&claims, 400).await;
    let log = Log::default();
    let mut hands = Vec::new();
    for n in 0..4 {
        hands.push(Hand::start(claims.worker(format!("pod-{n}")).ttl(TTL).await.unwrap(), log.clone()));
    }
    let all_owned = async || {
        let status = claims.status().await.unwrap();
        assert_eq!(status.offers, 400, "no offer is lost");
        status.owned == 400
    };
    eventually("all are owned", all_owned).await;
    for n in 0..4 {
        let old = hands.remove(0);
        old.handle.close();
        old.task.await.unwrap();
        let handed = Instant::now();
        eventually("all are owned again", all_owned).await;
        let unowned = handed.elapsed();
        assert!(unowned <= Duration::from_millis(100), "unowned for {unowned:?} beyond the handover");
        hands.push(Hand::start(claims.worker(format!("pod-{n}")).ttl(TTL).await.unwrap(), log.clone()));
        eventually("all are owned, still", all_owned).await;
    }
    log.check();
}

#[tokio::test(start_paused = true)]
async fn a_restarted_worker_takes_its_own_work_up_at_once_and_its_zombie_ends() {
    let (_broker, claims) = service();
    put_up(&claims, 5).await;
    let mut old = claims.worker("pod").ttl(Duration::from_secs(3600)).await.unwrap();
    let held = grants(&mut old, 5).await;
    let before = old.health().sessions[0].unwrap();
    let begun = Instant::now();
    let mut new = claims.worker("pod").ttl(Duration::from_secs(3600)).await.unwrap();
    let taken = grants(&mut new, 5).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "no waiting for the former session");
    assert!(new.health().sessions[0].unwrap() > before);
    assert!(taken.iter().all(|claim| claim.last_owner() == Some("pod") && claim.is_takeover()));
    for claim in &held {
        soon("the loss", claim.lost()).await;
        fails(claim.done().await, ErrorKind::Fenced);
    }
    let mut lost = 0;
    let end = loop {
        match soon("the end", old.next()).await {
            Some(Ok(Event::Lost(_))) => lost += 1,
            Some(Err(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((lost, end.kind()), (5, ErrorKind::Fenced));
    assert!(end.to_string().contains("name of its own"), "{end}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(taken.iter().all(firth::claims::Claim::is_valid), "the zombie does not come back");
}

/// Ends the session of the claim shard's only member, as an admin's or a rival's step does.
async fn expel(engine: &Engine) {
    let claim_shard = ClaimShard::new(ServiceName::new("calls").unwrap(), 0);
    eventually("the member is expelled", async || {
        let membership = engine.members(&claim_shard).await.unwrap().remove(0);
        engine.expel(&claim_shard, membership.number, membership.beats).await.unwrap()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_joins_again_gives_way_to_one_that_joined_meanwhile() {
    let engine = Engine::memory();
    let (sleepy, faults) = process(&engine);
    let claims = Broker::with_engine(engine.clone()).claims("calls");
    put_up(&claims, 5).await;
    let mut old = sleepy.claims("calls").worker("pod").ttl(TTL).await.unwrap();
    drop(grants(&mut old, 5).await);
    faults.hold_up("join");
    expel(&engine).await;
    eventually("it wants to join again", async || faults.count("join") == 2).await;
    let mut new = claims.worker("pod").ttl(TTL).await.unwrap();
    let taken = grants(&mut new, 5).await;
    faults.heal();
    let end = loop {
        match soon("the end", old.next()).await {
            Some(Ok(Event::Lost(_))) => {}
            Some(Err(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end.kind(), ErrorKind::Fenced);
    assert!(end.to_string().contains("name of its own"), "{end}");
    tokio::time::sleep(TTL * 2).await;
    assert!(taken.iter().all(firth::claims::Claim::is_valid), "nobody joined over it");
}

#[tokio::test(start_paused = true)]
async fn a_worker_takes_a_new_life_whose_answer_was_lost_for_its_own() {
    let engine = Engine::memory();
    let (broker, faults) = process(&engine);
    let claims = broker.claims("calls");
    put_up(&claims, 5).await;
    let mut worker = claims.worker("pod").ttl(TTL).await.unwrap();
    drop(grants(&mut worker, 5).await);
    faults.plan("join", Fault::LostReply);
    expel(&engine).await;
    let again = grants(&mut worker, 5).await;
    assert!(faults.are_spent() && again.iter().all(firth::claims::Claim::is_valid));
    worker.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_per_claim_is_stopped_with_its_claim() {
    let (_broker, claims) = service();
    claims.offer("quick", "").await.unwrap();
    claims.offer("long", "").await.unwrap();
    claims.offer("bad", "").await.unwrap();
    let worker = claims.worker("w").ttl(TTL).await.unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(worker.run(|claim| async move {
        match claim.name() {
            "quick" => Ok(()),
            "bad" => Err("no luck"),
            _ => std::future::pending().await,
        }
    }));
    let name_list = async || {
        claims.offers(None, 10).await.unwrap().into_iter().map(|offer| offer.name).collect::<Vec<_>>()
    };
    eventually("the quick one is done", async || name_list().await == ["bad", "long"]).await;
    eventually("the bad one comes again and again", async || {
        claims.offers(None, 10).await.unwrap()[0].epoch > firth::Epoch(0)
    })
    .await;
    handle.close();
    soon("the end", run).await.unwrap().unwrap();
    assert_eq!(claims.status().await.unwrap().free, 2);
}
