//! What a group promises its members and its messages, on every engine and in real time. Bounds are
//! generous, because tests share a machine; the exact figures are the bench's.

use crate::engines::{Pair, on_every_engine};
use crate::faulty::process;
use crate::world::{Diary, Reader, eventually, fails, lag, numbered, soon};
use firth::{Broker, ErrorKind, Nack, Replay, RetryPolicy};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

on_every_engine!(
    a_joining_member_gets_its_share_while_the_other_lanes_go_on
    a_leaving_member_hands_over_at_once_and_repeats_nothing
    a_crashed_member_is_taken_over_when_its_lease_ends
    one_groups_failures_never_reach_another_group
    a_stopped_consumer_that_wakes_after_the_takeover_settles_nothing
);

/// How much longer than promised a starved machine may take.
const SLACK: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(2);

async fn member(broker: &Broker, who: &str, diary: &Diary) -> Reader {
    let consumer = broker.consumer("orders", "billing").name(who).lease(LEASE).await.unwrap();
    Reader::start(consumer, who, diary)
}

async fn owns(reader: &Reader, count: usize) {
    soon(&format!("{count} partitions"), reader.handle.assigned(|owned| owned.len() == count)).await;
}

/// Sends numbers one after the other until told to stop; answers how many.
fn load(broker: &Broker) -> (tokio::task::JoinHandle<u64>, Arc<AtomicBool>) {
    let broker = broker.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let task = tokio::spawn(async move {
        let producer = broker.producer("orders").await.unwrap();
        let mut sent = 0;
        while !seen.load(SeqCst) {
            producer.send_all(numbered(sent, sent + 20)).await.unwrap();
            sent += 20;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        producer.close().await.unwrap();
        sent
    });
    (task, stop)
}

/// Ends the load, and waits until everything is settled.
async fn finish(broker: &Broker, (task, stop): (tokio::task::JoinHandle<u64>, Arc<AtomicBool>)) -> u64 {
    stop.store(true, SeqCst);
    let sent = task.await.unwrap();
    eventually("everything is settled", async || lag(broker, "billing").await == 0).await;
    sent
}

async fn a_joining_member_gets_its_share_while_the_other_lanes_go_on(pair: Pair) {
    pair.first.create_topic("orders").partitions(8).await.unwrap();
    let diary = Diary::default();
    let a = member(&pair.first, "a", &diary).await;
    owns(&a, 8).await;
    let before = a.handle.epochs();
    let load = load(&pair.first);
    diary.reaches(50).await;
    let start = Instant::now();
    let b = member(&pair.second, "b", &diary).await;
    owns(&b, 4).await;
    assert!(start.elapsed() < Duration::from_secs(1) + SLACK, "{:?}", start.elapsed());
    owns(&a, 4).await;
    let after = a.handle.epochs();
    let kept = after.iter().all(|(partition, epoch)| before.get(partition) == Some(epoch));
    assert!(kept, "the lanes that stay were never interrupted: {before:?} and {after:?}");
    let sent = finish(&pair.first, load).await;
    a.close().await;
    b.close().await;
    assert_eq!(
        (diary.len() as u64, diary.numbers().len() as u64),
        (sent, sent),
        "nothing lost, nothing repeated"
    );
}

async fn a_leaving_member_hands_over_at_once_and_repeats_nothing(pair: Pair) {
    pair.first.create_topic("orders").partitions(4).await.unwrap();
    let diary = Diary::default();
    let a = member(&pair.first, "a", &diary).await;
    let b = member(&pair.second, "b", &diary).await;
    owns(&a, 2).await;
    owns(&b, 2).await;
    let load = load(&pair.first);
    diary.reaches(50).await;
    let start = Instant::now();
    b.close().await;
    owns(&a, 4).await;
    assert!(start.elapsed() < Duration::from_millis(100) + SLACK, "{:?}", start.elapsed());
    let sent = finish(&pair.first, load).await;
    a.close().await;
    assert_eq!(
        (diary.len() as u64, diary.numbers().len() as u64),
        (sent, sent),
        "nothing lost, nothing repeated"
    );
}

async fn a_crashed_member_is_taken_over_when_its_lease_ends(pair: Pair) {
    pair.first.create_topic("orders").partitions(4).await.unwrap();
    let diary = Diary::default();
    let a = member(&pair.first, "a", &diary).await;
    let b = member(&pair.second, "b", &diary).await;
    owns(&a, 2).await;
    owns(&b, 2).await;
    let load = load(&pair.first);
    diary.reaches(50).await;
    let start = Instant::now();
    b.crash().await;
    owns(&a, 4).await;
    assert!(start.elapsed() < LEASE + LEASE / 2 + SLACK, "{:?}", start.elapsed());
    let sent = finish(&pair.first, load).await;
    a.close().await;
    assert_eq!(diary.numbers(), (0..sent).collect::<Vec<_>>(), "nothing lost");
}

async fn one_groups_failures_never_reach_another_group(pair: Pair) {
    pair.first.create_topic("orders").partitions(2).await.unwrap();
    let producer = pair.first.producer("orders").await.unwrap();
    let calm = Diary::default();
    let failing = Diary::default();
    let mended = Arc::new(AtomicBool::new(false));
    let audit = Reader::start(pair.second.consumer("orders", "audit").await.unwrap(), "audit", &calm);
    let retry = RetryPolicy::fixed(3, Duration::from_millis(20));
    let consumer = pair.first.consumer("orders", "billing").retry(retry).await.unwrap();
    let billing = {
        let failing = failing.clone();
        let mended = mended.clone();
        Reader::with(consumer, move |record| {
            failing.note("billing", &record);
            let ok = mended.load(SeqCst);
            async move { if ok { Ok(()) } else { Err(Nack::retry("never")) } }
        })
    };
    producer.send_all(numbered(0, 40)).await.unwrap();
    let letters = pair.first.dead_letters("orders");
    eventually("all given up by one group", async || letters.count().await.unwrap() == 40).await;
    mended.store(true, SeqCst);
    assert_eq!(letters.replay_all(Replay::Group).await.unwrap(), 40);
    eventually("replayed to it", async || failing.len() == 160 && lag(&pair.first, "billing").await == 0)
        .await;
    eventually("settled by the other", async || lag(&pair.first, "audit").await == 0).await;
    audit.close().await;
    billing.close().await;
    assert_eq!(
        (calm.len(), calm.numbers()),
        (40, (0..40).collect()),
        "the other group got each message once"
    );
}

async fn a_stopped_consumer_that_wakes_after_the_takeover_settles_nothing(pair: Pair) {
    pair.first.create_topic("orders").await.unwrap();
    let producer = pair.first.producer("orders").await.unwrap();
    producer.send_all(numbered(0, 4)).await.unwrap();
    let (zombie, faults) = process(pair.second.engine());
    let mut stopped = zombie.consumer("orders", "billing").lease(LEASE).await.unwrap();
    soon("the first", stopped.next()).await.unwrap().unwrap().ack().await.unwrap();
    let held = soon("the second", stopped.next()).await.unwrap().unwrap();
    faults.cut();
    let diary = Diary::default();
    let heir = member(&pair.first, "heir", &diary).await;
    diary.reaches(3).await;
    assert_eq!(diary.payloads(), ["1", "2", "3"], "the heir goes on at the frontier, in order");
    eventually("the heir settled them", async || lag(&pair.first, "billing").await == 0).await;
    faults.heal();
    fails(held.nack(Nack::reject("zombie")).await, ErrorKind::Fenced);
    assert_eq!(pair.first.dead_letters("orders").count().await.unwrap(), 0);
    assert_eq!(lag(&pair.first, "billing").await, 0);
    heir.close().await;
    stopped.close().await.unwrap();
}
