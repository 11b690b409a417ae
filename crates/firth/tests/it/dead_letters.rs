//! Dead letters: complete, per group, replayed once, to whom they belong.

use crate::world::{Diary, Reader, eventually, fails, lag, send, soon, with_topic};
use firth::{Broker, DeadId, ErrorKind, Message, Nack, Replay, Retention, RetryPolicy};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// A consumer of `group` that rejects while the switch is on.
async fn rejecting(broker: &Broker, group: &str, diary: &Diary) -> (Reader, Arc<AtomicBool>) {
    let switch = Arc::new(AtomicBool::new(true));
    let diary = diary.clone();
    let consumer = broker.consumer("orders", group).retry(RetryPolicy::never()).await.unwrap();
    let rejects = switch.clone();
    let reader = Reader::with(consumer, move |record| {
        let fail = rejects.load(SeqCst);
        if !fail {
            diary.note("a", &record);
        }
        async move { if fail { Err(Nack::retry(format!("no {}", record.text()?))) } else { Ok(()) } }
    });
    (reader, switch)
}

async fn dead(broker: &Broker) -> u64 {
    broker.dead_letters("orders").count().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_tells_everything_about_its_record() {
    let broker = with_topic(3).await;
    let producer = broker.producer("orders").await.unwrap();
    let message = Message::new("bad").key("k").header("h", "v").to_partition(2);
    let receipt = producer.send(message).await.unwrap();
    let (reader, _) = rejecting(&broker, "billing", &Diary::default()).await;
    eventually("given up", async || dead(&broker).await == 1).await;
    reader.close().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let page = broker.dead_letters("orders").list(None, 10).await.unwrap();
    let letter = &page.letters[0];
    assert_eq!(
        (letter.id.group.as_str(), letter.id.partition, Some(letter.id.id)),
        ("billing", 2, receipt.id)
    );
    assert_eq!(
        (letter.record.topic().as_str(), letter.attempts(), letter.reason.as_str()),
        ("orders", 1, "no bad")
    );
    assert_eq!((letter.record.key().unwrap().as_ref(), letter.record.text().unwrap()), (&b"k"[..], "bad"));
    assert_eq!(letter.record.headers().get("h").unwrap(), "v");
    assert!(letter.age >= Duration::from_secs(5) && page.next.is_none());
    assert_eq!(broker.dead_letters("orders").get(&letter.id).await.unwrap().reason, "no bad");
}

#[tokio::test(start_paused = true)]
async fn a_replay_reaches_only_the_group_that_failed_in_its_partition_and_only_once() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 10).await;
    let failing = Diary::default();
    let fine = Diary::default();
    let other = Reader::start(broker.consumer("orders", "audit").await.unwrap(), "a", &fine);
    let (reader, switch) = rejecting(&broker, "billing", &failing).await;
    eventually("all given up", async || dead(&broker).await == 10).await;
    fine.reaches(10).await;
    switch.store(false, SeqCst);
    assert_eq!(broker.dead_letters("orders").replay_all(Replay::Group).await.unwrap(), 10);
    assert_eq!(
        broker.dead_letters("orders").replay_all(Replay::Group).await.unwrap(),
        0,
        "replaying removes"
    );
    failing.reaches(10).await;
    eventually("settled", async || lag(&broker, "billing").await == 0).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((failing.len(), fine.len(), dead(&broker).await), (10, 10, 0));
    reader.close().await;
    other.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_replay_for_everyone_is_appended_again_with_its_origin() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 1).await;
    let failing = Diary::default();
    let fine = Diary::default();
    let other = Reader::start(broker.consumer("orders", "audit").await.unwrap(), "a", &fine);
    let (reader, switch) = rejecting(&broker, "billing", &failing).await;
    eventually("given up", async || dead(&broker).await == 1).await;
    fine.reaches(1).await;
    switch.store(false, SeqCst);
    broker.dead_letters("orders").replay_all(Replay::Everyone).await.unwrap();
    failing.reaches(1).await;
    fine.reaches(2).await;
    let records = broker.admin().browse("orders", 0, firth::RecordId::ZERO, 10).await.unwrap();
    assert_eq!(records[1].origin().unwrap().group.as_str(), "billing");
    assert_eq!(records[1].origin().unwrap().id, records[0].id());
    reader.close().await;
    other.close().await;
}

#[tokio::test(start_paused = true)]
async fn letters_are_filtered_paged_and_deleted() {
    let broker = with_topic(3).await;
    send(&broker, "orders", 0, 500).await;
    for group in ["billing", "audit"] {
        let (reader, _) = rejecting(&broker, group, &Diary::default()).await;
        eventually("all given up", async || lag(&broker, group).await == 0).await;
        reader.close().await;
    }
    let all = broker.dead_letters("orders");
    assert_eq!(all.count().await.unwrap(), 1000);
    let mut seen: Vec<DeadId> = Vec::new();
    let mut after = None;
    loop {
        let page = all.list(after.as_ref(), 70).await.unwrap();
        assert!(page.letters.len() <= 70);
        seen.extend(page.letters.into_iter().map(|letter| letter.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(seen.len() == 1000 && seen.is_sorted());
    let view = || broker.dead_letters("orders").group("billing");
    assert_eq!(view().count().await.unwrap(), 500);
    assert_eq!(view().key("key-3").count().await.unwrap(), 100);
    assert_eq!(view().reason("no 499").count().await.unwrap(), 1);
    assert_eq!(view().older_than(Duration::from_secs(3600)).count().await.unwrap(), 0);
    assert_eq!(view().key("key-3").delete_all().await.unwrap(), 100);
    assert_eq!((view().count().await.unwrap(), all.count().await.unwrap()), (400, 900));
    assert_eq!(all.delete(&seen[..1]).await.unwrap(), 1);
    fails(all.get(&seen[0]).await, ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn letters_can_be_followed_as_they_come() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 5).await;
    let (reader, _) = rejecting(&broker, "billing", &Diary::default()).await;
    let letters = broker.dead_letters("orders");
    let mut follow = letters.clone().follow();
    for round in 0..3 {
        for _ in 0..5 {
            let letter = soon("the next letter", follow.next()).await.unwrap();
            letters.delete(&[letter.id]).await.unwrap();
        }
        assert_eq!(dead(&broker).await, 0, "round {round}");
        send(&broker, "orders", 5, 10).await;
    }
    reader.close().await;
}

#[tokio::test(start_paused = true)]
async fn letters_expire_and_retention_never_takes_what_a_group_has_not_settled() {
    let broker = Broker::memory().housekeep_every(Duration::from_secs(10));
    let topic = broker.create_topic("orders").retention(Retention::For(Duration::from_secs(60)));
    topic.dead_letters_for(Duration::from_secs(600)).await.unwrap();
    let slow = broker.consumer("orders", "slow").await.unwrap();
    slow.close().await.unwrap();
    send(&broker, "orders", 0, 20).await;
    let (reader, _) = rejecting(&broker, "billing", &Diary::default()).await;
    eventually("all given up", async || dead(&broker).await == 20).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(broker.admin().topic("orders").await.unwrap().records(), 20, "the slow group needs them");
    let diary = Diary::default();
    let slow = Reader::start(broker.consumer("orders", "slow").await.unwrap(), "a", &diary);
    diary.reaches(20).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(broker.admin().topic("orders").await.unwrap().records(), 0);
    assert_eq!(dead(&broker).await, 20, "letters keep their own content");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(dead(&broker).await, 0);
    reader.close().await;
    slow.close().await;
}
