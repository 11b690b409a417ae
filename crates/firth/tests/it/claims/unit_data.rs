//! A unit's own data: in order, fenced by the claim, settled as far as it was.

use super::{TTL, grants, put_up, service};
use crate::faulty::{Fault, process};
use crate::world::{fails, soon};
use firth::claims::{Claim, OfferOwner, UnitData};
use firth::{Broker, Engine, ErrorKind, Message, Replay};
use firth_laws::faulty::Faults;
use std::time::Duration;
use tokio::time::Instant;

async fn fill(broker: &Broker, from: u32, to: u32) {
    broker.create_topic("telemetry").partitions(4).if_missing().await.unwrap();
    let producer = broker.producer("telemetry").await.unwrap();
    for n in from..to {
        producer.send(Message::new(n.to_string()).to_partition(2)).await.unwrap();
    }
    producer.close().await.unwrap();
}

async fn feed(claim: &Claim) -> UnitData {
    claim.follow("telemetry").partition(2).await.unwrap()
}

async fn read(feed: &mut UnitData, count: usize) -> Vec<u32> {
    let mut seen = Vec::new();
    for _ in 0..count {
        let record = soon("a record", feed.next()).await.unwrap().expect("the claim stands");
        seen.push(record.text().unwrap().parse().unwrap());
        feed.ack(&record).unwrap();
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn the_next_owner_goes_on_where_the_last_one_was() {
    let (broker, claims) = service();
    fill(&broker, 0, 300).await;
    put_up(&claims, 1).await;
    let mut first = claims.worker("first").ttl(TTL).await.unwrap();
    let claim = grants(&mut first, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    assert_eq!(read(&mut reader, 150).await, (0..150).collect::<Vec<_>>());
    reader.commit().await.unwrap();
    assert_eq!(read(&mut reader, 10).await, (150..160).collect::<Vec<_>>());
    drop((reader, claim, first));
    let mut second = claims.worker("second").ttl(TTL).await.unwrap();
    let claim = grants(&mut second, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    assert_eq!(
        read(&mut reader, 150).await,
        (150..300).collect::<Vec<_>>(),
        "what was not stored comes again"
    );
    let wait = tokio::spawn(async move { (read(&mut reader, 1).await, reader) });
    fill(&broker, 300, 301).await;
    let (seen, reader) = soon("the new record", wait).await.unwrap();
    assert_eq!(seen, [300]);
    reader.close().await.unwrap();
}

/// However long the engine was away, a unit's data is read on within a second of its return.
#[tokio::test(start_paused = true)]
async fn k02_a_unit_is_read_on_within_a_second_of_the_engines_return() {
    let broker = Broker::memory();
    let (ours, faults) = process(broker.engine());
    let claims = ours.claims("units");
    fill(&broker, 0, 1).await;
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(Duration::from_secs(3600)).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    assert_eq!(read(&mut reader, 1).await, [0]);
    for round in 1..10 {
        faults.set(Faults { refuse: 1.0, ..Faults::default() });
        // The last verdict waits to be stored, too.
        let reading = tokio::spawn(async move { (read(&mut reader, 1).await, reader) });
        tokio::time::sleep(Duration::from_millis(20_000 + 617 * u64::from(round))).await;
        faults.heal();
        let back = Instant::now();
        fill(&broker, round, round + 1).await;
        let (seen, next) = soon("it goes on", reading).await.unwrap();
        let took = back.elapsed();
        assert!(seen == [round] && took <= Duration::from_secs(1), "round {round}: {seen:?} {took:?}");
        reader = next;
    }
    reader.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_former_owner_settles_nothing_and_never_reads_again() {
    let (broker, claims) = service();
    fill(&broker, 0, 20).await;
    put_up(&claims, 1).await;
    let mut old = claims.worker("old").ttl(TTL).await.unwrap();
    let old_claim = grants(&mut old, 1).await.remove(0);
    let mut old_reader = feed(&old_claim).await;
    read(&mut old_reader, 5).await;
    let new = claims.worker("new").by_name_only().ttl(TTL).await.unwrap();
    let new_claim = new.handle().seize("unit-00000").await.unwrap();
    let mut new_reader = feed(&new_claim).await;
    fails(old_reader.commit().await, ErrorKind::Fenced);
    fails(old_claim.follow("telemetry").partition(2).await, ErrorKind::Fenced);
    assert_eq!(read(&mut new_reader, 20).await, (0..20).collect::<Vec<_>>());
    new_reader.commit().await.unwrap();
    soon("the loss", old_claim.lost()).await;
    assert!(old_reader.next().await.unwrap().is_none());
}

/// The owner has not heard yet that its claim was taken away: nothing that it says of it counts,
/// and it is told so.
#[tokio::test(start_paused = true)]
async fn t06_a_former_owner_neither_ends_nor_marks_a_claim() {
    let (_broker, claims) = service();
    put_up(&claims, 3).await;
    let mut old = claims.worker("old").ttl(TTL).await.unwrap();
    let held = grants(&mut old, 3).await;
    let new = claims.worker("new").by_name_only().ttl(TTL).await.unwrap();
    for claim in &held {
        let seized = new.handle().seize(claim.name()).await.unwrap();
        seized.checkpoint("of the new owner").await.unwrap();
    }
    fails(held[0].done().await, ErrorKind::Fenced);
    fails(held[1].release().await, ErrorKind::Fenced);
    fails(held[2].checkpoint("late").await, ErrorKind::Fenced);
    let offers = claims.offers(None, 9).await.unwrap();
    let owner = OfferOwner::Worker("new".to_owned());
    assert!(offers.len() == 3 && offers.iter().all(|offer| offer.owner == owner), "{offers:?}");
}

/// The step was stored, and its answer was lost: stored again it is refused, which is no failure.
#[tokio::test(start_paused = true)]
async fn t06_verdicts_whose_answer_was_lost_are_stored_once() {
    let (broker, faults) = process(&Engine::memory());
    let claims = broker.claims("devices");
    fill(&broker, 0, 3).await;
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(Duration::from_secs(600)).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    for _ in 0..2 {
        let bad = reader.next().await.unwrap().unwrap();
        reader.reject(&bad, "hopeless").unwrap();
        faults.plan("commit", Fault::LostReply);
        reader.commit().await.unwrap();
        assert!(faults.are_spent());
    }
    assert_eq!(read(&mut reader, 1).await, [2]);
    reader.close().await.unwrap();
    assert_eq!(broker.dead_letters("telemetry").count().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_feed_ends_when_its_claim_is_recalled_and_hopeless_records_are_kept_aside() {
    let (broker, claims) = service();
    fill(&broker, 0, 3).await;
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(TTL).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    let bad = reader.next().await.unwrap().unwrap();
    reader.reject(&bad, "not a number").unwrap();
    fails(reader.ack(&bad), ErrorKind::Invalid);
    assert_eq!(read(&mut reader, 2).await, [1, 2]);
    worker.handle().close();
    assert!(soon("the recall", reader.next()).await.unwrap().is_none());
    reader.close().await.unwrap();
    claim.release().await.unwrap();
    drop(claim);
    worker.close().await.unwrap();
    let letters = broker.dead_letters("telemetry").count().await.unwrap();
    assert_eq!(letters, 1);
}

#[tokio::test(start_paused = true)]
async fn too_many_unsettled_records_are_an_error_and_not_a_hang() {
    let (broker, claims) = service();
    fill(&broker, 0, 1002).await;
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(Duration::from_secs(600)).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    let mut open = Vec::new();
    for _ in 0..1000 {
        open.push(reader.next().await.unwrap().unwrap());
    }
    fails(reader.next().await, ErrorKind::Invalid);
    for record in &open {
        reader.ack(record).unwrap();
    }
    assert_eq!(read(&mut reader, 2).await, [1000, 1001]);
}

/// Verdicts that a cancelled read was about to store are stored by the next.
#[tokio::test(start_paused = true)]
async fn whoever_stops_waiting_for_a_record_loses_no_verdict() {
    let engine = Engine::memory();
    let (broker, faults) = process(&engine);
    let claims = broker.claims("devices");
    fill(&broker, 0, 1).await;
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(Duration::from_secs(600)).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    let bad = reader.next().await.unwrap().unwrap();
    assert!(reader.try_next().await.unwrap().is_none());
    reader.reject(&bad, "hopeless").unwrap();
    faults.cut();
    let waited = tokio::time::timeout(Duration::from_millis(1), reader.commit()).await;
    assert!(waited.is_err(), "{waited:?}");
    faults.heal();
    reader.close().await.unwrap();
    assert_eq!(broker.dead_letters("telemetry").count().await.unwrap(), 1);
}

/// Delayed, compressed and replayed records come as they come to a group; a lost answer costs none
/// of them.
#[tokio::test(start_paused = true)]
async fn a_feed_brings_what_was_delayed_compressed_or_replayed() {
    let engine = Engine::memory();
    let (broker, faults) = process(&engine);
    let claims = broker.claims("devices");
    fill(&broker, 0, 1).await;
    put_up(&claims, 1).await;
    let producer = broker.producer("telemetry").compress_above(10).await.unwrap();
    producer.send(Message::new("7".repeat(1000)).to_partition(2)).await.unwrap();
    let later = Message::new("later").to_partition(2).deliver_after(Duration::from_secs(30));
    producer.send(later).await.unwrap();
    let mut worker = claims.worker("w").ttl(Duration::from_secs(600)).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    let mut reader = feed(&claim).await;
    let bad = reader.next().await.unwrap().unwrap();
    reader.reject(&bad, "hopeless").unwrap();
    let large = reader.next().await.unwrap().unwrap();
    assert_eq!(large.payload().len(), 1000);
    reader.ack(&large).unwrap();
    let delayed = soon("the delayed one", reader.next()).await.unwrap().unwrap();
    assert_eq!(delayed.text().unwrap(), "later");
    reader.ack(&delayed).unwrap();
    reader.commit().await.unwrap();
    faults.plan("due", Fault::LostReply);
    assert_eq!(broker.dead_letters("telemetry").replay_all(Replay::Group).await.unwrap(), 1);
    let again = soon("the replayed one", reader.next()).await.unwrap().unwrap();
    assert_eq!((again.id(), again.text().unwrap()), (bad.id(), "0"));
    assert!(faults.are_spent());
    reader.ack(&again).unwrap();
    reader.close().await.unwrap();
    let group = broker.admin().group("telemetry", "claims.devices").await.unwrap();
    assert_eq!((group.lag(), group.due(), group.dead()), (0, 0, 0));
}
