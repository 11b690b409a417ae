//! What a topic and its members can be told to do, on every engine: compress, keep by size,
//! acknowledge as asked, judge a batch one by one, mend a dead letter.

use crate::engines::{Pair, on_every_engine};
use crate::world::{Diary, Reader, eventually, fails, lag, soon};
use firth::{Broker, Durability, ErrorKind, Limits, Message, Nack, RecordId, Replay, Retention, RetryPolicy};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

on_every_engine!(
    compressed_payloads_are_plain_for_everyone_and_small_where_they_lie
    a_payload_that_cannot_be_opened_is_a_dead_letter
    retention_by_size_keeps_what_fits_and_what_a_group_needs
    a_producer_gets_the_acknowledgement_that_it_asks_for_or_is_refused
    each_record_of_a_batch_has_its_own_verdict
    an_edited_letter_comes_back_in_one_step_to_its_group_or_to_everyone
    a_record_tells_all_that_is_known_of_its_message
);

/// Rejects everything whose payload is not `mended`.
async fn rejecting(broker: &Broker, group: &str, diary: &Diary) -> Reader {
    let consumer = broker.consumer("orders", group).await.unwrap();
    let diary = diary.clone();
    Reader::with(consumer, move |record| {
        let mended = record.payload() == "mended";
        if mended {
            diary.note("a", &record);
        }
        async move { if mended { Ok(()) } else { Err(Nack::reject("no")) } }
    })
}

async fn compressed_payloads_are_plain_for_everyone_and_small_where_they_lie(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").await.unwrap();
    let producer = broker.producer("orders").compress_above(1000).await.unwrap();
    let long = "to be or not to be ".repeat(5000);
    for payload in ["short", long.as_str()] {
        producer.send(Message::new(payload.to_owned()).key("k").header("h", "v")).await.unwrap();
    }
    let at = broker.topic("orders").await.unwrap().partitions().next().unwrap();
    let stored =
        broker.engine().read(&at, RecordId::ZERO, firth_engine::facet::ReadLimit::records(9)).await.unwrap();
    assert_eq!(stored[0].content.payload, "short");
    assert!(stored[1].content.payload.len() < long.len() / 20, "{}", stored[1].content.payload.len());

    let shown = broker.admin().browse("orders", 0, RecordId::ZERO, 9).await.unwrap();
    assert_eq!(shown[1].text().unwrap(), long);
    let mut consumer = pair.second.consumer("orders", "billing").await.unwrap();
    soon("short", consumer.next()).await.unwrap().unwrap().ack().await.unwrap();
    let delivery = soon("long", consumer.next()).await.unwrap().unwrap();
    assert_eq!((delivery.text().unwrap(), delivery.headers().len()), (long.as_str(), 1));
    delivery.nack(Nack::retry_after(Duration::from_millis(1), "again")).await.unwrap();
    let delivery = soon("again", consumer.next()).await.unwrap().unwrap();
    assert_eq!((delivery.text().unwrap(), delivery.attempt()), (long.as_str(), 2));
    delivery.reject("hopeless").await.unwrap();
    let letters = broker.dead_letters("orders").list(None, 9).await.unwrap().letters;
    assert_eq!((letters.len(), letters[0].record.text().unwrap()), (1, long.as_str()));
    assert_eq!(broker.dead_letters("orders").replay_all(Replay::Everyone).await.unwrap(), 1);
    let delivery = soon("replayed", consumer.next()).await.unwrap().unwrap();
    assert_eq!(delivery.text().unwrap(), long);
    delivery.ack().await.unwrap();
    consumer.close().await.unwrap();
}

async fn a_payload_that_cannot_be_opened_is_a_dead_letter(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").await.unwrap();
    let at = broker.topic("orders").await.unwrap().partitions().next().unwrap();
    let bad = firth_engine::Content {
        encoding: firth_engine::Encoding::Lz4,
        ..firth_engine::Content::new(vec![255, 255, 255, 255, 1, 2, 3])
    };
    let good = firth_engine::Content::new("good");
    broker.engine().append(&at, firth_engine::facet::Append::new([bad, good])).await.unwrap();
    let mut consumer = broker.consumer("orders", "billing").await.unwrap();
    let delivery = soon("the good one", consumer.next()).await.unwrap().unwrap();
    assert_eq!(delivery.text().unwrap(), "good");
    delivery.ack().await.unwrap();
    let letters = broker.dead_letters("orders").list(None, 9).await.unwrap().letters;
    assert_eq!(letters.len(), 1);
    assert!(letters[0].reason.contains("compressed payload"), "{}", letters[0].reason);
    consumer.close().await.unwrap();
}

async fn retention_by_size_keeps_what_fits_and_what_a_group_needs(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").retention(Retention::Bytes(20_000)).await.unwrap();
    broker.admin().create_group("orders", "slow", firth::StartAt::Oldest).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    producer.send_all((0..100).map(|n| Message::new(format!("{n:01000}")))).await.unwrap();
    let swept = broker.housekeep().await.unwrap();
    assert_eq!((swept.records, swept.held_back), (0, 1), "the slow group needs them");
    let diary = Diary::default();
    let reader = Reader::start(pair.second.consumer("orders", "slow").await.unwrap(), "a", &diary);
    diary.reaches(100).await;
    eventually("settled", async || lag(&broker, "slow").await == 0).await;
    reader.close().await;
    assert_eq!(broker.housekeep().await.unwrap().records, 81);
    let kept = broker.admin().browse("orders", 0, RecordId::ZERO, 100).await.unwrap();
    assert_eq!((kept.len(), kept[0].text().unwrap()), (19, format!("{:01000}", 81).as_str()));
    let limits = Limits { records: Some(30), bytes: Some(5000), ..Limits::default() };
    broker.alter_topic("orders", |config| config.retention = Retention::Within(limits)).await.unwrap();
    assert_eq!(broker.housekeep().await.unwrap().records, 15);
    let stored = serde_json::to_string(&broker.topic("orders").await.unwrap().config).unwrap();
    assert!(stored.contains(r#""within":{"age":null,"records":30,"bytes":5000}"#), "{stored}");
}

async fn a_producer_gets_the_acknowledgement_that_it_asks_for_or_is_refused(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").await.unwrap();
    let engine = format!("{:?}", broker.engine());
    for durability in [Durability::Fast, Durability::Synced, Durability::Replicated(1)] {
        let is_offered = match durability {
            Durability::Fast => true,
            Durability::Synced => engine.contains("file:"),
            Durability::Replicated(_) => false,
        };
        match broker.producer("orders").durability(durability).await {
            Ok(producer) => {
                assert!(is_offered, "{durability} on {engine}");
                producer.send("x").await.unwrap();
                producer.close().await.unwrap();
            }
            Err(error) => {
                assert!(!is_offered, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.context().contains(&durability.to_string()), "{error}");
            }
        }
    }
}

async fn each_record_of_a_batch_has_its_own_verdict(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    producer.send_all((0..30).map(|n| Message::new(n.to_string()))).await.unwrap();
    let retry = RetryPolicy::fixed(3, Duration::from_millis(20));
    let consumer = broker.consumer("orders", "billing").retry(retry).await.unwrap();
    let handle = consumer.handle();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let run = {
        let seen = seen.clone();
        consumer.run_batches_each(10, move |records| {
            let seen = seen.clone();
            async move {
                let judge = |record: &firth::Record| {
                    let number: u64 = record.text()?.parse()?;
                    seen.lock().unwrap().push((number, record.attempt()));
                    match number % 10 {
                        3 => Err(Nack::reject("unlucky")),
                        5 if record.attempt() == 1 => Err(Nack::retry("not yet")),
                        _ => Ok(()),
                    }
                };
                let mut verdicts: Vec<_> = records.iter().map(judge).collect();
                // One verdict short, once: the last record counts as failed.
                if records.len() == 10 && records[9].attempt() == 1 {
                    verdicts.pop();
                }
                verdicts
            }
        })
    };
    let task = tokio::spawn(run.into_future());
    eventually("all settled", async || lag(&broker, "billing").await == 0).await;
    handle.close();
    soon("closed", task).await.unwrap().unwrap();
    let letters = broker.dead_letters("orders").list(None, 9).await.unwrap().letters;
    let mut dead: Vec<_> = letters.iter().map(|letter| letter.record.text().unwrap().to_owned()).collect();
    dead.sort();
    assert_eq!(dead, ["13", "23", "3"]);
    let seen = seen.lock().unwrap();
    let attempts = |number: u64| seen.iter().filter(|(n, _)| *n == number).count();
    assert_eq!((attempts(5), attempts(15), attempts(25)), (2, 2, 2));
    assert!((0..30).all(|n| attempts(n) <= 2) && (0..30).all(|n| n % 10 != 4 || attempts(n) == 1));
}

async fn an_edited_letter_comes_back_in_one_step_to_its_group_or_to_everyone(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").partitions(2).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    let typos = (0..2).map(|_| Message::new("typo").key("k").to_partition(1));
    producer.send_all(typos).await.unwrap();
    let diary = Diary::default();
    let other = Diary::default();
    let reader = rejecting(&broker, "billing", &diary).await;
    let witness = Reader::start(pair.second.consumer("orders", "audit").await.unwrap(), "a", &other);
    let letters = broker.dead_letters("orders").group("billing");
    eventually("given up", async || letters.count().await.unwrap() == 2).await;
    other.reaches(2).await;
    let ids: Vec<_> =
        letters.list(None, 9).await.unwrap().letters.into_iter().map(|letter| letter.id).collect();
    let mended = || Message::new("mended").key("k");
    let late = mended().deliver_after(Duration::from_secs(1));
    fails(letters.edit_and_replay(&ids[0], late, Replay::Group).await, ErrorKind::Invalid);
    fails(
        letters.edit_and_replay(&ids[0], mended().to_partition(0), Replay::Group).await,
        ErrorKind::Invalid,
    );
    let huge = Message::new(vec![0; 2 << 20]);
    fails(letters.edit_and_replay(&ids[0], huge, Replay::Group).await, ErrorKind::Invalid);

    letters.edit_and_replay(&ids[0], mended(), Replay::Group).await.unwrap();
    diary.reaches(1).await;
    fails(letters.edit_and_replay(&ids[0], mended(), Replay::Group).await, ErrorKind::NotFound);
    letters.edit_and_replay(&ids[1], mended(), Replay::Everyone).await.unwrap();
    diary.reaches(2).await;
    other.reaches(3).await;
    assert_eq!((diary.len(), letters.count().await.unwrap()), (2, 0));
    assert_eq!(
        other.payloads(),
        ["typo", "typo", "mended"],
        "the other group saw only what went to everyone"
    );
    reader.close().await;
    witness.close().await;
}

async fn a_record_tells_all_that_is_known_of_its_message(pair: Pair) {
    let broker = pair.first;
    broker.create_topic("orders").partitions(3).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    let message = Message::new("paid").key("ada").header("a", "1").header("b", "x").header("a", "2");
    let begun = SystemTime::now() - Duration::from_millis(1);
    let receipt = producer.send(message.to_partition(2)).await.unwrap();
    let ended = SystemTime::now();
    let place = (2, receipt.id.unwrap());
    let mut consumer = pair.second.consumer("orders", "billing").await.unwrap();
    let letters = broker.dead_letters("orders");
    // Attempt by attempt, then replayed to its group, then twice to everyone.
    for (round, attempt) in [1, 2, 1, 1, 1].into_iter().enumerate() {
        let delivery = soon("the record", consumer.next()).await.unwrap().unwrap();
        assert_eq!((delivery.topic().as_str(), delivery.partition()), ("orders", 2));
        assert_eq!((delivery.key().unwrap().as_ref(), delivery.text().unwrap()), (&b"ada"[..], "paid"));
        let headers: Vec<_> = delivery.headers().iter().map(|(name, value)| (name, value.to_vec())).collect();
        let expected = [("a", "1"), ("b", "x"), ("a", "2")];
        assert!(
            headers
                .iter()
                .map(|(name, value)| (name.as_str(), &value[..]))
                .eq(expected.iter().map(|(name, value)| (*name, value.as_bytes())))
        );
        assert!((begun..=ended).contains(&delivery.sent_at()), "round {round}: {:?}", delivery.sent_at());
        assert_eq!((delivery.attempt(), delivery.crashes(), delivery.original()), (attempt, 0, place));
        assert_eq!(delivery.id() == place.1, round < 3, "a replay for everyone has a place of its own");
        let origin = delivery.origin().map(|origin| (origin.at.index, origin.id, origin.group.as_str()));
        assert_eq!(origin, (round >= 3).then_some((place.0, place.1, "billing")));
        let to = if round < 2 { Replay::Group } else { Replay::Everyone };
        match round {
            0 => delivery.nack(Nack::retry_after(Duration::from_millis(1), "again")).await.unwrap(),
            4 => delivery.ack().await.unwrap(),
            _ => {
                delivery.reject("no").await.unwrap();
                assert_eq!(letters.replay_all(to).await.unwrap(), 1);
            }
        }
    }
    assert_eq!(lag(&broker, "billing").await, 0);
    consumer.close().await.unwrap();
}
