//! Deliveries that are taken and acknowledged many at a time.

use crate::world::{eventually, lag, send, soon, with_topic};
use firth::{Consumer, Delivery, RetryPolicy};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn deliveries_taken_together_come_once_in_order_and_are_settled_together() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 500).await;
    let mut consumer = broker.consumer("orders", "billing").concurrency(100).max_in_flight(60).await.unwrap();
    let mut seen = vec![Vec::new(); 2];
    let mut held = Vec::new();
    let mut largest = 0;
    while seen.iter().map(Vec::len).sum::<usize>() < 500 {
        let many = tokio::time::timeout(Duration::from_secs(60), consumer.next_many(20)).await;
        let Ok(many) = many else {
            // Both partitions have as much out as is allowed.
            assert!(held.len() <= 120 && !held.is_empty(), "{} are out", held.len());
            Delivery::ack_all(held.drain(..));
            continue;
        };
        let many = many.unwrap().unwrap();
        assert!((1..=20).contains(&many.len()));
        largest = largest.max(many.len());
        let partition = many[0].partition();
        for delivery in many {
            assert_eq!(delivery.partition(), partition);
            seen[partition as usize].push(delivery.id().seq);
            held.push(delivery);
        }
    }
    assert!(largest > 1, "they come together");
    // One is given back in the middle, and comes again.
    let mut rest = std::mem::take(&mut held);
    let back = rest.pop().unwrap();
    let partition = back.partition();
    let seq = back.id().seq;
    back.give_back();
    Delivery::ack_all(rest);
    let again = consumer.next_many(20).await.unwrap().unwrap();
    assert_eq!(
        again.iter().map(|one| (one.partition(), one.id().seq)).collect::<Vec<_>>(),
        [(partition, seq)]
    );
    assert_eq!(again[0].attempt(), 1);
    Delivery::ack_all(again);
    Delivery::ack_all([]);
    eventually("all settled", async || lag(&broker, "billing").await == 0).await;
    for seqs in seen {
        let mut once = seqs.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), seqs.len(), "each once");
    }
    consumer.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_closes_ends_what_takes_many() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 10).await;
    let mut consumer = broker.consumer("orders", "billing").concurrency(100).await.unwrap();
    let handle = consumer.handle();
    let first = consumer.next_many(100).await.unwrap().unwrap();
    handle.close();
    Delivery::ack_all(first);
    while let Some(many) = consumer.next_many(100).await {
        Delivery::ack_all(many.unwrap());
    }
    let handed_over = lag(&broker, "billing").await;
    let mut next = broker.consumer("orders", "billing").concurrency(100).await.unwrap();
    let mut left = 0;
    while left < handed_over {
        let many = next.next_many(100).await.unwrap().unwrap();
        left += many.len() as u64;
        Delivery::ack_all(many);
    }
    eventually("all settled", async || lag(&broker, "billing").await == 0).await;
    next.close().await.unwrap();
}

/// A consumer may keep deliveries until it has written a checkpoint of its own, as long as it
/// likes, beside rivals. After a crash, the records behind the checkpoint come again, and no
/// others.
#[tokio::test(start_paused = true)]
async fn what_is_acknowledged_at_a_checkpoint_does_not_come_again_and_the_rest_does() {
    const LEASE: Duration = Duration::from_secs(2);
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    producer.send_all((0..30).map(|n| n.to_string())).await.unwrap();
    let retry = RetryPolicy { max_crashes: 0, ..RetryPolicy::default() };
    let join = || broker.consumer("orders", "sums").concurrency(100).lease(LEASE).retry(retry);
    let take = async |consumer: &mut Consumer, count: usize| {
        let mut held: Vec<Delivery> = Vec::new();
        while held.len() < count {
            held.extend(soon("more", consumer.next_many(count - held.len())).await.unwrap().unwrap());
        }
        held
    };
    let numbers = |held: &[Delivery]| -> Vec<u64> {
        held.iter().map(|delivery| delivery.text().unwrap().parse().unwrap()).collect()
    };
    let mut first = join().await.unwrap();
    let mut held = take(&mut first, 20).await;
    let mut rival = join().await.unwrap();
    let nothing = tokio::time::timeout(LEASE * 50, rival.next_many(100)).await;
    assert!(nothing.is_err(), "a rival gets none of what is held");
    assert_eq!(lag(&broker, "sums").await, 30);
    let behind = held.split_off(12);
    Delivery::ack_all(held);
    eventually("the checkpoint is stored", async || lag(&broker, "sums").await == 18).await;
    // The process dies here.
    behind.into_iter().for_each(std::mem::forget);
    drop(first);
    let again = take(&mut rival, 18).await;
    assert_eq!(numbers(&again), (12..30).collect::<Vec<_>>());
    assert!(again.iter().all(|delivery| delivery.attempt() == 1), "nobody failed");
    Delivery::ack_all(again);
    eventually("all settled", async || lag(&broker, "sums").await == 0).await;
    rival.close().await.unwrap();
}
