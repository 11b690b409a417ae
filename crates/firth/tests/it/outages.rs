//! Servers that go away, lose their last moments, and owners that die: what goes on afterwards, and
//! how soon.

use crate::faulty::process;
use crate::world::{Diary, Reader, eventually, lag, payloads, send, soon, with_topic};
use firth::{Broker, Durability, Message, Nack, RetryPolicy};
use firth_laws::faulty::Faults;
use firth_testkit::{Direction, Flavor, Persist, Proxy, RedisServer, on_both};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

on_both!(
    k05_a_producer_goes_on_after_the_server_lost_its_last_moments,
    k05_a_send_in_doubt_is_not_repeated_after_a_loss,
    k02_partitions_go_on_soon_after_a_server_that_flapped_is_stable,
    k02_a_server_killed_eleven_times_in_ten_seconds_leaves_no_partition_silent,
);

async fn k05_a_producer_goes_on_after_the_server_lost_its_last_moments(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::Rdb).start().await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.create_topic("orders").await.unwrap();
    let producer = broker.producer("orders").idempotent().durability(Durability::Fast).await.unwrap();
    for n in 0..3 {
        producer.send(n.to_string()).await.unwrap();
    }
    server.order(&["SAVE"]).await;
    let mut lost = Vec::new();
    for n in 3..8 {
        lost.push(producer.send(n.to_string()).await.unwrap());
    }
    server.kill().await;
    server.restart().await;
    eventually("it is back", async || broker.check().await.is_ok()).await;
    for n in 8..11 {
        producer.send(n.to_string()).await.unwrap();
    }
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["0", "1", "2", "8", "9", "10"]);
    let told =
        producer.take_lost().into_iter().map(|gone| (gone.partition, gone.count, gone.first, gone.last));
    let expected = (0, 5, lost[0].id, lost[4].id);
    assert_eq!(told.collect::<Vec<_>>(), [expected], "the caller is told which sends are gone");
    assert_eq!(producer.take_lost(), [], "once");
    broker.close().await.unwrap();
}

/// The first try may have gone to a server that others still see, so it is not sent under another
/// name: the caller hears that it may be there.
async fn k05_a_send_in_doubt_is_not_repeated_after_a_loss(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::Rdb).start().await;
    let proxy = Proxy::start(server.addr()).await;
    let broker = Broker::connect(&proxy.url()).await.unwrap();
    broker.create_topic("orders").await.unwrap();
    let producer = broker.producer("orders").idempotent().durability(Durability::Fast).await.unwrap();
    producer.send("kept").await.unwrap();
    server.order(&["SAVE"]).await;
    producer.send("lost").await.unwrap();
    let stream = server.command(&["KEYS", "firth:*}:s"]).await.items()[0].text();
    let length = async || server.command(&["XLEN", &stream]).await.int();
    let before = length().await;
    proxy.half_open(Direction::ToClient);
    let sending = producer.enqueue("in doubt").await.unwrap();
    eventually("the server has it", async || length().await > before).await;
    server.kill().await;
    server.restart().await;
    proxy.heal().await;
    let error = soon("an answer", sending).await.unwrap_err();
    assert!(error.may_have_happened(), "{error}");
    assert_eq!(producer.take_lost().len(), 1, "the acknowledged one is told to be lost");
    producer.send("next").await.unwrap();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["kept", "next"]);
    broker.close().await.unwrap();
}

/// A cut after a second of silence: by then the pauses between tries have grown.
async fn k02_partitions_go_on_soon_after_a_server_that_flapped_is_stable(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.create_topic("orders").partitions(4).await.unwrap();
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    let producer = broker.producer("orders").idempotent().await.unwrap();
    for round in 0..3 {
        producer.send_all((0..20).map(|n| Message::new((round * 20 + n).to_string()))).await.unwrap();
        server.kill().await;
        tokio::time::sleep(Duration::from_millis(1000)).await;
        server.restart().await;
    }
    let stable = Instant::now();
    producer.send_all((60..80).map(|n: u64| Message::new(n.to_string()))).await.unwrap();
    eventually("everything is handled", async || diary.numbers().len() == 80).await;
    let took = stable.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    reader.close().await;
    broker.close().await.unwrap();
}

/// Producers and consumers are at work all the while; each partition must go on soon after the last
/// start.
async fn k02_a_server_killed_eleven_times_in_ten_seconds_leaves_no_partition_silent(flavor: Flavor) {
    const PARTITIONS: u64 = 4;
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.create_topic("orders").partitions(4).await.unwrap();
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    let producer = broker.producer("orders").idempotent().await.unwrap();
    let begun = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let sending = tokio::spawn({
        let begun = begun.clone();
        let is_over = is_over.clone();
        async move {
            while !is_over.load(Ordering::SeqCst) {
                let n = begun.fetch_add(1, Ordering::SeqCst);
                let partition = u32::try_from(n % PARTITIONS).unwrap();
                producer.send(Message::new(n.to_string()).to_partition(partition)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let mut next_kill = tokio::time::interval(Duration::from_millis(900));
    for _ in 0..11 {
        next_kill.tick().await;
        server.kill().await;
        server.restart().await;
    }
    let stable = Instant::now();
    let from = begun.load(Ordering::SeqCst);
    let next: Vec<u64> = (from..from + PARTITIONS).collect();
    eventually("each partition goes on", async || {
        let handled = diary.numbers();
        next.iter().all(|n| handled.binary_search(n).is_ok())
    })
    .await;
    let took = stable.elapsed();
    println!("all partitions went on after {took:?}");
    // A second, and one more for a machine with other work.
    assert!(took < Duration::from_secs(2), "{took:?}");
    is_over.store(true, Ordering::SeqCst);
    sending.await.unwrap();
    let sent = begun.load(Ordering::SeqCst);
    eventually("everything is handled", async || diary.numbers().len() as u64 == sent).await;
    reader.close().await;
    broker.close().await.unwrap();
}

/// However long the engine was away, the lane and the coordinator are back within a second.
#[tokio::test(start_paused = true)]
async fn k02_a_lane_resumes_within_a_second_of_the_engines_return() {
    let broker = with_topic(1).await;
    let (ours, faults) = process(broker.engine());
    let diary = Diary::default();
    let consumer = ours.consumer("orders", "billing").lease(Duration::from_secs(3)).await.unwrap();
    let reader = Reader::start(consumer, "a", &diary);
    send(&broker, "orders", 0, 1).await;
    diary.reaches(1).await;
    for round in 1..10 {
        faults.set(Faults { refuse: 1.0, ..Faults::default() });
        tokio::time::sleep(Duration::from_millis(20_000 + 617 * round)).await;
        faults.heal();
        let back = Instant::now();
        send(&broker, "orders", round, round + 1).await;
        eventually("it goes on", async || diary.numbers().contains(&round)).await;
        let took = back.elapsed();
        assert!(took <= Duration::from_secs(1), "round {round}: {took:?}");
    }
    reader.close().await;
}

/// A consumer whose handlers take 20 ms each, four at a time, and note how many run side by side.
#[derive(Clone, Default)]
struct Side {
    running: Arc<AtomicUsize>,
    /// What ran at the same time as each record when it began.
    beside: Arc<Mutex<Vec<usize>>>,
}

impl Side {
    async fn start(&self, broker: &Broker) -> Reader {
        let builder = broker.consumer("orders", "billing").concurrency(4).lease(Duration::from_secs(1));
        let side = self.clone();
        Reader::with(builder.await.unwrap(), move |_| {
            let side = side.clone();
            async move {
                let now = side.running.fetch_add(1, Ordering::SeqCst) + 1;
                side.beside.lock().unwrap().push(now);
                tokio::time::sleep(Duration::from_millis(20)).await;
                side.running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        })
    }

    fn count(&self) -> usize {
        self.beside.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn u06_after_an_owner_died_only_what_it_had_started_goes_one_at_a_time() {
    let broker = with_topic(1).await;
    let messages = (0..1000).map(|n: u32| Message::new(n.to_string()));
    broker.producer("orders").await.unwrap().send_all(messages).await.unwrap();
    let first = Side::default();
    let reader = first.start(&broker).await;
    eventually("the first owner is at work", async || first.count() >= 100).await;
    reader.crash().await;
    let heir = Side::default();
    let reader = heir.start(&broker).await;
    eventually("the heir is at work", async || heir.count() >= 200).await;
    reader.close().await;
    let alone = heir.beside.lock().unwrap().iter().take_while(|beside| **beside == 1).count();
    assert!(alone >= 4, "what the first owner had in hand is isolated: {alone}");
    assert!(alone <= 32, "{alone} records went one at a time");
}

#[tokio::test(start_paused = true)]
async fn u06_a_record_that_kills_is_found_among_many_that_run_side_by_side() {
    let broker = with_topic(1).await;
    let messages = (0..400).map(|n: u32| Message::new(n.to_string()));
    broker.producer("orders").await.unwrap().send_all(messages).await.unwrap();
    let diary = Diary::default();
    let mut deaths = 0;
    while deaths == 0 || lag(&broker, "billing").await > 0 {
        let retry = RetryPolicy { max_crashes: 3, ..RetryPolicy::default() };
        let builder = broker.consumer("orders", "billing").concurrency(8).retry(retry);
        let consumer = builder.lease(Duration::from_secs(1)).await.unwrap();
        let killed = Arc::new(AtomicBool::new(false));
        let reader = {
            let diary = diary.clone();
            let killed = killed.clone();
            Reader::with(consumer, move |record| {
                let diary = diary.clone();
                let killed = killed.clone();
                async move {
                    if record.text().unwrap() == "222" {
                        killed.store(true, Ordering::SeqCst);
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    diary.note("a", &record);
                    Ok(())
                }
            })
        };
        let is_over = async || killed.load(Ordering::SeqCst) || lag(&broker, "billing").await == 0;
        eventually("it dies or is done", is_over).await;
        if killed.load(Ordering::SeqCst) {
            deaths += 1;
            reader.crash().await;
        } else {
            reader.close().await;
        }
        assert!(deaths <= 6, "the killer is not found");
    }
    let letters = broker.dead_letters("orders").list(None, 10).await.unwrap().letters;
    assert_eq!((letters.len(), letters[0].record.text().unwrap()), (1, "222"));
    assert_eq!(diary.numbers().len(), 399, "all others are handled");
}

/// All due records that a dead owner had taken count a crash; only one of them is to blame.
#[tokio::test(start_paused = true)]
async fn u06_a_due_record_that_kills_does_not_take_its_neighbours_with_it() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 10).await;
    let mut deaths = 0;
    while deaths == 0 || lag(&broker, "billing").await > 0 {
        let retry = RetryPolicy { max_crashes: 3, ..RetryPolicy::fixed(9, Duration::from_millis(10)) };
        let builder = broker.consumer("orders", "billing").concurrency(10).retry(retry);
        let mut consumer = builder.lease(Duration::from_secs(1)).await.unwrap();
        let mut held = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_secs(30), consumer.next()).await;
            let Ok(Some(Ok(delivery))) = next else { break };
            match (delivery.attempt(), delivery.text().unwrap()) {
                (1, _) => delivery.nack(Nack::retry("later")).await.unwrap(),
                // The process dies with what it has.
                (_, "7") => {
                    held.push(delivery);
                    break;
                }
                _ if deaths == 0 => held.push(delivery),
                _ => delivery.ack().await.unwrap(),
            }
        }
        if lag(&broker, "billing").await > 0 {
            deaths += 1;
            held.into_iter().for_each(std::mem::forget);
            drop(consumer);
        } else {
            soon("it closes", consumer.close()).await.unwrap();
        }
        assert!(deaths <= 6, "the killer is not found");
    }
    let letters = broker.dead_letters("orders").list(None, 20).await.unwrap().letters;
    let dead: Vec<_> = letters.iter().map(|letter| letter.record.text().unwrap()).collect();
    assert_eq!(dead, ["7"]);
}
