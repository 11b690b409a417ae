//! Topics: made once, grown, altered, deleted for good.

use crate::faulty::process;
use crate::world::{Diary, Reader, eventually, fails, on_files, payloads, send, soon, with_topic};
use firth::{AutoCreate, Broker, Engine, ErrorKind, Message, Retention, StartAt, TopicConfig};
use firth_engine::{GroupName, Partition, TopicName};
use firth_laws::faulty::{Faults, Faulty};
use std::time::Duration;

#[tokio::test]
async fn a_topic_is_created_once_and_if_missing_answers_the_one_that_is_there() {
    let broker = Broker::memory();
    let made = broker.create_topic("orders").partitions(8).await.unwrap();
    assert_eq!(made.config.partitions, 8);
    fails(broker.create_topic("orders").await, ErrorKind::AlreadyExists);
    let found = broker.create_topic("orders").partitions(3).if_missing().await.unwrap();
    assert_eq!(found, made);
    assert_eq!(broker.list_topics().await.unwrap(), [made]);
}

#[tokio::test]
async fn nonsense_is_refused_by_name() {
    let broker = Broker::memory();
    fails(broker.create_topic("a/b").await, ErrorKind::Invalid);
    fails(broker.create_topic("a").partitions(0).await, ErrorKind::Invalid);
    fails(broker.create_topic("a").max_payload(1 << 30).await, ErrorKind::Invalid);
    fails(broker.topic("a").await, ErrorKind::NotFound);
    fails(broker.producer("a").await, ErrorKind::NotFound);
    fails(broker.grow_topic("a", 2).await, ErrorKind::NotFound);
    assert!(!broker.delete_topic("a").await.unwrap());
}

#[tokio::test]
async fn missing_topics_are_created_only_if_the_policy_says_so() {
    let broker = Broker::memory();
    let generous = broker.auto_create(TopicConfig { partitions: 4, ..TopicConfig::default() });
    generous.producer("orders").await.unwrap();
    assert_eq!(broker.topic("orders").await.unwrap().config.partitions, 4);
}

#[tokio::test]
async fn missing_topics_are_created_up_to_a_bound_and_told() {
    let broker = Broker::memory();
    broker.create_topic("by-hand").await.unwrap();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = {
        let told = told.clone();
        move |topic: &firth::TopicInfo| told.lock().unwrap().push(topic.name.to_string())
    };
    let generous = broker.auto_create(AutoCreate::like(TopicConfig::default()).at_most(3).tell(tell));
    generous.producer("one").await.unwrap();
    generous.consumer("two", "g").await.unwrap().close().await.unwrap();
    let error = generous.producer("three").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("at most 3"), "{error}");
    generous.producer("two").await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["one", "two"]);
    broker.delete_topic("one").await.unwrap();
    generous.producer("three").await.unwrap();
}

#[tokio::test]
async fn growing_keeps_keys_or_moves_them_to_a_new_partition_and_running_producers_notice() {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(4).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    let messages = || keys.iter().map(|key| Message::new("x").key(key.clone()));
    let before = producer.send_all(messages()).await.unwrap();
    broker.grow_topic("orders", 6).await.unwrap();
    crate::world::eventually("the producer sees it", async || producer.partitions() == 6).await;
    let after = producer.send_all(messages()).await.unwrap();
    let moved = before.iter().zip(&after).filter(|(old, new)| old.partition != new.partition);
    let moved: Vec<_> = moved.map(|(_, new)| new.partition).collect();
    assert!((30..100).contains(&moved.len()), "{}", moved.len());
    assert!(moved.iter().all(|partition| *partition >= 4));
    fails(broker.grow_topic("orders", 5).await, ErrorKind::Invalid);
}

#[tokio::test]
async fn a_deleted_topic_is_gone_with_its_records_and_a_late_producer_does_not_bring_it_back() {
    let broker = Broker::memory();
    broker.create_topic("orders").await.unwrap();
    let late = broker.producer("orders").await.unwrap();
    late.send("old").await.unwrap();
    assert!(broker.delete_topic("orders").await.unwrap());
    fails(late.send("late").await, ErrorKind::NotFound);
    fails(broker.topic("orders").await, ErrorKind::NotFound);
    broker.create_topic("orders").await.unwrap();
    assert!(payloads(broker.engine(), "orders", 0).await.is_empty());
}

#[tokio::test]
async fn what_is_fixed_for_a_topics_life_cannot_be_altered() {
    let broker = Broker::memory();
    broker.create_topic("orders").await.unwrap();
    let week = Retention::For(Duration::from_secs(7 * 86_400));
    let altered = broker.alter_topic("orders", |config| config.retention = week).await.unwrap();
    assert_eq!(altered.config.retention, week);
    fails(broker.alter_topic("orders", |config| config.partitions = 2).await, ErrorKind::Invalid);
}

#[tokio::test]
async fn topics_and_messages_survive_a_restart() {
    let (broker, dir) = on_files().await;
    broker.create_topic("orders").partitions(2).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    producer.send(Message::new("kept").to_partition(1)).await.unwrap();
    producer.close().await.unwrap();
    broker.close().await.unwrap();
    let broker = Broker::open(dir.path()).await.unwrap();
    assert_eq!(broker.topic("orders").await.unwrap().config.partitions, 2);
    assert_eq!(payloads(broker.engine(), "orders", 1).await, ["kept"]);
    broker.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn retention_removes_in_time_what_no_group_needs() {
    let broker = Broker::memory().housekeep_every(Duration::from_secs(1));
    broker.create_topic("orders").retention(Retention::Newest(3)).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    producer.send_all((0..10).map(|n| n.to_string())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(payloads(broker.engine(), "orders", 0).await, ["7", "8", "9"]);
}

/// Partitions of a growth that died half way have groups, but no topic: they go with the topic of
/// their name.
#[tokio::test]
async fn what_a_crash_left_of_growing_is_deleted_with_the_topic() {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(2).await.unwrap();
    broker.consumer("orders", "billing").await.unwrap().close().await.unwrap();
    let (dying, faults) = crate::faulty::process(broker.engine());
    faults.plan("create_group", crate::faulty::Fault::LostReply);
    dying.grow_topic("orders", 4).await.unwrap_err();
    assert!(faults.are_spent());
    assert_eq!(broker.topic("orders").await.unwrap().config.partitions, 2);
    broker.alter_topic("orders", |config| config.lossy = true).await.unwrap();
    assert!(broker.delete_topic("orders").await.unwrap());
    broker.create_topic("orders").partitions(4).await.unwrap();
    assert!(broker.admin().groups("orders").await.unwrap().is_empty(), "a group came back to life");
    assert_eq!(broker.grow_topic("orders", 6).await.unwrap().config.partitions, 6);
}

/// A process that does one thing at a time.
fn slow_process(engine: &Engine) -> (Broker, Faulty) {
    let (broker, faults) = process(engine);
    faults.set(Faults { delay: Duration::from_millis(5), ..Faults::default() });
    (broker, faults)
}

/// Lets it fall asleep when it has begun with the first partition.
async fn fall_asleep(faults: &Faulty, step: &str) {
    while faults.count(step) == 0 {
        tokio::task::yield_now().await;
    }
    faults.cut();
}

/// A topic with a record in each of its three partitions.
async fn fill(broker: &Broker) {
    let producer = broker.producer("orders").await.unwrap();
    for partition in 0..3 {
        producer.send(Message::new("new").to_partition(partition)).await.unwrap();
    }
}

async fn is_filled(broker: &Broker) {
    for partition in 0..3 {
        assert_eq!(payloads(broker.engine(), "orders", partition).await, ["new"], "partition {partition}");
    }
}

#[tokio::test]
async fn who_sleeps_while_it_deletes_a_topic_deletes_nothing_of_the_one_that_is_made_anew() {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(3).await.unwrap();
    let (sleepy, faults) = slow_process(broker.engine());
    let sleeper = tokio::spawn(async move { sleepy.delete_topic("orders").await });
    fall_asleep(&faults, "delete_partition_as").await;
    assert!(!sleeper.is_finished());
    broker.create_topic("orders").partitions(3).await.unwrap();
    fill(&broker).await;
    faults.heal();
    assert!(sleeper.await.unwrap().unwrap(), "the one that it meant is gone");
    is_filled(&broker).await;
    assert!(broker.delete_topic("orders").await.unwrap());
}

#[tokio::test]
async fn who_sleeps_while_it_makes_a_topic_makes_nothing_of_a_later_one_anew() {
    let broker = Broker::memory();
    let asleep = async || {
        let (sleepy, faults) = slow_process(broker.engine());
        let make = async move { sleepy.create_topic("orders").partitions(3).await.map(drop) };
        let sleeper = tokio::spawn(make);
        fall_asleep(&faults, "create_partition_as").await;
        fails(broker.topic("orders").await, ErrorKind::NotFound);
        assert!(broker.list_topics().await.unwrap().is_empty(), "it is being made");
        (sleeper, faults)
    };
    let (sleeper, faults) = asleep().await;
    broker.create_topic("orders").partitions(3).await.unwrap();
    assert!(broker.delete_topic("orders").await.unwrap());
    broker.create_topic("orders").partitions(3).await.unwrap();
    fill(&broker).await;
    faults.heal();
    fails(sleeper.await.unwrap(), ErrorKind::AlreadyExists);
    is_filled(&broker).await;

    broker.delete_topic("orders").await.unwrap();
    let (sleeper, faults) = asleep().await;
    assert!(broker.delete_topic("orders").await.unwrap(), "what was begun is deleted, too");
    faults.heal();
    sleeper.await.unwrap().unwrap();
    fill(&broker).await;
    is_filled(&broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_make_a_topic_at_once_one_does() {
    let broker = Broker::memory();
    for round in 0..10 {
        let makers: Vec<_> = (0..12)
            .map(|_| {
                let broker = broker.clone();
                let topic = format!("orders-{round}");
                tokio::spawn(async move { broker.create_topic(&topic).partitions(4).await })
            })
            .collect();
        let mut made = 0;
        for maker in makers {
            match maker.await.unwrap() {
                Ok(_) => made += 1,
                refused => fails(refused, ErrorKind::AlreadyExists),
            }
        }
        assert_eq!(made, 1, "round {round}");
    }
}

/// Between the consumer's look at the topic and its request for the partition, the topic is deleted
/// and made again.
#[tokio::test(start_paused = true)]
async fn q14_a_consumer_outlives_a_topic_that_is_deleted_and_made_again_between_two_turns() {
    let broker = Broker::memory();
    broker.create_topic("orders").await.unwrap();
    let (other, faults) = process(broker.engine());
    let consumer = other.consumer("orders", "billing").await.unwrap();
    faults.hold_up("leases");
    let diary = Diary::default();
    let reader = Reader::start(consumer, "a", &diary);
    soon("the consumer looks at the leases", faults.reaches("leases", 1)).await;
    assert!(broker.delete_topic("orders").await.unwrap());
    let looks = faults.count("get");
    faults.hold_up("get");
    soon("the next turn", faults.reaches("get", looks + 1)).await;
    broker.create_topic("orders").await.unwrap();
    crate::world::send(&broker, "orders", 0, 3).await;
    faults.heal();
    diary.reaches(3).await;
    reader.close().await;
}

/// `Newest` counts for the partitions that the topic had when the group was made: what enters one
/// that is added later is read from its start, whichever member opens it first.
#[tokio::test(start_paused = true)]
async fn q16_a_group_made_while_the_topic_grows_misses_nothing_of_the_new_partitions() {
    for growth_dies in [false, true] {
        let broker = Broker::memory();
        broker.create_topic("orders").partitions(2).await.unwrap();
        let (growing, faults) = process(broker.engine());
        faults.hold_up("groups");
        let grow = tokio::spawn(async move { growing.grow_topic("orders", 4).await });
        soon("the growth copies the groups", faults.reaches("groups", 1)).await;
        let noted = faults.count("put");
        faults.hold_up("put");
        soon("the growth replaces the entry", faults.reaches("put", noted + 1)).await;
        let newest = || broker.consumer("orders", "billing").start_at(StartAt::Newest);
        newest().await.unwrap().close().await.unwrap();
        if growth_dies {
            grow.abort();
            broker.grow_topic("orders", 4).await.unwrap();
        } else {
            faults.heal();
            grow.await.unwrap().unwrap();
        }
        let producer = broker.producer("orders").await.unwrap();
        for partition in 0..4 {
            let message = Message::new(partition.to_string()).to_partition(partition);
            producer.send(message).await.unwrap();
        }
        let diary = Diary::default();
        let reader = Reader::start(newest().await.unwrap(), "a", &diary);
        diary.reaches(4).await;
        assert_eq!(diary.numbers(), [0, 1, 2, 3]);
        reader.close().await;
    }
}

/// A member that was there before the topic grew opens the new partitions first.
#[tokio::test(start_paused = true)]
async fn q16_a_running_member_reads_new_partitions_from_their_start() {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(1).await.unwrap();
    let (other, faults) = process(broker.engine());
    faults.hold_up("create_group");
    let joining = tokio::spawn(async move {
        other.consumer("orders", "billing").start_at(StartAt::Newest).await.map(|one| (one, other))
    });
    soon("the consumer makes its group", faults.reaches("create_group", 1)).await;
    broker.grow_topic("orders", 3).await.unwrap();
    faults.hold_up("acquire");
    let (consumer, _other) = soon("the consumer is built", joining).await.unwrap().unwrap();
    let producer = broker.producer("orders").await.unwrap();
    for partition in 0..3 {
        producer.send(Message::new(partition.to_string()).to_partition(partition)).await.unwrap();
    }
    faults.heal();
    let diary = Diary::default();
    let reader = Reader::start(consumer, "a", &diary);
    diary.reaches(3).await;
    assert_eq!(diary.numbers(), [0, 1, 2]);
    reader.close().await;
}

/// A group deleted under its consumers begins anew where they say, not at the oldest record.
#[tokio::test(start_paused = true)]
async fn q16_a_deleted_group_comes_back_where_its_consumers_start() {
    let age = StartAt::Age(Duration::from_secs(50));
    for (start, seen, expected) in
        [(StartAt::Newest, 0, ["2", "3"]), (age, 0, ["2", "3"]), (StartAt::Oldest, 2, ["0", "1"])]
    {
        let broker = with_topic(1).await;
        send(&broker, "orders", 0, 2).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        let diary = Diary::default();
        let consumer = broker.consumer("orders", "billing").start_at(start).await.unwrap();
        let reader = Reader::start(consumer, "a", &diary);
        let came_back = async || broker.admin().groups("orders").await.unwrap().len() == 1;
        eventually("the group is read", async || !reader.handle.assignment().is_empty()).await;
        diary.reaches(seen).await;
        let at = Partition::new(TopicName::new("orders").unwrap(), 0);
        let group = GroupName::new("billing").unwrap();
        assert!(broker.engine().delete_group(&at, &group, None).await.unwrap());
        eventually("the group is there again", came_back).await;
        send(&broker, "orders", 2, 4).await;
        diary.reaches(seen + 2).await;
        reader.close().await;
        assert_eq!(diary.payloads()[seen..seen + 2], expected, "{start:?}");
    }
}
