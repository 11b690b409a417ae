//! Retention: at any interval, and even if one topic cannot be read.

use crate::engines::{Pair, on_every_engine};
use crate::faulty::process;
use crate::world::{fails, payloads, send};
use firth::{Broker, ErrorKind, Message, Retention};
use firth_engine::facet::{EntryKey, Expect};
use firth_engine::{Partition, SpaceName, TopicName};
use firth_laws::faulty::Faults;
use std::time::Duration;

on_every_engine! {
    t_a_batch_that_is_sent_again_is_there_once
}

#[tokio::test(start_paused = true)]
async fn q11_retention_runs_however_rarely_it_is_wanted() {
    for hours in [9, 30, 24 * 365] {
        let broker = Broker::memory().housekeep_every(Duration::from_secs(hours * 3600));
        broker.create_topic("orders").retention(Retention::Newest(3)).await.unwrap();
        send(&broker, "orders", 0, 10).await;
        tokio::time::sleep(Duration::from_secs(hours * 3600 + 1)).await;
        assert_eq!(payloads(broker.engine(), "orders", 0).await, ["7", "8", "9"], "every {hours} h");
        send(&broker, "orders", 10, 12).await;
        tokio::time::sleep(Duration::from_secs(hours * 3600)).await;
        assert_eq!(payloads(broker.engine(), "orders", 0).await, ["9", "10", "11"], "the next time");
    }
}

#[tokio::test(start_paused = true)]
async fn q11_a_topic_that_cannot_be_read_does_not_hold_up_retention_of_others() {
    let broker = Broker::memory();
    for topic in ["broken", "orders"] {
        broker.create_topic(topic).retention(Retention::Newest(3)).await.unwrap();
        send(&broker, topic, 0, 10).await;
    }
    let entry = |name: &str| EntryKey::new(SpaceName::new("topics").unwrap(), name).unwrap();
    broker.engine().put(&entry("aaa"), "not a topic".into(), Expect::Any).await.unwrap();
    broker.engine().delete_partition(&Partition::new(TopicName::new("broken").unwrap(), 0)).await.unwrap();
    fails(broker.housekeep().await, ErrorKind::Corrupt);
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["7", "8", "9"]);
}

/// The second line of defence behind the laws of the log: a producer over bad connections, on each
/// engine.
async fn t_a_batch_that_is_sent_again_is_there_once(pair: Pair) {
    pair.first.create_topic("orders").await.unwrap();
    let (ours, faults) = process(pair.first.engine());
    let producer = ours.producer("orders").idempotent().await.unwrap();
    faults.set(Faults { seed: 7, refuse: 0.2, lose_answer: 0.4, ..Faults::default() });
    let mut repeated = 0;
    for n in 0..30 {
        let batch = (0..3).map(|part| Message::new(format!("{n}-{part}")));
        let receipts = producer.send_all(batch).await.unwrap();
        repeated += receipts.iter().filter(|receipt| receipt.duplicate).count();
    }
    assert!(repeated > 0, "some batches were sent again");
    faults.heal();
    let expected: Vec<String> = (0..30).flat_map(|n| (0..3).map(move |part| format!("{n}-{part}"))).collect();
    assert_eq!(payloads(pair.second.engine(), "orders", 0).await, expected);
}
