//! The ten defects of the design that this replaces, each as a law of ours. Some have tests of
//! their own elsewhere: they are named here.
//!
//! 4, a restarted pod shares its zombie's identity:
//! `handover::a_restarted_worker_takes_its_own_work_up_at_once_and_its_zombie_ends`. 5, transitions
//! in several steps: `failover::lost_answers_lose_no_offer_and_make_no_second_owner`. 6, a graceful
//! shutdown deletes its work: `handover::a_close_hands_over_at_once_and_deletes_nothing`. 7, the
//! first reader takes everything:
//! `granting::ten_workers_that_join_over_many_offers_end_with_an_even_share`.

use super::{Hand, Log, TTL, event, grants, names, owned, put_up, service};
use crate::faulty::{deaf_process, process};
use crate::world::{eventually, soon};
use firth::claims::{Claim, Event};
use firth::{Broker, Engine};
use firth_testkit::{Flavor, RedisCluster, RedisServer};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// Defect 1: ownership changed only with a notification. Here no worker hears a notification, and
/// the sweep is enough.
#[tokio::test(start_paused = true)]
async fn a_takeover_needs_no_notification() {
    let engine = Engine::memory();
    let claims = deaf_process(&engine).claims("calls");
    put_up(&claims, 500).await;
    let mut doomed = claims.worker("doomed").ttl(TTL).await.unwrap();
    grants(&mut doomed, 500).await;
    let mut heir = deaf_process(&engine).claims("calls").worker("heir").ttl(TTL).await.unwrap();
    drop(doomed);
    let killed = Instant::now();
    assert_eq!(grants(&mut heir, 500).await.len(), 500);
    assert!(killed.elapsed() <= TTL + Duration::from_millis(300), "{:?}", killed.elapsed());
}

/// Defect 2: on a cluster a listener heard of its own node's keys only.
#[test]
fn on_a_cluster_every_shard_is_taken_over() {
    on_runtime(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        let claims = async || {
            let broker = Broker::connect(&cluster.url()).await.unwrap();
            broker.claims("calls").shards(12)
        };
        let ours = claims().await;
        put_up(&ours, 240).await;
        let ttl = Duration::from_secs(2);
        let mut doomed = claims().await.worker("doomed").ttl(ttl).await.unwrap();
        grants(&mut doomed, 240).await;
        let mut heir = ours.worker("heir").ttl(ttl).await.unwrap();
        drop(doomed);
        let taken: BTreeSet<String> =
            grants(&mut heir, 240).await.iter().map(|claim| claim.name().to_owned()).collect();
        assert_eq!(taken, names(240).into_iter().collect());
        heir.close().await.unwrap();
    });
}

/// Defect 3: a second consumer was refused because of the server's notification settings, which it
/// had changed itself.
#[test]
fn the_servers_notification_settings_do_not_matter_and_stay() {
    on_runtime(async {
        for flavor in [Flavor::Redis, Flavor::Valkey] {
            let server = RedisServer::start(flavor).await;
            server.command(&["CONFIG", "SET", "notify-keyspace-events", "Kl"]).await;
            let before = format!("{:?}", server.command(&["CONFIG", "GET", "notify-keyspace-events"]).await);
            let broker = Broker::connect(&server.url()).await.unwrap();
            let claims = broker.claims("calls");
            put_up(&claims, 2).await;
            let mut one = claims.worker("one").await.unwrap();
            let mut two = claims.worker("two").await.unwrap();
            assert_eq!(grants(&mut one, 1).await.len() + grants(&mut two, 1).await.len(), 2);
            one.close().await.unwrap();
            two.close().await.unwrap();
            let after = format!("{:?}", server.command(&["CONFIG", "GET", "notify-keyspace-events"]).await);
            assert_eq!(before, after);
        }
    });
}

/// Defect 8: what was announced before the first consumer came was never delivered.
#[tokio::test(start_paused = true)]
async fn what_was_offered_before_the_first_worker_is_granted() {
    let (_broker, claims) = service();
    put_up(&claims, 700).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let mut worker = claims.worker("first-ever").await.unwrap();
    let seen: BTreeSet<String> =
        grants(&mut worker, 700).await.iter().map(|claim| claim.name().to_owned()).collect();
    assert_eq!(seen.len(), 700);
}

/// Defect 9: starting hung when many claims were busy, and long-running work of the living was
/// taken away.
#[tokio::test(start_paused = true)]
async fn a_worker_starts_at_once_among_busy_claims_and_takes_nothing_from_the_living() {
    let (_broker, claims) = service();
    put_up(&claims, 12_000).await;
    let mut busy = claims.worker("busy").ttl(TTL).buffer(20_000).await.unwrap();
    let held = grants(&mut busy, 12_000).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let begun = Instant::now();
    let newcomer = claims.worker("newcomer").ttl(TTL).by_name_only().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1));
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(newcomer.health().claims, 0);
    assert!(held.iter().all(Claim::is_valid), "an hour of work is no reason to lose it");
}

/// Defect 10, first part: a call per stream and second. Here a tick costs the same for one claim
/// and for thousands.
#[tokio::test(start_paused = true)]
async fn renewing_costs_the_same_for_one_claim_and_for_thousands() {
    let mut calls = Vec::new();
    for count in [1, 10_000] {
        let engine = Engine::memory();
        let (broker, faults) = process(&engine);
        let claims = broker.claims("calls");
        put_up(&claims, count).await;
        let mut worker = claims.worker("w").ttl(TTL).buffer(20_000).await.unwrap();
        let held = grants(&mut worker, count).await;
        tokio::time::sleep(TTL).await;
        let before = faults.total();
        tokio::time::sleep(TTL * 30).await;
        calls.push(faults.total() - before);
        assert!(held.iter().all(Claim::is_valid));
    }
    let ticks = 30 * 3;
    assert_eq!(calls[0], calls[1]);
    assert!(calls[1] <= 2 * ticks, "{} calls in {ticks} ticks", calls[1]);
}

/// Defect 10, second part: a reader that stopped reading blocked the end for ever.
#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_events_that_nobody_reads() {
    let (_broker, claims) = service();
    put_up(&claims, 100).await;
    let worker = claims.worker("w").ttl(TTL).buffer(3).await.unwrap();
    eventually("events wait", async || worker.health().events_waiting == 3).await;
    let begun = Instant::now();
    soon("the close", worker.close()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(claims.status().await.unwrap().owned, 0);
}

/// Defect 10, third part: an expired stream came without what was offered with it.
#[tokio::test(start_paused = true)]
async fn an_orphan_brings_what_was_offered_with_it() {
    let (_broker, claims) = service();
    claims.offer("unit", "all the details").await.unwrap();
    let mut first = claims.worker("first").ttl(TTL).await.unwrap();
    grants(&mut first, 1).await;
    drop(first);
    let mut second = claims.worker("second").ttl(TTL).await.unwrap();
    assert!(matches!(event(&mut second).await, Event::Orphaned { .. }));
    let Event::Granted(claim) = event(&mut second).await else { panic!("it is granted") };
    assert_eq!(&claim.payload()[..], b"all the details");
}

/// Two of ten workers die with 2 000 units among them: every unit has one living owner again.
#[tokio::test(start_paused = true)]
async fn two_of_ten_workers_die_and_the_others_share_their_work() {
    let (_broker, claims) = service();
    put_up(&claims, 2000).await;
    let log = Log::default();
    let mut hands = Vec::new();
    for n in 0..10 {
        hands.push(Hand::start(claims.worker(format!("w{n}")).ttl(TTL).await.unwrap(), log.clone()));
    }
    eventually("all have their share", async || {
        hands.iter().all(|hand| (180..=220).contains(&hand.handle.claim_count()))
    })
    .await;
    hands.drain(..2).for_each(|hand| hand.kill());
    tokio::time::sleep(TTL).await;
    eventually("the others have it all", async || {
        let owned = owned(&claims).await;
        !owned.contains_key("w0")
            && !owned.contains_key("w1")
            && owned.values().map(BTreeSet::len).sum::<usize>() == 2000
    })
    .await;
    eventually("evenly", async || hands.iter().all(|hand| (225..=275).contains(&hand.handle.claim_count())))
        .await;
    log.check();
}

fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}
