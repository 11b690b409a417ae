//! One whole life of a topic on every engine, in real time: two processes share it, handlers fail,
//! a member crashes, one leaves, letters are replayed, delayed messages come, and idle consumers
//! wake up at once.

use crate::world::{Diary, Reader, eventually, lag, numbered, soon};
use firth::{Broker, Message, Nack, Record, Replay, RetryPolicy};
use firth_testkit::{Flavor, RedisCluster, RedisServer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Fails each tenth record once, and rejects number 13 while the switch is on.
async fn handle(
    record: Record,
    who: &'static str,
    diary: Diary,
    reject: Arc<AtomicBool>,
) -> Result<(), Nack> {
    let number: u64 = record.text()?.parse()?;
    if number == 13 && reject.load(SeqCst) {
        return Err(Nack::reject("unlucky"));
    }
    if number.is_multiple_of(10) && record.attempt() == 1 {
        return Err(Nack::retry("not yet"));
    }
    diary.note(who, &record);
    Ok(())
}

async fn member(broker: &Broker, who: &'static str, diary: &Diary, reject: &Arc<AtomicBool>) -> Reader {
    let retry = RetryPolicy::fixed(3, Duration::from_millis(30));
    let builder = broker.consumer("orders", "billing").retry(retry).lease(Duration::from_secs(1));
    let consumer = builder.name(who).await.unwrap();
    let diary = diary.clone();
    let reject = reject.clone();
    Reader::with(consumer, move |record| handle(record, who, diary.clone(), reject.clone()))
}

async fn life(first: Broker, second: Broker) {
    first.create_topic("orders").partitions(4).await.unwrap();
    let diary = Diary::default();
    let reject = Arc::new(AtomicBool::new(true));
    let producer = first.producer("orders").idempotent().await.unwrap();
    producer.send_all(numbered(0, 200)).await.unwrap();

    let a = member(&first, "a", &diary, &reject).await;
    let b = member(&second, "b", &diary, &reject).await;
    for reader in [&a, &b] {
        soon("a fair share", reader.handle.assigned(|owned| owned.len() == 2)).await;
    }
    eventually("the first part is settled", async || lag(&first, "billing").await == 0).await;
    assert_eq!(first.dead_letters("orders").count().await.unwrap(), 1);

    let crashed = Instant::now();
    b.crash().await;
    producer.send_all(numbered(200, 300)).await.unwrap();
    soon("a takeover", a.handle.assigned(|owned| owned.len() == 4)).await;
    let took = crashed.elapsed();
    assert!(took < Duration::from_millis(3000), "TTL 1 s and one look, on a busy machine: {took:?}");
    eventually("the second part is settled", async || lag(&first, "billing").await == 0).await;

    let c = member(&second, "c", &diary, &reject).await;
    soon("a fair share", c.handle.assigned(|owned| owned.len() == 2)).await;
    reject.store(false, SeqCst);
    assert_eq!(first.dead_letters("orders").replay_all(Replay::Group).await.unwrap(), 1);
    let later = Message::new("300").key("key-0").deliver_after(Duration::from_millis(200));
    producer.send(later).await.unwrap();
    eventually("replayed and delayed ones come", async || diary.numbers().len() == 301).await;
    eventually("all is settled", async || lag(&first, "billing").await == 0).await;
    a.close().await;
    soon("a handover", c.handle.assigned(|owned| owned.len() == 4)).await;

    let sent = Instant::now();
    producer.send("301").await.unwrap();
    eventually("an idle consumer wakes up", async || diary.numbers().len() == 302).await;
    assert!(
        sent.elapsed() < Duration::from_secs(2),
        "woken by a hint, not by the poll: {:?}",
        sent.elapsed()
    );
    c.close().await;
    in_order(&diary);
    producer.close().await.unwrap();
    assert!(first.delete_topic("orders").await.unwrap());
}

/// Per key, records were finished in order; only the replayed number 13 came late.
fn in_order(diary: &Diary) {
    for key in 0..5 {
        let mut seen = BTreeSet::new();
        let numbers = diary.payloads().into_iter().map(|payload| payload.parse::<u64>().unwrap());
        let firsts: Vec<_> =
            numbers.filter(|n| n % 5 == key && *n != 13 && *n < 300 && seen.insert(*n)).collect();
        assert!(firsts.is_sorted(), "key {key}: {firsts:?}");
    }
}

fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test)
}

async fn on_url(url: &str) {
    let brokers = (Broker::connect(url).await.unwrap(), Broker::connect(url).await.unwrap());
    life(brokers.0.clone(), brokers.1.clone()).await;
    brokers.0.close().await.unwrap();
    brokers.1.close().await.unwrap();
}

#[test]
fn a_topic_lives_in_memory() {
    block_on(async {
        let broker = Broker::memory();
        life(broker.clone(), broker).await;
    });
}

#[test]
fn a_topic_lives_on_files() {
    block_on(async {
        let (broker, _dir) = crate::world::on_files().await;
        life(broker.clone(), broker.clone()).await;
        broker.close().await.unwrap();
    });
}

#[test]
fn a_topic_lives_on_redis() {
    block_on(async { on_url(&RedisServer::start(Flavor::Redis).await.url()).await });
}

#[test]
fn a_topic_lives_on_valkey() {
    block_on(async { on_url(&RedisServer::start(Flavor::Valkey).await.url()).await });
}

#[test]
fn a_topic_lives_on_a_cluster() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        on_url(&cluster.url()).await;
    });
}
