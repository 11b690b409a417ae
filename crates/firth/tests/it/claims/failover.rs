//! Workers that die, hang, or lose their connection.

use super::{Hand, Log, TTL, event, grants, names, put_up, service};
use crate::faulty::process;
use crate::world::{eventually, fails, soon};
use firth::claims::Event;
use firth::{Broker, Engine, ErrorKind};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn all_claims_of_a_dead_worker_are_taken_over_when_its_time_has_run_out() {
    for shards in [1, 3] {
        let (_broker, claims) = service();
        let claims = claims.shards(shards);
        put_up(&claims, 2000).await;
        let log = Log::default();
        let doomed = Hand::start(claims.worker("doomed").ttl(TTL).await.unwrap(), log.clone());
        eventually("it has all", async || doomed.handle.claim_count() == 2000).await;
        let mut heir = claims.worker("heir").max_claims(2000).ttl(TTL).buffer(5000).await.unwrap();
        // The heir's share is handed over by the living; the rest when the other one dies.
        let mut seen: BTreeSet<String> =
            grants(&mut heir, 900).await.iter().map(|claim| claim.name().to_owned()).collect();
        let killed = Instant::now();
        doomed.kill();
        while seen.len() < 2000 {
            if let Event::Granted(claim) = event(&mut heir).await {
                seen.insert(claim.name().to_owned());
            }
        }
        let took = killed.elapsed();
        assert!(took <= TTL + Duration::from_millis(300), "the takeover took {took:?}");
        assert_eq!(seen, names(2000).into_iter().collect());
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_tells_of_the_orphan_and_brings_the_checkpoint() {
    let (_broker, claims) = service();
    put_up(&claims, 1).await;
    let mut first = claims.worker("first").await.unwrap();
    let claim = grants(&mut first, 1).await.remove(0);
    claim.checkpoint("half way").await.unwrap();
    drop(first);
    let mut second = claims.worker("second").await.unwrap();
    let Event::Orphaned { name, last_owner } = event(&mut second).await else { panic!("the orphan first") };
    assert_eq!((name.as_str(), last_owner.as_str()), ("unit-00000", "first"));
    let Event::Granted(taken) = event(&mut second).await else { panic!("then the grant") };
    assert!(taken.is_takeover() && taken.epoch() > claim.epoch());
    assert_eq!(
        (taken.last_owner(), taken.last_checkpoint().map(|state| &state[..])),
        (Some("first"), Some(&b"half way"[..]))
    );
    assert_eq!(&taken.payload()[..], b"for unit-00000");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_known_to_be_dead_is_taken_over_at_once_and_its_next_life_is_not_touched() {
    for shards in [1, 3] {
        let (_broker, claims) = service();
        let claims = claims.shards(shards);
        put_up(&claims, 30).await;
        let ttl = Duration::from_secs(3600);
        let mut dead = claims.worker("dead").ttl(ttl).await.unwrap();
        let held = grants(&mut dead, 30).await;
        let mut heir = claims.worker("heir").by_name_only().ttl(ttl).await.unwrap();
        let begun = Instant::now();
        dead.abort().await.unwrap();
        assert!(held.iter().all(|claim| !claim.is_valid()));
        for _ in 0..30 {
            let Event::Orphaned { last_owner, .. } = event(&mut heir).await else { panic!("orphans only") };
            assert_eq!(last_owner, "dead");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody waits for the TTL");
        fails(held[0].done().await, ErrorKind::Fenced);

        // A zombie of the same name takes nothing from its successor.
        let zombie = claims.worker("pod").ttl(ttl).await.unwrap();
        let mut next = claims.worker("pod").ttl(ttl).await.unwrap();
        let taken = grants(&mut next, 30).await;
        zombie.abort().await.unwrap();
        taken[0].done().await.unwrap();
        assert!(taken.iter().skip(1).all(firth::claims::Claim::is_valid));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_hangs_loses_everything_and_can_change_nothing_when_it_wakes() {
    let engine = Engine::memory();
    let (sleepy, faults) = process(&engine);
    let (healthy, _) = process(&engine);
    let claims = healthy.claims("calls");
    put_up(&claims, 20).await;
    let mut zombie = sleepy.claims("calls").worker("zombie").ttl(TTL).await.unwrap();
    let held = grants(&mut zombie, 20).await;
    let log = Log::default();
    let heir = Hand::start(claims.worker("heir").max_claims(20).ttl(TTL).await.unwrap(), log.clone());
    faults.cut();
    eventually("the heir has all", async || heir.handle.claim_count() == 20).await;
    // What the zombie believes on its own clock was over before anybody could take over.
    assert!(held.iter().all(|claim| !claim.is_valid()));
    for claim in &held {
        soon("the loss", claim.lost()).await;
    }
    faults.heal();
    for claim in &held {
        fails(claim.done().await, ErrorKind::Fenced);
        fails(claim.checkpoint("late").await, ErrorKind::Fenced);
        fails(claim.release().await, ErrorKind::Fenced);
    }
    assert_eq!(claims.offers(None, 100).await.unwrap().len(), 20, "nothing is lost");
    // It joins again under a new number, and gets its share.
    eventually("an even share again", async || {
        let counts = (zombie.health().claims, heir.handle.claim_count());
        counts.0 + counts.1 == 20 && counts.0 >= 8
    })
    .await;
    log.check();
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_over_on_its_owners_clock_before_anybody_else_can_have_it() {
    let engine = Engine::memory();
    let (sleepy, faults) = process(&engine);
    let claims = Broker::with_engine(engine).claims("calls");
    put_up(&claims, 1).await;
    let mut zombie = sleepy.claims("calls").worker("zombie").ttl(TTL).await.unwrap();
    let held = grants(&mut zombie, 1).await.remove(0);
    let heir = claims.worker("heir").by_name_only().ttl(TTL).await.unwrap();
    faults.cut();
    let taken = soon("the takeover", async {
        loop {
            match heir.claim("unit-00000").await {
                Ok(claim) => return claim,
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    })
    .await;
    assert!(!held.is_valid() && taken.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_short_trouble_costs_no_claim() {
    let engine = Engine::memory();
    let (broker, faults) = process(&engine);
    let claims = broker.claims("calls");
    put_up(&claims, 10).await;
    let mut worker = claims.worker("w").ttl(TTL).await.unwrap();
    let held = grants(&mut worker, 10).await;
    for _ in 0..20 {
        faults.cut();
        tokio::time::sleep(TTL / 2).await;
        faults.heal();
        tokio::time::sleep(TTL).await;
    }
    assert!(held.iter().all(firth::claims::Claim::is_valid));
    assert_eq!(worker.health().claims, 10);
}

#[tokio::test(start_paused = true)]
async fn full_workers_tell_of_orphans_and_one_of_them_can_take_them_by_name() {
    let (_broker, claims) = service();
    put_up(&claims, 4).await;
    let mut dead = claims.worker("dead").ttl(TTL).await.unwrap();
    grants(&mut dead, 4).await;
    let mut watcher = claims.worker("watcher").by_name_only().ttl(TTL).await.unwrap();
    drop(dead);
    let mut orphans = BTreeSet::new();
    while orphans.len() < 4 {
        if let Event::Orphaned { name, last_owner } = event(&mut watcher).await {
            assert_eq!(last_owner, "dead");
            assert!(orphans.insert(name), "each is told once");
        }
    }
    for name in &orphans {
        assert!(watcher.claim(name).await.unwrap().is_takeover());
    }
    assert_eq!(watcher.health().claims, 4);
}

#[tokio::test(start_paused = true)]
async fn lost_answers_lose_no_offer_and_make_no_second_owner() {
    use crate::faulty::Fault;
    for call in [
        "offer",
        "join",
        "beat",
        "grant",
        "take",
        "done",
        "give_back",
        "checkpoint",
        "leave",
        "owned",
        "members",
    ] {
        for fault in [Fault::Refused, Fault::LostReply] {
            let engine = Engine::memory();
            let (broker, faults) = process(&engine);
            let claims = broker.claims("calls");
            // The service's entry first, so that the plan hits the call that it names.
            broker.claims("calls").status().await.unwrap();
            faults.plan(call, fault);
            let units = names(30).into_iter().map(|name| (name, ""));
            let _ = claims.offer_all(units).await;
            let mut worker = claims.worker("w").ttl(TTL).await.unwrap();
            let held = grants(&mut worker, 30).await;
            held[0].checkpoint("x").await.unwrap();
            held[1].release().await.unwrap();
            held[2].done().await.unwrap();
            let by_name = claims.worker("n").by_name_only().ttl(TTL).await.unwrap();
            claims.offer("extra", "").await.unwrap();
            let _ = by_name.claim("extra").await;
            eventually("everything but the finished one has one owner", async || {
                let owned = super::owned(&claims).await;
                owned.values().map(BTreeSet::len).sum::<usize>() == 30
            })
            .await;
            worker.close().await.unwrap();
            by_name.close().await.unwrap();
            assert_eq!(claims.offers(None, 100).await.unwrap().len(), 30, "{call} {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_come_go_die_and_hang_never_own_a_unit_together() {
    let engine = Engine::memory();
    let claims = Broker::with_engine(engine.clone()).claims("calls");
    put_up(&claims, 60).await;
    let log = Log::default();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut hands = Vec::new();
    for round in 0..40 {
        let (broker, faults) = process(&engine);
        let worker = broker.claims("calls").worker(format!("w{}", round % 7)).ttl(TTL).await.unwrap();
        hands.push((Hand::start(worker, log.clone()), faults));
        tokio::time::sleep(Duration::from_millis(rng.u64(10..4000))).await;
        let victim = rng.usize(0..hands.len());
        match rng.u8(0..4) {
            0 => hands.remove(victim).0.kill(),
            1 => hands.remove(victim).0.handle.close(),
            2 => hands[victim].1.cut(),
            _ => hands[victim].1.heal(),
        }
    }
    for (_, faults) in &hands {
        faults.heal();
    }
    let last = Hand::start(claims.worker("last").ttl(TTL).await.unwrap(), log.clone());
    eventually("all units are owned by the living", async || {
        let owned = super::owned(&claims).await;
        let by_living: usize = owned.values().map(BTreeSet::len).sum();
        by_living == 60 && last.handle.claim_count() > 0
    })
    .await;
    log.check();
    assert_eq!(log.owners().len(), 60);
}
