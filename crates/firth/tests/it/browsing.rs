//! Looking at records and dead letters: bounded in bytes, and truthful about what follows.

use crate::faulty::process;
use crate::world::{eventually, soon, with_topic};
use firth::{Broker, Message, RecordId, Replay, RetryPolicy};
use std::time::Duration;

const MIB: usize = 1024 * 1024;
/// What one answer may hold.
const MOST: usize = 8 * MIB;

/// A topic with `count` messages of 1 MiB each, stored as a few kB.
async fn with_large_messages(count: u32) -> Broker {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").compress_above(1024).await.unwrap();
    for n in 0..count {
        let mut payload = vec![0; MIB];
        payload[..4].copy_from_slice(&n.to_be_bytes());
        producer.send(Message::new(payload)).await.unwrap();
    }
    broker
}

async fn reject_all(broker: &Broker, count: u64) {
    let builder = broker.consumer("orders", "billing").retry(RetryPolicy::never());
    let mut consumer = builder.await.unwrap();
    for _ in 0..count {
        soon("a record", consumer.next()).await.unwrap().unwrap().reject("no").await.unwrap();
    }
    consumer.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn q03_a_page_of_records_is_bounded_as_it_is_shown_and_tells_whether_more_follow() {
    let broker = with_large_messages(20).await;
    let mut after = RecordId::ZERO;
    let mut seen = 0;
    let mut pages = 0;
    loop {
        let page = broker.admin().browse_page("orders", 0, after, 500).await.unwrap();
        let bytes: usize = page.records.iter().map(|record| record.payload().len()).sum();
        assert!(bytes <= MOST && !page.records.is_empty());
        (seen, pages) = (seen + page.records.len(), pages + 1);
        let Some(next) = page.next else { break };
        assert_eq!(Some(next), page.records.last().map(firth::Record::id));
        after = next;
    }
    assert_eq!((seen, pages), (20, 3));
    let recent = broker.admin().recent("orders", 0, 500).await.unwrap();
    assert_eq!((recent.len(), recent.last().unwrap().id().seq), (7, 20));
    let few = broker.admin().browse_page("orders", 0, RecordId::ZERO, 2).await.unwrap();
    assert_eq!((few.records.len(), few.next.map(|id| id.seq)), (2, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn q03_a_page_of_dead_letters_is_bounded_as_it_is_shown_and_tells_whether_more_follow() {
    let broker = with_large_messages(20).await;
    reject_all(&broker, 20).await;
    let letters = broker.dead_letters("orders");
    let mut after = None;
    let mut seen = 0;
    loop {
        let page = letters.list(after.as_ref(), 500).await.unwrap();
        let bytes: usize = page.letters.iter().map(|letter| letter.record.payload().len()).sum();
        assert!(bytes <= MOST && !page.letters.is_empty());
        seen += page.letters.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, 20);
    let one = letters.list(None, 1).await.unwrap();
    assert_eq!((one.letters.len(), one.next.is_some()), (1, true));
    let all = broker.dead_letters("orders").reason("no");
    assert_eq!(all.count().await.unwrap(), 20);
    assert_eq!(all.replay_all(Replay::Group).await.unwrap(), 20);
    assert_eq!(letters.list(None, 9).await.unwrap().letters.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn q08_who_follows_reads_a_letter_once_however_long_it_lies() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    producer.send_all((0..300).map(|n: u32| Message::new(n.to_string()))).await.unwrap();
    reject_all(&broker, 300).await;
    let (ours, faults) = process(broker.engine());
    let mut follow = ours.dead_letters("orders").follow();
    for n in 0..300 {
        let letter = soon("a letter", follow.next()).await.unwrap();
        assert_eq!(letter.record.text().unwrap(), n.to_string());
    }
    let read = faults.count("dead");
    assert!(tokio::time::timeout(Duration::from_secs(60), follow.next()).await.is_err());
    assert_eq!(faults.count("dead"), read, "what lies there is not read again");
    producer.send("new").await.unwrap();
    reject_all(&broker, 1).await;
    assert_eq!(soon("the new one", follow.next()).await.unwrap().record.text().unwrap(), "new");
    assert_eq!(faults.count("dead"), read + 1);
}

#[tokio::test(start_paused = true)]
async fn q08_who_follows_old_letters_gets_each_when_it_is_old_enough() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    producer.send("first").await.unwrap();
    reject_all(&broker, 1).await;
    let letters = broker.dead_letters("orders").older_than(Duration::from_secs(600));
    let mut follow = letters.follow();
    assert!(tokio::time::timeout(Duration::from_secs(500), follow.next()).await.is_err());
    let letter = soon("it is old enough", follow.next()).await.unwrap();
    assert!(letter.age >= Duration::from_secs(600) && letter.age < Duration::from_secs(620));
    broker.dead_letters("orders").delete(&[letter.id]).await.unwrap();
    eventually("it is gone", async || broker.dead_letters("orders").count().await.unwrap() == 0).await;
}
