//! Failures: retries, order under retry, panics, deadlines, giving up.

use crate::world::{Diary, Reader, eventually, lag, send, with_topic};
use firth::{Backoff, KeyOrdering, Message, Nack, RetryPolicy};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

fn policy(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(attempts, Duration::from_secs(10))
}

#[tokio::test(start_paused = true)]
async fn a_failed_record_is_tried_again_after_the_backoff_and_given_up_after_the_last_attempt() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 1).await;
    let times = Arc::new(Mutex::new(Vec::new()));
    let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60)).with_jitter(0.0);
    let retry = RetryPolicy { max_attempts: 4, backoff, ..RetryPolicy::default() };
    let consumer = broker.consumer("orders", "billing").retry(retry).await.unwrap();
    let reader = {
        let times = times.clone();
        Reader::with(consumer, move |record| {
            times.lock().unwrap().push((record.attempt(), Instant::now()));
            async { Err(Nack::retry("no")) }
        })
    };
    eventually("given up", async || lag(&broker, "billing").await == 0).await;
    reader.close().await;
    let times = times.lock().unwrap();
    assert_eq!(times.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let gaps: Vec<u64> = times.windows(2).map(|pair| (pair[1].1 - pair[0].1).as_millis() as u64).collect();
    for (gap, wanted) in gaps.iter().zip([1000, 2000, 4000]) {
        assert!((wanted..wanted + 100).contains(gap), "{gaps:?}");
    }
}

async fn failing_once(ordering: KeyOrdering) -> Vec<String> {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    for (key, payload) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("a", "a3")] {
        producer.send(Message::new(payload).key(key)).await.unwrap();
    }
    let diary = Diary::default();
    let consumer = broker.consumer("orders", "billing").ordering(ordering).retry(policy(3)).await.unwrap();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let fails = record.payload() == "a1" && record.attempt() == 1;
            if !fails {
                diary.note("a", &record);
            }
            async move { if fails { Err(Nack::retry("no")) } else { Ok(()) } }
        })
    };
    diary.reaches(5).await;
    reader.close().await;
    diary.payloads()
}

#[tokio::test(start_paused = true)]
async fn strict_order_holds_back_only_the_key_of_the_failed_record() {
    assert_eq!(failing_once(KeyOrdering::Strict).await, ["b1", "b2", "a1", "a2", "a3"]);
}

#[tokio::test(start_paused = true)]
async fn relaxed_order_holds_back_nothing() {
    assert_eq!(failing_once(KeyOrdering::Relaxed).await, ["b1", "a2", "b2", "a3", "a1"]);
}

#[tokio::test(start_paused = true)]
async fn strict_order_and_attempts_survive_a_takeover() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    for payload in ["a1", "a2"] {
        producer.send(Message::new(payload).key("a")).await.unwrap();
    }
    let builder = || broker.consumer("orders", "billing").retry(policy(5)).lease(Duration::from_secs(2));
    let mut first = builder().await.unwrap();
    first.next().await.unwrap().unwrap().nack(Nack::retry("no")).await.unwrap();
    drop(first);
    let mut second = builder().await.unwrap();
    for (payload, attempt) in [("a1", 2), ("a2", 1)] {
        let next = second.next().await.unwrap().unwrap();
        assert_eq!((next.text().unwrap(), next.attempt()), (payload, attempt));
        next.ack().await.unwrap();
    }
    second.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_one_record_and_the_lane_goes_on() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 10).await;
    let diary = Diary::default();
    let consumer = broker.consumer("orders", "billing").retry(policy(3)).await.unwrap();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            async move {
                assert!(record.payload() != "4" || record.attempt() > 2, "four");
                diary.note("a", &record);
                Ok(())
            }
        })
    };
    diary.reaches(10).await;
    reader.close().await;
    assert_eq!((diary.len(), diary.numbers()), (10, (0..10).collect()));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_a_failure_at_its_deadline() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 2).await;
    let diary = Diary::default();
    let consumer = broker
        .consumer("orders", "billing")
        .retry(policy(3))
        .handler_timeout(Duration::from_secs(5))
        .await
        .unwrap();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            async move {
                if record.payload() == "0" && record.attempt() == 1 {
                    std::future::pending::<()>().await;
                }
                diary.note("a", &record);
                Ok(())
            }
        })
    };
    diary.reaches(2).await;
    reader.close().await;
    assert_eq!(diary.payloads(), ["1", "0"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_does_not_cost_the_lease() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 2).await;
    let diary = Diary::default();
    let consumer = broker.consumer("orders", "billing").lease(Duration::from_secs(1)).await.unwrap();
    let slow = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(60)).await;
                diary.note("slow", &record);
                Ok(())
            }
        })
    };
    let rival = broker.consumer("orders", "billing").lease(Duration::from_secs(1)).await.unwrap();
    let rival = Reader::start(rival, "rival", &diary);
    eventually("both handled", async || diary.len() == 2).await;
    assert_eq!(diary.of("slow"), ["0", "1"]);
    rival.close().await;
    slow.close().await;
}

#[tokio::test(start_paused = true)]
async fn however_many_records_are_held_back_the_one_they_wait_for_comes() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    producer.send_all((0..2500).map(|n| Message::new(n.to_string()).key("one"))).await.unwrap();
    let diary = Diary::default();
    let consumer = broker.consumer("orders", "billing").max_in_flight(500).retry(policy(3)).await.unwrap();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let fails = record.payload() == "0" && record.attempt() < 3;
            if !fails {
                diary.note("a", &record);
            }
            async move { if fails { Err(Nack::retry("no")) } else { Ok(()) } }
        })
    };
    diary.reaches(2500).await;
    reader.close().await;
    assert_eq!(diary.payloads(), (0..2500).map(|n| n.to_string()).collect::<Vec<_>>());
}
