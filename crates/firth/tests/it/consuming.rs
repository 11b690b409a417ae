//! One consumer: everything once, in order, bounded, and gracefully over.

use crate::world::{Diary, Reader, fails, lag, on_files, send, soon, with_topic};
use firth::{Broker, Consumer, Delivery, ErrorKind, Message, Nack, RetryPolicy, StartAt};
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn every_message_is_handled_once_and_settled() {
    let broker = with_topic(4).await;
    send(&broker, "orders", 0, 1000).await;
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    diary.reaches(1000).await;
    reader.close().await;
    assert_eq!((diary.len(), diary.numbers()), (1000, (0..1000).collect()));
    assert_eq!(lag(&broker, "billing").await, 0);
}

#[tokio::test]
async fn every_message_is_handled_once_on_files_too() {
    let (broker, dir) = on_files().await;
    broker.create_topic("orders").partitions(3).await.unwrap();
    send(&broker, "orders", 0, 500).await;
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    diary.reaches(300).await;
    reader.close().await;
    broker.close().await.unwrap();
    let broker = Broker::open(dir.path()).await.unwrap();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "b", &diary);
    diary.reaches(500).await;
    reader.close().await;
    assert_eq!(
        (diary.len(), diary.numbers()),
        (500, (0..500).collect()),
        "a graceful restart repeats nothing"
    );
    broker.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_serial_lane_keeps_the_order_of_its_partition() {
    let broker = with_topic(1).await;
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    for batch in 0..20 {
        send(&broker, "orders", batch * 25, batch * 25 + 25).await;
    }
    diary.reaches(500).await;
    reader.close().await;
    assert_eq!(diary.payloads(), (0..500).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn concurrency_runs_keys_side_by_side_and_each_key_in_order() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 200).await;
    let (diary, running, peak) =
        (Diary::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let busy: Arc<Mutex<HashMap<Vec<u8>, usize>>> = Arc::default();
    let consumer = broker.consumer("orders", "billing").concurrency(4).await.unwrap();
    let reader = {
        let diary = diary.clone();
        let peak = peak.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            let running = running.clone();
            let peak = peak.clone();
            let busy = busy.clone();
            async move {
                peak.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                let key = record.key().unwrap().to_vec();
                assert!(busy.lock().unwrap().insert(key.clone(), 1).is_none(), "a key runs once at a time");
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..20))).await;
                busy.lock().unwrap().remove(&key);
                running.fetch_sub(1, SeqCst);
                diary.note("a", &record);
                Ok(())
            }
        })
    };
    diary.reaches(200).await;
    reader.close().await;
    assert_eq!(peak.load(SeqCst), 4);
    for key in 0..5 {
        let order: Vec<u64> =
            diary.payloads().iter().map(|p| p.parse().unwrap()).filter(|n| n % 5 == key).collect();
        assert!(order.is_sorted() && order.len() == 40, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn deliveries_are_settled_by_value_and_an_ack_is_stored_when_awaited() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 4).await;
    let mut consumer = broker.consumer("orders", "billing").retry(RetryPolicy::never()).await.unwrap();
    let handle = consumer.handle();
    let first = consumer.next().await.unwrap().unwrap();
    assert_eq!((handle.in_flight(), handle.is_closed()), (1, false));
    assert_eq!((first.text().unwrap(), first.attempt()), ("0", 1));
    first.ack().await.unwrap();
    assert_eq!(lag(&broker, "billing").await, 3);
    consumer.next().await.unwrap().unwrap().reject("hopeless").await.unwrap();
    consumer.next().await.unwrap().unwrap().nack(Nack::retry("last attempt")).await.unwrap();
    drop(consumer.next().await.unwrap().unwrap());
    crate::world::eventually("all settled", async || lag(&broker, "billing").await == 0).await;
    consumer.close().await.unwrap();
    assert_eq!((handle.in_flight(), handle.is_closed()), (0, true));
}

#[tokio::test(start_paused = true)]
async fn no_more_is_in_flight_than_allowed() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 50).await;
    let mut consumer = broker.consumer("orders", "billing").concurrency(100).max_in_flight(3).await.unwrap();
    let mut held = handed_out(&mut consumer).await;
    // Five keys are sent in turn, so the first three records may run side by side.
    assert_eq!(held.iter().map(|delivery| delivery.text().unwrap()).collect::<Vec<_>>(), ["0", "1", "2"]);
    held.remove(0).ack().await.unwrap();
    assert_eq!(consumer.next().await.unwrap().unwrap().text().unwrap(), "3");
}

/// Everything that is handed out while nothing is settled.
async fn handed_out(consumer: &mut Consumer) -> Vec<Delivery> {
    let mut held = Vec::new();
    while let Ok(next) = tokio::time::timeout(Duration::from_secs(60), consumer.next()).await {
        held.push(next.unwrap().unwrap());
    }
    held
}

const COUNT: usize = 40;

/// A topic of payloads that are small where they lie and 4 MiB where they are handed out; each
/// begins with its number.
async fn swelling(message: impl Fn(Vec<u8>) -> Message) -> Broker {
    const SIZE: usize = 4 << 20;
    let broker = Broker::memory();
    broker.create_topic("orders").max_payload(SIZE).await.unwrap();
    let producer = broker.producer("orders").compress_above(1000).await.unwrap();
    for number in 0..COUNT {
        let mut payload = vec![0; SIZE];
        payload[0] = u8::try_from(number).unwrap();
        producer.send(message(payload)).await.unwrap();
    }
    broker
}

/// No more than 64 MiB are at hand, whether they come from the log or are tried again.
#[tokio::test(start_paused = true)]
async fn no_more_bytes_are_at_hand_than_allowed_also_of_compressed_payloads() {
    let broker = swelling(Message::new).await;
    let mut consumer = broker.consumer("orders", "billing").concurrency(COUNT).await.unwrap();
    let later = || Nack::retry_after(Duration::from_secs(3600), "later");
    let mut seen = Vec::new();
    while seen.len() < COUNT {
        let held = handed_out(&mut consumer).await;
        assert!((1..=16).contains(&held.len()), "{} are at hand", held.len());
        seen.extend(held.iter().map(|delivery| usize::from(delivery.payload()[0])));
        held.into_iter().for_each(|delivery| drop(delivery.nack(later())));
    }
    assert_eq!(seen, (0..COUNT).collect::<Vec<_>>(), "each once and in order");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let mut again = Vec::new();
    while again.len() < COUNT {
        let held = handed_out(&mut consumer).await;
        assert!((1..=16).contains(&held.len()), "{} are tried again", held.len());
        again.extend(held.iter().map(|delivery| usize::from(delivery.payload()[0])));
        Delivery::ack_all(held);
    }
    again.sort_unstable();
    assert_eq!(again, (0..COUNT).collect::<Vec<_>>(), "each once");
    consumer.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn however_many_bytes_are_held_back_the_one_they_wait_for_comes() {
    let broker = swelling(|payload| Message::new(payload).key("one")).await;
    let retry = RetryPolicy::fixed(3, Duration::from_secs(1));
    let consumer = broker.consumer("orders", "billing").retry(retry).await.unwrap();
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let reader = {
        let seen = seen.clone();
        Reader::with(consumer, move |record| {
            let fails = record.payload()[0] % 20 == 0 && record.attempt() < 3;
            if !fails {
                seen.lock().unwrap().push(record.payload()[0].into());
            }
            async move { if fails { Err(Nack::retry("not yet")) } else { Ok(()) } }
        })
    };
    crate::world::eventually("all handled", async || seen.lock().unwrap().len() == COUNT).await;
    reader.close().await;
    assert_eq!(*seen.lock().unwrap(), (0..COUNT).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_batch_handler_gets_records_of_one_partition_in_order_and_one_answer_settles_them() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 100).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::new(Mutex::new(Vec::<u64>::new()));
    let failed = Arc::new(AtomicUsize::new(0));
    let retry = RetryPolicy::fixed(3, Duration::from_secs(1));
    let consumer = broker.consumer("orders", "billing").retry(retry).await.unwrap();
    let handle = consumer.handle();
    let task = {
        let sizes = sizes.clone();
        let seen = seen.clone();
        let run = consumer.run_batches(10, move |records| {
            let sizes = sizes.clone();
            let seen = seen.clone();
            let failed = failed.clone();
            async move {
                assert!(records.iter().all(|record| record.partition() == records[0].partition()));
                sizes.lock().unwrap().push(records.len());
                if failed.fetch_add(1, SeqCst) == 0 {
                    return Err(Nack::retry("not now"));
                }
                seen.lock()
                    .unwrap()
                    .extend(records.iter().map(|r| r.text().unwrap().parse::<u64>().unwrap()));
                Ok(())
            }
        });
        tokio::spawn(run.into_future())
    };
    crate::world::eventually("all handled", async || seen.lock().unwrap().len() >= 100).await;
    handle.close();
    soon("closed", task).await.unwrap().unwrap();
    let mut numbers = seen.lock().unwrap().clone();
    for key in 0..5 {
        assert!(numbers.iter().filter(|n| **n % 5 == key).is_sorted(), "{numbers:?}");
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    assert!(sizes.lock().unwrap().iter().all(|size| *size <= 10) && sizes.lock().unwrap().contains(&10));
}

#[tokio::test(start_paused = true)]
async fn a_paused_consumer_keeps_its_partitions_and_hands_out_nothing() {
    let broker = with_topic(2).await;
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    soon("assigned", reader.handle.assigned(|owned| owned.len() == 2)).await;
    reader.handle.pause();
    send(&broker, "orders", 0, 20).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!((diary.len(), reader.handle.assignment().len(), reader.handle.is_paused()), (0, 2, true));
    reader.handle.resume();
    diary.reaches(20).await;
    reader.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_group_starts_where_it_says() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 10).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    send(&broker, "orders", 10, 20).await;
    let recent = StartAt::Age(Duration::from_secs(50));
    for (group, start) in [("oldest", StartAt::Oldest), ("newest", StartAt::Newest), ("recent", recent)] {
        broker.consumer("orders", group).start_at(start).await.unwrap().close().await.unwrap();
    }
    send(&broker, "orders", 20, 30).await;
    for (group, expected) in [("oldest", 0..30), ("newest", 20..30), ("recent", 10..30)] {
        let diary = Diary::default();
        let reader = Reader::start(broker.consumer("orders", group).await.unwrap(), "a", &diary);
        diary.reaches(expected.clone().count()).await;
        reader.close().await;
        assert_eq!(diary.numbers(), expected.collect::<Vec<u64>>(), "{group}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_comes_in_its_time_also_under_load() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    let start = Instant::now();
    let arrived = Arc::new(Mutex::new(None));
    let consumer = broker.consumer("orders", "billing").await.unwrap();
    let reader = {
        let arrived = arrived.clone();
        Reader::with(consumer, move |record| {
            if record.payload() == "later" {
                arrived.lock().unwrap().replace(start.elapsed());
            }
            async { Ok(()) }
        })
    };
    producer.send(Message::new("later").deliver_after(Duration::from_secs(3))).await.unwrap();
    while arrived.lock().unwrap().is_none() {
        producer.send("noise").await.unwrap();
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    let after = arrived.lock().unwrap().unwrap();
    assert!(after >= Duration::from_secs(3) && after < Duration::from_millis(3200), "{after:?}");
    reader.close().await;
}

#[tokio::test(start_paused = true)]
async fn closing_lets_running_handlers_finish_and_repeats_nothing() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 40).await;
    let diary = Diary::default();
    let consumer = broker.consumer("orders", "billing").await.unwrap();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(2)).await;
                diary.note("a", &record);
                Ok(())
            }
        })
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    reader.close().await;
    let before = diary.len();
    assert!((4..=8).contains(&before), "{before}");
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "b", &diary);
    diary.reaches(40).await;
    reader.close().await;
    assert_eq!((diary.len(), diary.numbers()), (40, (0..40).collect()));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_abandoned_at_the_drain_limit() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 1).await;
    let consumer = broker.consumer("orders", "billing").drain(Duration::from_secs(3)).await.unwrap();
    let started = Arc::new(tokio::sync::Notify::new());
    let start = Instant::now();
    let reader = {
        let started = started.clone();
        Reader::with(consumer, move |_| {
            started.notify_one();
            std::future::pending()
        })
    };
    started.notified().await;
    reader.close().await;
    assert!(start.elapsed() < Duration::from_secs(4));
    assert_eq!(lag(&broker, "billing").await, 1, "it comes again elsewhere");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_ends_with_an_error_when_its_topic_is_deleted() {
    let broker = with_topic(1).await;
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &Diary::default());
    soon("assigned", reader.handle.assigned(|owned| owned.len() == 1)).await;
    broker.delete_topic("orders").await.unwrap();
    fails(reader.ends().await, ErrorKind::NotFound);
}

#[tokio::test]
async fn nonsense_is_refused_by_name() {
    let broker = with_topic(1).await;
    fails(broker.consumer("none", "billing").await, ErrorKind::NotFound);
    fails(broker.consumer("orders", "b/c").await, ErrorKind::Invalid);
    fails(broker.consumer("orders", "billing").max_in_flight(0).await, ErrorKind::Invalid);
    fails(broker.consumer("orders", "billing").partitions([1]).await, ErrorKind::Invalid);
    fails(broker.consumer("orders", "billing").lease(Duration::ZERO).await, ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn records_carry_key_headers_and_json() {
    let broker = with_topic(1).await;
    let producer = broker.producer("orders").await.unwrap();
    let message = Message::json(&serde_json::json!({"total": 3})).unwrap().key("k").header("h", "v");
    producer.send(message).await.unwrap();
    let mut consumer = broker.consumer("orders", "billing").await.unwrap();
    let delivery = consumer.next().await.unwrap().unwrap();
    assert_eq!(delivery.json::<HashMap<String, u64>>().unwrap()["total"], 3);
    assert_eq!(
        (delivery.key().unwrap().as_ref(), delivery.headers().get("h").unwrap().as_ref()),
        (&b"k"[..], &b"v"[..])
    );
    assert_eq!(delivery.headers().get("content-type").unwrap(), "application/json");
    delivery.ack().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_topic_of_huge_messages_is_read_to_its_end_and_then_waited_for() {
    let broker = Broker::memory();
    broker.create_topic("orders").max_payload(16 << 20).await.unwrap();
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    send(&broker, "orders", 0, 3).await;
    diary.reaches(3).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    send(&broker, "orders", 3, 5).await;
    diary.reaches(5).await;
    reader.close().await;
}
