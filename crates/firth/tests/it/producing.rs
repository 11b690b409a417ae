//! Producers: order, batches, back pressure, delays, idempotence.

use crate::engines::Pair;
use crate::faulty::{Fault, process};
use crate::world::{eventually, fails, on_files, payloads};
use firth::{BatchPolicy, Broker, ErrorKind, Message, RoundRobin};
use firth_engine::facet::{Append, ProducerSeq};
use firth_engine::limits::MAX_PRODUCERS;
use firth_engine::{Content, Partition, ProducerName, TopicName};
use std::time::Duration;
use tokio::time::Instant;

async fn broker(partitions: u32) -> Broker {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(partitions).await.unwrap();
    broker
}

#[tokio::test]
async fn messages_of_one_key_share_a_partition_in_order() {
    let broker = broker(8).await;
    let producer = broker.producer("orders").await.unwrap();
    let sent = (0..100).map(|n| Message::new(n.to_string()).key("customer-42"));
    let receipts = producer.send_all(sent).await.unwrap();
    let partition = receipts[0].partition;
    assert!(receipts.windows(2).all(|pair| pair[0].partition == partition && pair[0].id < pair[1].id));
    let expected: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(payloads(broker.engine(), "orders", partition).await, expected);
}

#[tokio::test]
async fn partitions_can_be_chosen_by_hand_by_turns_and_by_own_rule() {
    let broker = broker(3).await;
    let producer = broker.producer("orders").await.unwrap();
    let by_hand = producer.send(Message::new("x").key("k").to_partition(2)).await.unwrap();
    assert_eq!(by_hand.partition, 2);
    fails(producer.send(Message::new("x").to_partition(3)).await, ErrorKind::Invalid);
    let in_turn = broker.producer("orders").partitioner(RoundRobin::default()).await.unwrap();
    let receipts = in_turn.send_all((0..6).map(|_| Message::new("x").key("same"))).await.unwrap();
    assert_eq!(receipts.iter().map(|r| r.partition).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    let last = broker.producer("orders").partitioner(|_: &Message, n: u32| n - 1).await.unwrap();
    assert_eq!(last.send("x").await.unwrap().partition, 2);
}

#[tokio::test(start_paused = true)]
async fn a_batch_lingers_for_company_and_flush_ends_the_wait() {
    let broker = broker(1).await;
    let producer = broker.producer("orders").linger(Duration::from_secs(5)).await.unwrap();
    let start = Instant::now();
    let first = producer.enqueue("a").await.unwrap();
    let second = producer.enqueue("b").await.unwrap();
    producer.flush().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let first = first.await.unwrap().id.unwrap();
    let second = second.await.unwrap().id.unwrap();
    assert_eq!(second, first.plus(1), "one batch, one append");
    producer.send("c").await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_full_producer_pushes_back_and_loses_nothing() {
    let broker = broker(1).await;
    let producer = broker.producer("orders").linger(Duration::from_secs(1)).max_buffered(4096).await.unwrap();
    let mut pending = Vec::new();
    let refused = loop {
        match producer.try_enqueue(vec![b'x'; 700]) {
            Ok(sending) => pending.push(sending),
            Err(error) => break error,
        }
    };
    assert_eq!((refused.kind(), pending.len()), (ErrorKind::Overloaded, 4));
    let start = Instant::now();
    pending.push(producer.enqueue(vec![b'y'; 700]).await.unwrap());
    assert!(start.elapsed() >= Duration::from_secs(1), "it waited for room");
    producer.flush().await.unwrap();
    for sending in pending {
        sending.await.unwrap();
    }
    assert_eq!(payloads(broker.engine(), "orders", 0).await.len(), 5);
}

#[tokio::test]
async fn closing_sends_what_was_enqueued_and_refuses_what_comes_later() {
    let broker = broker(1).await;
    let producer = broker.producer("orders").linger(Duration::from_secs(60)).await.unwrap();
    let sending = producer.enqueue("last").await.unwrap();
    let other = producer.clone();
    producer.close().await.unwrap();
    assert!(sending.await.is_ok());
    fails(other.send("late").await, ErrorKind::Closed);
}

#[tokio::test]
async fn dropping_the_last_handle_still_sends_what_was_enqueued() {
    let broker = broker(1).await;
    let producer = broker.producer("orders").linger(Duration::from_secs(60)).await.unwrap();
    let sending = producer.enqueue("last").await.unwrap();
    drop(producer);
    sending.await.unwrap();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["last"]);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_message_has_no_place_before_its_time() {
    let broker = broker(1).await;
    let producer = broker.producer("orders").await.unwrap();
    let receipt = producer.send(Message::new("later").deliver_after(Duration::from_secs(30))).await.unwrap();
    assert_eq!(receipt.id, None);
    producer.send("now").await.unwrap();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["now"]);
}

#[tokio::test]
async fn limits_are_enforced_with_clear_errors() {
    let broker = Broker::memory();
    broker.create_topic("small").max_payload(10).await.unwrap();
    let producer = broker.producer("small").await.unwrap();
    let error = producer.send("more than ten bytes").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.context().contains("at most 10") && !error.context().contains("more than ten"), "{error}");
    fails(producer.send(Message::new("x").header("", "empty name")).await, ErrorKind::Invalid);
}

#[tokio::test]
async fn batches_reach_the_disk_whole_and_in_order() {
    let (broker, _dir) = on_files().await;
    broker.create_topic("orders").await.unwrap();
    let batch = BatchPolicy { max_records: 50, ..BatchPolicy::default() };
    let producer = broker.producer("orders").batch(batch).idempotent().name("checkout").await.unwrap();
    producer.send_all((0..500).map(|n| n.to_string())).await.unwrap();
    let expected: Vec<_> = (0..500).map(|n| n.to_string()).collect();
    assert_eq!(payloads(broker.engine(), "orders", 0).await, expected);
    producer.close().await.unwrap();
    broker.close().await.unwrap();
}

fn request() -> Vec<Message> {
    let keyed = (0..5).map(|n| Message::new(format!("k{n}")).key(format!("key-{n}")));
    let plain = (0..1500).map(|n| Message::new(format!("p{n}")));
    keyed.chain(plain).collect()
}

#[tokio::test]
async fn what_is_sent_again_under_its_name_is_there_once_also_after_a_restart() {
    let (broker, dir) = on_files().await;
    broker.create_topic("orders").partitions(3).await.unwrap();
    let first = broker.producer("orders").await.unwrap().send_once("request-1", request()).await.unwrap();
    let again = broker.producer("orders").await.unwrap().send_once("request-1", request()).await.unwrap();
    broker.close().await.unwrap();
    let broker = Broker::open(dir.path()).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    let after_restart = producer.send_once("request-1", request()).await.unwrap();
    for repeated in [again, after_restart] {
        assert!(repeated.iter().all(|receipt| receipt.duplicate));
        let place = |receipt: &firth::Receipt| (receipt.partition, receipt.id);
        assert!(repeated.iter().map(place).eq(first.iter().map(place)));
    }
    assert_eq!(broker.admin().topic("orders").await.unwrap().records(), 1505);
    producer.send_once("request-2", request()).await.unwrap();
    assert_eq!(broker.admin().topic("orders").await.unwrap().records(), 3010);
    fails(producer.send_once("not a name", ["x"]).await, ErrorKind::Invalid);
    broker.close().await.unwrap();
}

/// Names that are used once do not push out the name of a producer that goes on.
async fn q13_a_producers_name_outlives_names_that_are_used_once(pair: Pair) {
    pair.first.create_topic("orders").await.unwrap();
    let engine = pair.first.engine();
    let at = Partition::new(TopicName::new("orders").unwrap(), 0);
    let batch = |name: &str, keep| {
        let name = ProducerName::new(name).unwrap();
        Append { producer: Some(ProducerSeq { name, first: 0, keep }), ..Append::new([Content::new("x")]) }
    };
    let kept = batch("lasting", Duration::from_secs(600));
    engine.append(&at, kept.clone()).await.unwrap();
    engine.append(&at, batch("once", Duration::ZERO)).await.unwrap();
    for page in 0..10 {
        let mut others = tokio::task::JoinSet::new();
        for n in 0..MAX_PRODUCERS / 10 {
            let request = batch(&format!("request-{page}-{n}"), Duration::ZERO);
            let engine = engine.clone();
            let at = at.clone();
            others.spawn(async move { engine.append(&at, request).await.unwrap() });
        }
        others.join_all().await;
    }
    assert!(engine.append(&at, kept).await.unwrap().duplicate, "it is still known");
    let again = engine.append(&at, batch("once", Duration::ZERO)).await.unwrap();
    assert!(!again.duplicate, "a name that was used once is forgotten");
}

#[test]
fn q13_in_memory() {
    crate::engines::in_memory(q13_a_producers_name_outlives_names_that_are_used_once);
}

#[test]
fn q13_on_redis() {
    crate::engines::on_redis(q13_a_producers_name_outlives_names_that_are_used_once);
}

#[tokio::test(start_paused = true)]
async fn q13_a_batch_that_is_tried_again_is_known_whatever_came_in_between() {
    let broker = broker(1).await;
    let (ours, faults) = process(broker.engine());
    let producer = ours.producer("orders").idempotent().await.unwrap();
    faults.plan("append", Fault::LostReply);
    let sending = tokio::spawn(async move { producer.send("once").await });
    eventually("it was tried once", async || faults.count("append") == 1).await;
    faults.hold_up("append");
    let at = Partition::new(TopicName::new("orders").unwrap(), 0);
    for n in 0..=MAX_PRODUCERS {
        let name = ProducerName::new(format!("request-{n}")).unwrap();
        let producer = Some(ProducerSeq { name, first: 0, keep: Duration::ZERO });
        let request = Append { producer, ..Append::new([Content::new("x")]) };
        broker.engine().append(&at, request).await.unwrap();
    }
    faults.heal();
    assert!(sending.await.unwrap().unwrap().duplicate, "the second try is recognised");
}
