//! Laws of leases.

use crate::world::{
    LONG, SHORT, eventually, fails, fresh, group, holder, partition, pool_lease, soon, unmade_partition,
};
use firth_engine::facet::{Acquire, Acquired, LeaseQuery, StartPosition};
use firth_engine::{Engine, Epoch, ErrorKind, Hold, LeaseInfo, LeaseName, MemberName, PoolName, Token};
use std::time::Duration;
use tokio::time::Instant;

async fn try_acquire(engine: &Engine, name: &LeaseName, ttl: Duration) -> Acquired {
    engine.acquire(Acquire::new(name.clone(), holder(), ttl)).await.unwrap()
}

async fn granted(engine: &Engine, name: &LeaseName, ttl: Duration) -> Hold {
    try_acquire(engine, name, ttl).await.granted().expect("the lease is free")
}

async fn look(engine: &Engine, name: &LeaseName) -> Option<LeaseInfo> {
    engine.leases(&LeaseQuery::Names(vec![name.clone()])).await.unwrap().pop()
}

/// Leases of both kinds, where a law speaks of both.
async fn both(engine: &Engine) -> [LeaseName; 2] {
    [pool_lease(), LeaseName::group(&partition(engine).await, &group("g"))]
}

/// Twenty racers, one winner; the losers learn who has it and for how long.
pub async fn one_holder_at_a_time(engine: Engine) {
    for name in both(&engine).await {
        let racers: Vec<_> = (0..20)
            .map(|_| {
                let engine = engine.clone();
                let name = name.clone();
                tokio::spawn(async move { try_acquire(&engine, &name, LONG).await })
            })
            .collect();
        let mut winners = Vec::new();
        let mut losers = Vec::new();
        for racer in racers {
            match racer.await.unwrap() {
                Acquired::Granted(hold) => winners.push(hold),
                Acquired::Held(info) => losers.push(info),
            }
        }
        assert_eq!((winners.len(), losers.len()), (1, 19));
        for info in losers {
            assert_eq!((info.holder.as_ref(), info.epoch), (Some(&winners[0].holder), winners[0].epoch));
            // Engines count in milliseconds and round up: a lease is never too short.
            assert!(info.is_held() && info.remaining <= LONG + Duration::from_millis(1));
            assert!(info.remaining > LONG / 2);
        }
    }
}

/// Every change of holder grows the epoch: by release, by revocation, by expiry.
pub async fn epochs_always_grow(engine: Engine) {
    for name in both(&engine).await {
        let mut newest = Epoch(0);
        for round in 0..6 {
            let hold = granted(&engine, &name, if round % 3 == 2 { SHORT } else { LONG }).await;
            assert!(hold.epoch > newest, "round {round}: {} after {newest}", hold.epoch);
            newest = hold.epoch;
            match round % 3 {
                0 => assert!(engine.release(&hold).await.unwrap()),
                1 => {
                    assert!(engine.revoke(&name).await.unwrap());
                    assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [false]);
                    assert!(!engine.release(&hold).await.unwrap());
                }
                _ => {
                    eventually("it runs out", || async { !look(&engine, &name).await.unwrap().is_held() })
                        .await;
                }
            }
        }
    }
    assert!(!engine.revoke(&pool_lease()).await.unwrap(), "there is nothing to revoke");
}

/// Without renewal it ends, not before its time; with renewal it stays.
pub async fn a_lease_runs_out_and_a_renewal_keeps_it(engine: Engine) {
    for name in both(&engine).await {
        let start = Instant::now();
        let hold = granted(&engine, &name, SHORT).await;
        let mut beats = look(&engine, &name).await.unwrap().beats;
        while start.elapsed() < SHORT * 3 {
            assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [true]);
            assert!(matches!(try_acquire(&engine, &name, SHORT).await, Acquired::Held(_)));
            let now = look(&engine, &name).await.unwrap().beats;
            assert!(now > beats, "each renewal is a beat");
            beats = now;
            tokio::time::sleep(SHORT / 5).await;
        }
        let last = Instant::now();
        assert_eq!(engine.renew(std::slice::from_ref(&hold), SHORT).await.unwrap(), [true]);
        let rival = loop {
            if let Acquired::Granted(rival) = try_acquire(&engine, &name, LONG).await {
                break rival;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(last.elapsed() >= SHORT, "taken while it still ran");
        assert!(rival.epoch > hold.epoch);
        assert_eq!(engine.renew(&[hold], SHORT).await.unwrap(), [false]);
    }
}

/// A late renewal counts until another holder took the lease; after that the loss is final.
pub async fn a_late_renewal_counts_only_if_nobody_took_over(engine: Engine) {
    for name in both(&engine).await {
        let hold = granted(&engine, &name, SHORT).await;
        eventually("it runs out", || async { !look(&engine, &name).await.unwrap().is_held() }).await;
        assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [true]);
        assert!(look(&engine, &name).await.unwrap().is_held());
        assert_eq!(engine.renew(std::slice::from_ref(&hold), SHORT).await.unwrap(), [true]);
        eventually("it runs out again", || async { !look(&engine, &name).await.unwrap().is_held() }).await;
        let rival = granted(&engine, &name, LONG).await;
        assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [false]);
        assert!(!engine.release(&hold).await.unwrap());
        assert_eq!(look(&engine, &name).await.unwrap().holder, Some(rival.holder));
    }
}

/// A restarted process is not its former life.
pub async fn the_same_name_gives_no_right(engine: Engine) {
    let name = pool_lease();
    let who = holder();
    let request = Acquire { note: "here I am".into(), ..Acquire::new(name.clone(), who.clone(), LONG) };
    let hold = engine.acquire(request.clone()).await.unwrap().granted().unwrap();
    let Acquired::Held(info) = engine.acquire(request).await.unwrap() else {
        panic!("the name alone gave the right");
    };
    assert_eq!((info.holder, info.note.as_ref()), (Some(who), &b"here I am"[..]));
    let mut forged = hold.clone();
    forged.token = Token(!forged.token.0);
    assert_eq!(engine.renew(&[forged.clone(), hold], LONG).await.unwrap(), [false, true]);
    assert!(!engine.release(&forged).await.unwrap());
}

/// One call, an answer for each; a pool lists what it holds in the order of names.
pub async fn many_leases_are_renewed_in_one_call(engine: Engine) {
    let pool = PoolName::new(fresh("pool")).unwrap();
    let name = |n: usize| LeaseName::pool(&pool, &MemberName::new(format!("member-{n:04}")).unwrap());
    let mut holds = Vec::new();
    for n in 0..200 {
        holds.push(granted(&engine, &name(n), LONG).await);
    }
    assert!(engine.release(&holds[7]).await.unwrap());
    assert!(engine.revoke(&name(9)).await.unwrap());
    let renewed = engine.renew(&holds, LONG).await.unwrap();
    let expected: Vec<bool> = (0..200).map(|n| ![7, 9].contains(&n)).collect();
    assert_eq!(renewed, expected);
    let listed = engine.leases(&LeaseQuery::Pool(pool.clone())).await.unwrap();
    let held: Vec<_> =
        listed.iter().filter(|lease| lease.is_held()).map(|lease| lease.name.clone()).collect();
    let expected: Vec<_> = (0..200).filter(|n| ![7, 9].contains(n)).map(name).collect();
    assert_eq!(held, expected);
    assert!(engine.renew(&[], LONG).await.unwrap().is_empty());
}

/// Giving back is immediate.
pub async fn a_released_lease_is_free_at_once(engine: Engine) {
    for name in both(&engine).await {
        let hold = granted(&engine, &name, LONG).await;
        assert!(engine.release(&hold).await.unwrap());
        assert!(!engine.release(&hold).await.unwrap(), "it was given back already");
        assert_eq!(engine.renew(&[hold], LONG).await.unwrap(), [false]);
        assert!(look(&engine, &name).await.is_none_or(|lease| !lease.is_held()));
        granted(&engine, &name, LONG).await;
    }
}

/// When the engine's clock cannot be trusted, a counter that stands still is the second way; one
/// beat refutes it.
pub async fn a_lease_that_stands_still_can_be_taken(engine: Engine) {
    for name in both(&engine).await {
        let hold = granted(&engine, &name, LONG).await;
        let seen = look(&engine, &name).await.unwrap();
        assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [true]);
        let request = |epoch, beats| Acquire {
            stalled: Some((epoch, beats)),
            ..Acquire::new(name.clone(), holder(), LONG)
        };
        let refuted = engine.acquire(request(seen.epoch, seen.beats)).await.unwrap();
        assert!(matches!(refuted, Acquired::Held(_)), "it is alive");
        let now = look(&engine, &name).await.unwrap();
        let wrong_epoch = engine.acquire(request(Epoch(now.epoch.0 - 1), now.beats)).await.unwrap();
        assert!(matches!(wrong_epoch, Acquired::Held(_)));
        let rival =
            engine.acquire(request(now.epoch, now.beats)).await.unwrap().granted().expect("it stands still");
        assert!(rival.epoch > hold.epoch);
        assert_eq!(engine.renew(&[hold], LONG).await.unwrap(), [false]);
    }
}

/// A watcher need not poll: it sees a grant, an expiry, a takeover and a release, but no renewals.
pub async fn a_watcher_sees_takeovers_and_expiry(engine: Engine) {
    for name in both(&engine).await {
        let mut watch = engine.watch_leases(LeaseQuery::Names(vec![name.clone()]));
        assert!(soon("the first look", watch.changed()).await.unwrap().is_empty());
        let hold = granted(&engine, &name, SHORT).await;
        let seen = soon("the grant", watch.changed()).await.unwrap();
        assert_eq!(seen[0].epoch, hold.epoch);
        if seen[0].is_held() {
            let seen = soon("the expiry", watch.changed()).await.unwrap();
            assert!(!seen[0].is_held() && seen[0].epoch == hold.epoch);
        }
        let rival = granted(&engine, &name, LONG).await;
        let seen = soon("the takeover", watch.changed()).await.unwrap();
        assert_eq!((seen[0].epoch, seen[0].is_held()), (rival.epoch, true));
        assert_eq!(engine.renew(std::slice::from_ref(&rival), LONG).await.unwrap(), [true]);
        assert!(engine.release(&rival).await.unwrap());
        let seen = soon("the release", watch.changed()).await.unwrap();
        assert!(seen.iter().all(|lease| !lease.is_held()), "a renewal is no change");
    }
}

/// Limits are checked.
pub async fn odd_lease_requests_are_refused(engine: Engine) {
    let name = pool_lease();
    let request = |ttl| Acquire::new(name.clone(), holder(), ttl);
    fails(engine.acquire(request(Duration::ZERO)).await, ErrorKind::Invalid);
    fails(engine.acquire(request(Duration::from_secs(90_000))).await, ErrorKind::Invalid);
    let chatty = Acquire { note: vec![b'x'; 5000].into(), ..request(LONG) };
    fails(engine.acquire(chatty).await, ErrorKind::Invalid);
    let hold = granted(&engine, &name, LONG).await;
    fails(engine.renew(&[hold], Duration::ZERO).await, ErrorKind::Invalid);
}

/// A request with a rank needs no waiting: the larger rank has the lease, and a smaller one never
/// gets it back.
pub async fn a_ranked_request_takes_over_at_once_and_never_goes_back(engine: Engine) {
    let at = partition(&engine).await;
    let name = LeaseName::group(&at, &group("g"));
    let ranked = |rank| Acquire { rank: Some(Epoch(rank)), ..Acquire::new(name.clone(), holder(), LONG) };
    let plain = granted(&engine, &name, LONG).await;
    let first = engine.acquire(ranked(5)).await.unwrap().granted().expect("a rank beats none");
    assert!(first.epoch > plain.epoch);
    let second = engine.acquire(ranked(7)).await.unwrap().granted().expect("a larger rank takes over");
    assert!(engine.acquire(ranked(6)).await.unwrap().granted().is_none(), "a smaller one never does");
    assert_eq!(engine.renew(&[first, second.clone()], LONG).await.unwrap(), [false, true]);
    let again = engine.acquire(ranked(7)).await.unwrap().granted().expect("the same authority may ask again");
    assert!(again.epoch > second.epoch);
    assert!(engine.revoke(&name).await.unwrap());
    assert!(engine.acquire(ranked(6)).await.unwrap().granted().is_none(), "nor after a revocation");
    assert!(engine.acquire(ranked(7)).await.unwrap().granted().is_some());
    let pool = Acquire { rank: Some(Epoch(1)), ..Acquire::new(pool_lease(), holder(), LONG) };
    fails(engine.acquire(pool).await, ErrorKind::Invalid);
}

/// A group that is deleted keeps the rank of its lease: who was outranked before stays so.
pub async fn q15_the_rank_of_a_lease_outlives_its_group(engine: Engine) {
    let at = partition(&engine).await;
    let group = group("g");
    let name = LeaseName::group(&at, &group);
    let ranked = |rank| Acquire { rank: Some(Epoch(rank)), ..Acquire::new(name.clone(), holder(), LONG) };
    for round in 0..2 {
        engine.create_group(&at, &group, StartPosition::Start, None).await.unwrap();
        let former = engine.acquire(ranked(7)).await.unwrap().granted().expect("it is the largest rank");
        assert!(engine.delete_group(&at, &group, None).await.unwrap());
        assert!(engine.acquire(ranked(6)).await.unwrap().granted().is_none(), "round {round}");
        let hold =
            engine.acquire(ranked(7)).await.unwrap().granted().expect("the same authority may ask again");
        assert!(hold.epoch > former.epoch);
    }
}

/// What is gone leaves no lease, and yet its epochs never come back: of a group that was deleted or
/// never made, and of a pool without members.
pub async fn q14_epochs_outlive_what_they_were_for(engine: Engine) {
    let at = partition(&engine).await;
    let group = group("g");
    let of_group = LeaseName::group(&at, &group);
    let of_pool = pool_lease();
    let mut newest = [Epoch(0); 2];
    let mut grows = |which: usize, hold: &Hold| {
        assert!(hold.epoch > newest[which], "{} after {}", hold.epoch, newest[which]);
        newest[which] = hold.epoch;
    };
    for round in 0..3 {
        let hold = granted(&engine, &of_group, LONG).await;
        grows(0, &hold);
        fails(engine.open(&at, &group, StartPosition::Existing, &hold).await, ErrorKind::NotFound);
        assert!(engine.release(&hold).await.unwrap());
        assert!(look(&engine, &of_group).await.is_none(), "round {round}: there is no group");
        let hold = granted(&engine, &of_group, LONG).await;
        grows(0, &hold);
        assert!(!engine.delete_group(&at, &group, None).await.unwrap());
        assert_eq!(engine.renew(std::slice::from_ref(&hold), SHORT).await.unwrap(), [true], "it is held");
        eventually("it runs out", || async { !look(&engine, &of_group).await.unwrap().is_held() }).await;
        assert!(!engine.delete_group(&at, &group, None).await.unwrap());
        assert!(look(&engine, &of_group).await.is_none());
        let hold = granted(&engine, &of_group, LONG).await;
        grows(0, &hold);
        engine.open(&at, &group, StartPosition::Start, &hold).await.unwrap();
        assert!(engine.delete_group(&at, &group, None).await.unwrap());
        assert!(look(&engine, &of_group).await.is_none());
        let hold = granted(&engine, &of_pool, LONG).await;
        grows(1, &hold);
        let gone = if round == 0 { engine.release(&hold).await } else { engine.revoke(&of_pool).await };
        assert!(gone.unwrap());
        assert_eq!(engine.renew(&[hold], LONG).await.unwrap(), [false]);
    }
}

/// A partition that does not exist has no leases: a late consumer leaves nothing behind.
pub async fn q14_a_lease_of_a_missing_partition_is_not_granted(engine: Engine) {
    let never_made = unmade_partition();
    let deleted = partition(&engine).await;
    assert!(engine.delete_partition(&deleted).await.unwrap());
    for at in [never_made, deleted] {
        let name = LeaseName::group(&at, &group("g"));
        let plain = Acquire::new(name.clone(), holder(), LONG);
        let ranked = Acquire { rank: Some(Epoch(1)), ..plain.clone() };
        let stalled = Acquire { stalled: Some((Epoch(1), 1)), ..plain.clone() };
        for request in [plain, ranked, stalled] {
            fails(engine.acquire(request).await, ErrorKind::NotFound);
        }
        assert!(look(&engine, &name).await.is_none());
        assert!(engine.create_partition(&at).await.unwrap());
        granted(&engine, &name, LONG).await;
    }
}
