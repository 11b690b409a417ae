//! Several consumers: fair shares, handover, crashes, zombies, groups apart.

use crate::world::{Diary, Reader, eventually, lag, send, soon, with_topic};
use firth::{Broker, GroupName, StartAt, TopicName};
use firth_engine::facet::{LeaseQuery, StartPosition};
use firth_engine::{LeaseInfo, LeaseName, Partition};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

async fn reader(broker: &Broker, who: &str, diary: &Diary) -> Reader {
    let consumer =
        broker.consumer("orders", "billing").name(who).lease(Duration::from_secs(3)).await.unwrap();
    Reader::start(consumer, who, diary)
}

async fn owns(reader: &Reader, count: usize) -> BTreeSet<u32> {
    soon(&format!("{count} partitions"), reader.handle.assigned(|owned| owned.len() == count)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_joining_member_gets_its_fair_share_within_a_second_and_a_leaving_one_gives_it_back() {
    let broker = with_topic(8).await;
    let diary = Diary::default();
    let a = reader(&broker, "a", &diary).await;
    owns(&a, 8).await;
    let start = Instant::now();
    let b = reader(&broker, "b", &diary).await;
    let of_a = owns(&a, 4).await;
    let of_b = owns(&b, 4).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(of_a.is_disjoint(&of_b));
    let c = reader(&broker, "c", &diary).await;
    owns(&c, 2).await;
    eventually("shares of 3, 3 and 2", async || {
        let counts = [&a, &b, &c].map(|reader| reader.handle.assignment().len());
        counts.iter().sum::<usize>() == 8 && counts.iter().all(|count| (2..=3).contains(count))
    })
    .await;
    let start = Instant::now();
    b.close().await;
    owns(&a, 4).await;
    owns(&c, 4).await;
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    a.close().await;
    owns(&c, 8).await;
    c.close().await;
}

#[tokio::test(start_paused = true)]
async fn joins_and_leaves_under_load_lose_nothing_repeat_nothing_and_keep_order() {
    let broker = with_topic(6).await;
    let diary = Diary::default();
    let load = {
        let broker = broker.clone();
        tokio::spawn(async move {
            for batch in 0..100 {
                send(&broker, "orders", batch * 20, batch * 20 + 20).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    let mut readers = vec![reader(&broker, "first", &diary).await];
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        readers.push(reader(&broker, &format!("r{round}"), &diary).await);
        if round % 2 == 1 {
            readers.remove(0).close().await;
        }
    }
    load.await.unwrap();
    diary.reaches(2000).await;
    for reader in readers {
        reader.close().await;
    }
    assert_eq!(
        (diary.len(), diary.numbers()),
        (2000, (0..2000).collect()),
        "graceful changes repeat nothing"
    );
    for key in 0..5 {
        let order: Vec<u64> =
            diary.payloads().iter().map(|p| p.parse().unwrap()).filter(|n| n % 5 == key).collect();
        assert!(order.is_sorted(), "key {key} left its order");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_comes_back_under_its_own_name_takes_over_at_once_and_who_shares_it_rests() {
    const LEASE: Duration = Duration::from_secs(3600);
    let broker = with_topic(4).await;
    let join = async |name: &str| {
        let consumer = broker.consumer("orders", "billing").name(name).takes_over().lease(LEASE);
        consumer.await.unwrap()
    };
    let other = join("b").await;
    let first = join("a").await;
    let owns = async |consumer: &firth::Consumer, count| {
        soon("its share", consumer.handle().assigned(|owned| owned.len() == count)).await.unwrap()
    };
    let before = owns(&first, 2).await;
    let kept = owns(&other, 2).await;
    let start = Instant::now();
    drop(first);
    let second = join("a").await;
    assert_eq!(owns(&second, 2).await, before, "what its predecessor had");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(other.handle().assignment(), kept, "nobody else is troubled");
    // Two that live claim one name: the newer one works, and when it goes the older one does.
    let third = join("a").await;
    assert_eq!(owns(&third, 2).await, before);
    owns(&second, 0).await;
    third.close().await.unwrap();
    owns(&second, 2).await;
    assert_eq!(other.handle().assignment(), kept);
    second.close().await.unwrap();
    other.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_crashed_member_is_taken_over_when_its_lease_ends_and_loses_nothing() {
    let broker = with_topic(4).await;
    let diary = Diary::default();
    let a = reader(&broker, "a", &diary).await;
    let b = reader(&broker, "b", &diary).await;
    owns(&a, 2).await;
    owns(&b, 2).await;
    send(&broker, "orders", 0, 200).await;
    diary.reaches(100).await;
    let start = Instant::now();
    b.crash().await;
    send(&broker, "orders", 200, 400).await;
    owns(&a, 4).await;
    assert!(start.elapsed() < Duration::from_millis(3300), "TTL and one look: {:?}", start.elapsed());
    eventually("everything settled", async || lag(&broker, "billing").await == 0).await;
    assert_eq!(diary.numbers(), (0..400).collect::<Vec<_>>());
    for key in 0..5 {
        // The first time that each record was handled.
        let mut seen = BTreeSet::new();
        let firsts: Vec<u64> = diary
            .payloads()
            .iter()
            .map(|p| p.parse().unwrap())
            .filter(|n| n % 5 == key && seen.insert(*n))
            .collect();
        assert!(firsts.is_sorted(), "key {key}: {firsts:?}");
    }
    a.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_is_never_lost_with_the_member_that_had_it() {
    let broker = with_topic(1).await;
    send(&broker, "orders", 0, 3).await;
    let mut first = broker.consumer("orders", "billing").lease(Duration::from_secs(3)).await.unwrap();
    first.next().await.unwrap().unwrap().ack().await.unwrap();
    let held = first.next().await.unwrap().unwrap();
    drop(first);
    let diary = Diary::default();
    let second = reader(&broker, "b", &diary).await;
    diary.reaches(2).await;
    assert_eq!(diary.payloads(), ["1", "2"]);
    assert!(held.ack().await.is_err(), "the old owner's verdict goes nowhere");
    second.close().await;
}

#[tokio::test(start_paused = true)]
async fn two_groups_know_nothing_of_each_other() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 50).await;
    let billing = Diary::default();
    let audit = Diary::default();
    let one = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &billing);
    let two = Reader::start(broker.consumer("orders", "audit").await.unwrap(), "a", &audit);
    billing.reaches(50).await;
    audit.reaches(50).await;
    one.close().await;
    send(&broker, "orders", 50, 60).await;
    audit.reaches(60).await;
    two.close().await;
    assert_eq!((billing.len(), lag(&broker, "billing").await, lag(&broker, "audit").await), (50, 10, 0));
}

#[tokio::test(start_paused = true)]
async fn one_process_can_be_a_member_twice_and_surplus_members_stand_by() {
    let broker = with_topic(1).await;
    let diary = Diary::default();
    let a = reader(&broker, "same", &diary).await;
    owns(&a, 1).await;
    let b = reader(&broker, "same", &diary).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(b.handle.assignment().is_empty(), "no partition moves without need");
    a.close().await;
    owns(&b, 1).await;
    b.close().await;
}

#[tokio::test(start_paused = true)]
async fn pinned_partitions_go_to_who_pinned_them_and_the_rest_is_shared() {
    let broker = with_topic(4).await;
    let diary = Diary::default();
    let a = reader(&broker, "a", &diary).await;
    owns(&a, 4).await;
    let consumer =
        broker.consumer("orders", "billing").partitions([1, 3]).lease(Duration::from_secs(3)).await.unwrap();
    let pinned = Reader::start(consumer, "pinned", &diary);
    assert_eq!(owns(&pinned, 2).await, [1, 3].into());
    assert_eq!(owns(&a, 2).await, [0, 2].into());
    pinned.close().await;
    owns(&a, 4).await;
    a.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_modest_member_takes_no_more_than_it_wants_and_what_waits_goes_to_who_has_room() {
    let broker = with_topic(4).await;
    let diary = Diary::default();
    let consumer = broker.consumer("orders", "billing").max_partitions(1).await.unwrap();
    let modest = Reader::start(consumer, "modest", &diary);
    owns(&modest, 1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(modest.handle.assignment().len(), 1);
    let members = broker.admin().group("orders", "billing").await.unwrap().members;
    assert_eq!(members[0].max_partitions, Some(1));
    let other = reader(&broker, "b", &diary).await;
    owns(&other, 3).await;
    other.close().await;
    assert_eq!(modest.handle.assignment().len(), 1);
    modest.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_grown_topic_is_shared_without_missing_a_message() {
    let broker = with_topic(1).await;
    let diary = Diary::default();
    let a = reader(&broker, "a", &diary).await;
    owns(&a, 1).await;
    broker.grow_topic("orders", 4).await.unwrap();
    send(&broker, "orders", 0, 100).await;
    owns(&a, 4).await;
    diary.reaches(100).await;
    a.close().await;
    assert_eq!(diary.numbers(), (0..100).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_handover_does_not_wait_for_a_reader_that_takes_nothing() {
    let broker = with_topic(2).await;
    send(&broker, "orders", 0, 20).await;
    let lazy = broker.consumer("orders", "billing").await.unwrap();
    let handle = lazy.handle();
    soon("assigned", handle.assigned(|owned| owned.len() == 2)).await;
    let diary = Diary::default();
    let start = Instant::now();
    let eager = reader(&broker, "b", &diary).await;
    owns(&eager, 1).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    eager.close().await;
    lazy.close().await.unwrap();
}

/// A consumer that cannot read its partition gives it back, so the next owner need not wait until
/// the lease runs out.
#[tokio::test(start_paused = true)]
async fn a_partition_that_cannot_be_read_is_given_back() {
    let broker = with_topic(1).await;
    let diary = Diary::default();
    let lease = Duration::from_secs(300);
    let engine = broker.engine();
    let group = GroupName::new("late").unwrap();
    let at = Partition::new(TopicName::new("orders").unwrap(), 0);
    let make = async || engine.create_group(&at, &group, StartPosition::Start, None).await.unwrap();
    let consumer =
        async || broker.consumer("orders", "late").lease(lease).start_at(StartAt::Existing).await.unwrap();
    assert!(make().await);
    let begun = Instant::now();
    let first = Reader::start(consumer().await, "first", &diary);
    owns(&first, 1).await;
    assert!(engine.delete_group(&at, &group, None).await.unwrap());
    send(&broker, "orders", 0, 10).await;
    let query = LeaseQuery::Names(vec![LeaseName::group(&at, &group)]);
    eventually("it has nothing to read by, and lets go", async || {
        !engine.leases(&query).await.unwrap().iter().any(LeaseInfo::is_held)
    })
    .await;
    assert!(make().await);
    let second = Reader::start(consumer().await, "second", &diary);
    diary.reaches(10).await;
    assert!(begun.elapsed() < lease, "{:?}", begun.elapsed());
    first.close().await;
    second.close().await;
}
