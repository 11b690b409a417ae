//! Writers of a source: each change is in the topic once, in order, also when readers die.

use crate::engines::{Pair, on_every_engine};
use crate::faulty::{Fault, process};
use crate::world::{fails, payloads};
use bytes::Bytes;
use firth::{Broker, Engine, Epoch, ErrorKind, Message, Result, SourceAppend, SourceWriter};
use firth_laws::faulty::Faults;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;

on_every_engine!(
    a_writer_appends_moves_and_knows_again
    a_newer_reader_ends_the_older_one
    two_sources_share_a_topic
    a_grown_topic_is_taken_in_without_a_change_twice
    every_change_is_there_once_in_order_though_readers_die
);

fn pos(n: u64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

fn number(mark: Option<&Bytes>) -> u64 {
    mark.map_or(0, |mark| u64::from_be_bytes(mark[..].try_into().unwrap()))
}

async fn writer(broker: &Broker, epoch: u64) -> Result<SourceWriter> {
    broker.source_writer("changes", "shop", Epoch(epoch)).await
}

async fn a_writer_appends_moves_and_knows_again(pair: Pair) {
    pair.first.create_topic("changes").partitions(3).await.unwrap();
    let shop = writer(&pair.first, 1).await.unwrap();
    assert_eq!((shop.partitions(), shop.grown()), (3, None));
    assert_eq!(shop.marks().await.unwrap(), [None, None, None]);
    let batch = || vec![Message::new("a").key("k"), Message::new("b")];
    let SourceAppend::Stored { first, last } = shop.append(1, batch(), pos(5)).await.unwrap() else {
        panic!("it is new")
    };
    assert_eq!((first.seq, last.seq), (1, 2));
    assert_eq!(shop.append(1, batch(), pos(5)).await.unwrap(), SourceAppend::Duplicate);
    assert_eq!(shop.append(1, batch(), pos(4)).await.unwrap(), SourceAppend::Duplicate);
    assert_eq!(shop.append(2, Vec::new(), pos(6)).await.unwrap(), SourceAppend::Moved);
    assert_eq!(shop.append(2, Vec::new(), pos(6)).await.unwrap(), SourceAppend::Duplicate);
    assert_eq!(shop.marks().await.unwrap(), [None, Some(pos(5)), Some(pos(6))]);
    let key_of = |n: u32| (0..).map(|k: u32| k.to_string()).find(|k| shop.partition_for(k.as_bytes()) == n);
    let by_producer = pair.first.producer("changes").await.unwrap();
    for partition in 0..3 {
        let message = Message::new("x").key(key_of(partition).unwrap());
        assert_eq!(by_producer.send(message).await.unwrap().partition, partition, "the mapping of the topic");
    }
    // After a restart the next reader finds all of it.
    drop(shop);
    let again = writer(&pair.second, 2).await.unwrap();
    assert_eq!(again.marks().await.unwrap(), [None, Some(pos(5)), Some(pos(6))]);
    assert!(pair.second.forget_source("changes", "shop").await.unwrap());
    assert!(!pair.second.forget_source("changes", "shop").await.unwrap());
    assert_eq!(writer(&pair.second, 1).await.unwrap().marks().await.unwrap(), [None, None, None]);
}

async fn a_newer_reader_ends_the_older_one(pair: Pair) {
    pair.first.create_topic("changes").partitions(2).await.unwrap();
    let old = writer(&pair.first, 1).await.unwrap();
    old.append(0, vec!["1".into()], pos(1)).await.unwrap();
    let new = writer(&pair.second, 2).await.unwrap();
    // Also where the new one has appended nothing yet.
    for partition in 0..2 {
        fails(old.append(partition, vec!["2".into()], pos(2)).await, ErrorKind::Fenced);
        fails(old.append(partition, Vec::new(), pos(2)).await, ErrorKind::Fenced);
    }
    fails(old.marks().await, ErrorKind::Fenced);
    fails(writer(&pair.first, 1).await, ErrorKind::Fenced);
    assert_eq!(new.marks().await.unwrap(), [Some(pos(1)), None]);
    new.append(0, vec!["2".into()], pos(2)).await.unwrap();
    assert_eq!(payloads(pair.first.engine(), "changes", 0).await, ["1", "2"]);
    assert!(payloads(pair.first.engine(), "changes", 1).await.is_empty());
}

async fn two_sources_share_a_topic(pair: Pair) {
    pair.first.create_topic("changes").await.unwrap();
    let shop = writer(&pair.first, 5).await.unwrap();
    let bank = pair.second.source_writer("changes", "bank", Epoch(1)).await.unwrap();
    shop.append(0, vec!["s".into()], pos(9)).await.unwrap();
    bank.append(0, vec!["b".into()], pos(1)).await.unwrap();
    assert_eq!(bank.append(0, vec!["b".into()], pos(1)).await.unwrap(), SourceAppend::Duplicate);
    assert_eq!(shop.marks().await.unwrap(), [Some(pos(9))]);
    assert_eq!(bank.marks().await.unwrap(), [Some(pos(1))]);
    assert_eq!(payloads(pair.first.engine(), "changes", 0).await, ["s", "b"]);
}

async fn a_grown_topic_is_taken_in_without_a_change_twice(pair: Pair) {
    let broker = &pair.first;
    broker.create_topic("changes").partitions(2).mapping(firth::Mapping::Modulo).await.unwrap();
    let shop = writer(broker, 1).await.unwrap();
    assert_eq!(shop.grow(pos(1)).await.unwrap(), 2, "there is nothing to take in");
    shop.append(0, vec!["1".into()], pos(1)).await.unwrap();
    shop.append(1, vec!["2".into()], pos(2)).await.unwrap();
    broker.grow_topic("changes", 5).await.unwrap();
    // A reader that comes now, and every one before the change, sees the partitions of the source.
    let shop = writer(&pair.second, 2).await.unwrap();
    assert_eq!((shop.partitions(), shop.grown()), (2, Some(5)));
    fails(shop.append(4, vec!["x".into()], pos(3)).await, ErrorKind::Invalid);
    assert!((0..50_u32).all(|key| shop.partition_for(&key.to_be_bytes()) < 2));
    shop.append(0, vec!["3".into()], pos(3)).await.unwrap();
    fails(shop.grow(pos(2)).await, ErrorKind::Invalid);
    assert_eq!(shop.grow(pos(3)).await.unwrap(), 5);
    assert_eq!((shop.partitions(), shop.grown()), (5, None));
    assert_eq!(shop.marks().await.unwrap(), vec![Some(pos(3)); 5]);
    assert_eq!(shop.append(4, vec!["3".into()], pos(3)).await.unwrap(), SourceAppend::Duplicate);
    shop.append(4, vec!["4".into()], pos(4)).await.unwrap();
    let next = writer(&pair.first, 3).await.unwrap();
    assert_eq!(next.partitions(), 5);
    assert_eq!(number(next.marks().await.unwrap().iter().map(Option::as_ref).min().unwrap()), 3);
}

/// What happens in the source: a change per position, of some key.
fn change(position: u64) -> Message {
    Message::new(position.to_string()).key(format!("key-{}", position * 7919 % 13))
}

/// A reader as a source would have one: begins after the lowest mark, leaves out what is covered,
/// appends to all partitions side by side, takes new partitions in, and repeats what failed.
async fn read_source(broker: Broker, topic: String, epoch: u64, until: u64, seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    let shop = broker.source_writer(&topic, "shop", Epoch(epoch)).await?.timeout(Duration::from_millis(50));
    let mut marks = shop.marks().await?;
    let mut done = marks.iter().map(|mark| number(mark.as_ref())).min().unwrap_or(0);
    while done < until {
        let upto = (done + random.u64(1..20)).min(until);
        let mut batches: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for position in done + 1..=upto {
            let key = format!("key-{}", position * 7919 % 13);
            let partition = shop.partition_for(key.as_bytes());
            if position > number(marks[partition as usize].as_ref()) {
                batches.entry(partition).or_default().push(position);
            }
        }
        let appends = batches.iter().map(|(partition, positions)| insist(&shop, *partition, positions));
        for answer in join_all(appends).await {
            answer?;
        }
        done = upto;
        if shop.grown().is_some() && random.bool() {
            shop.grow(pos(done)).await?;
            marks = shop.marks().await?;
        }
    }
    Ok(())
}

async fn insist(shop: &SourceWriter, partition: u32, positions: &[u64]) -> Result<()> {
    let last = *positions.last().expect("batches are not empty");
    loop {
        let batch = positions.iter().map(|position| change(*position)).collect();
        match shop.append(partition, batch, pos(last)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
    }
}

/// Each change once, and those of one key in their order.
async fn check_history(engine: &Engine, topic: &str, partitions: u32, until: u64) {
    let mut seen = BTreeMap::<u64, Vec<u64>>::new();
    let mut all = Vec::new();
    for partition in 0..partitions {
        for payload in payloads(engine, topic, partition).await {
            let position: u64 = payload.parse().unwrap();
            all.push(position);
            // Positions of one key may lie in two partitions: the later ones in the later one.
            seen.entry(position * 7919 % 13).or_default().push(position);
        }
    }
    all.sort_unstable();
    assert_eq!(all, (1..=until).collect::<Vec<_>>(), "{topic}: each change once");
    for (key, positions) in seen {
        assert!(positions.is_sorted(), "{topic}: key {key} out of order: {positions:?}");
    }
}

/// Readers die at any moment, hang and come back as zombies, lose answers, and the topic grows.
async fn every_change_is_there_once_in_order_though_readers_die(pair: Pair) {
    const UNTIL: u64 = 300;
    let engine = pair.first.engine();
    for seed in 0..20 {
        let topic = format!("changes-{seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        // A mapping that moves a key to new partitions only: `check_history` reads them in turn.
        pair.first.create_topic(&topic).partitions(random.u32(1..5)).await.unwrap();
        let mut zombies = Vec::new();
        let mut epoch = 0;
        for _ in 0..random.usize(2..6) {
            epoch += random.u64(1..4);
            let (broker, faulty) = process(engine);
            faulty.set(Faults {
                seed: random.u64(..),
                refuse: 0.1,
                lose_answer: 0.1,
                delay: Duration::from_millis(2),
            });
            let reader =
                tokio::spawn(read_source(broker, topic.clone(), epoch, random.u64(1..UNTIL), random.u64(..)));
            tokio::time::sleep(Duration::from_millis(random.u64(0..40))).await;
            match random.u8(..4) {
                0 => reader.abort(),
                1 => {
                    faulty.cut();
                    zombies.push((reader, faulty));
                }
                _ => zombies.push((reader, faulty)),
            }
            if random.u8(..3) == 0 {
                let now = pair.first.topic(&topic).await.unwrap().config.partitions;
                pair.first.grow_topic(&topic, now + random.u32(1..3)).await.unwrap();
            }
        }
        zombies.iter().for_each(|(_, faulty)| faulty.heal());
        // The last one meets the others, which are fenced or done.
        let last = read_source(pair.second.clone(), topic.clone(), epoch + 1, UNTIL, seed);
        last.await.unwrap();
        for (zombie, _) in zombies {
            match zombie.await.unwrap() {
                Ok(()) => {}
                Err(error) => assert!(
                    error.kind() == ErrorKind::Fenced || error.is_retryable(),
                    "seed {seed}: {error:?}"
                ),
            }
        }
        let count = pair.first.topic(&topic).await.unwrap().config.partitions;
        check_history(engine, &topic, count, UNTIL).await;
        assert!(pair.first.delete_topic(&topic).await.unwrap());
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_its_field() {
    let broker = Broker::memory();
    broker.create_topic("changes").max_payload(100).await.unwrap();
    let shop = writer(&broker, 1).await.unwrap();
    let refused = async |messages: Vec<Message>, upto: &'static [u8]| {
        shop.append(0, messages, Bytes::from_static(upto)).await.unwrap_err().field()
    };
    assert_eq!(refused(vec![vec![0; 101].into()], b"a").await, Some("payload"));
    assert_eq!(refused(vec!["x".into()], b"").await, Some("upto"));
    assert_eq!(refused(vec!["x".into()], b"\0").await, Some("upto"));
    assert_eq!(refused(vec!["x".into()], &[1; 65]).await, Some("upto"));
    assert_eq!(refused(vec![Message::new("x").to_partition(1)], b"a").await, Some("partition"));
    assert_eq!(
        refused(vec![Message::new("x").deliver_after(Duration::from_secs(1))], b"a").await,
        Some("after_ms")
    );
    fails(shop.append(0, vec!["x".into(); SourceWriter::MAX_RECORDS + 1], pos(1)).await, ErrorKind::Invalid);
    fails(shop.append(1, vec!["x".into()], pos(1)).await, ErrorKind::Invalid);
    fails(broker.source_writer("changes", "no good", Epoch(1)).await, ErrorKind::Invalid);
    fails(broker.source_writer("missing", "shop", Epoch(1)).await, ErrorKind::NotFound);
    // A refusal leaves nothing open.
    shop.append(0, vec!["x".into()], pos(1)).await.unwrap();
    assert_eq!(payloads(broker.engine(), "changes", 0).await, ["x"]);
}

/// A batch of exactly the largest size fits, and the size is never reckoned too small.
#[tokio::test]
async fn a_batch_within_the_stated_size_fits() {
    let broker = Broker::memory();
    broker.create_topic("changes").max_payload(16 << 20).await.unwrap();
    let shop = writer(&broker, 1).await.unwrap();
    let message = || Message::new(vec![7; 100_000]).key("key").header("name", "value");
    let size = SourceWriter::size_of(&message());
    let batch = vec![message(); SourceWriter::MAX_BYTES / size];
    assert!(matches!(shop.append(0, batch, pos(1)).await.unwrap(), SourceAppend::Stored { .. }));
    fails(shop.append(0, vec![message(); 90], pos(2)).await, ErrorKind::Invalid);
    let compressing = writer(&broker, 2).await.unwrap().compress_above(1000);
    compressing.append(0, vec![message(); 90], pos(2)).await.unwrap();
    let page = broker.admin().browse("changes", 0, firth::RecordId::ZERO, 1000).await.unwrap();
    assert_eq!(page.last().unwrap().payload(), &vec![7_u8; 100_000], "readers see it as it was sent");
}

/// The answer is lost: the writer repeats the append, and knows it again.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_repeated_and_known_again() {
    let broker = Broker::memory();
    broker.create_topic("changes").await.unwrap();
    let (other, faulty) = process(broker.engine());
    let shop = writer(&other, 1).await.unwrap();
    faulty.plan("append", Fault::Refused);
    faulty.plan("append", Fault::LostReply);
    assert_eq!(shop.append(0, vec!["1".into()], pos(1)).await.unwrap(), SourceAppend::Duplicate);
    assert!(faulty.are_spent());
    assert_eq!(payloads(broker.engine(), "changes", 0).await, ["1"]);
}

/// After an unknown outcome, and after a call that was dropped, another batch could repeat what the
/// first one brought: it is refused until the same one was sent again.
#[tokio::test(start_paused = true)]
async fn while_an_outcome_is_unknown_no_other_batch_is_taken() {
    let broker = Broker::memory();
    broker.create_topic("changes").await.unwrap();
    let (other, faulty) = process(broker.engine());
    let shop = writer(&other, 1).await.unwrap().timeout(Duration::ZERO);
    faulty.plan("append", Fault::LostReply);
    let error = shop.append(0, vec!["1".into()], pos(1)).await.unwrap_err();
    assert!(error.may_have_happened() && error.is_retryable());
    fails(shop.append(0, vec!["1".into(), "2".into()], pos(2)).await, ErrorKind::Invalid);
    fails(shop.grow(pos(2)).await, ErrorKind::Invalid);
    assert_eq!(shop.append(0, vec!["1".into()], pos(1)).await.unwrap(), SourceAppend::Duplicate);
    faulty.cut();
    let dropped = shop.append(0, vec!["2".into()], pos(2));
    assert!(tokio::time::timeout(Duration::from_secs(1), dropped).await.is_err());
    faulty.heal();
    fails(shop.append(0, vec!["3".into()], pos(3)).await, ErrorKind::Invalid);
    shop.append(0, vec!["2".into()], pos(2)).await.unwrap();
    shop.append(0, vec!["3".into()], pos(3)).await.unwrap();
    assert_eq!(payloads(broker.engine(), "changes", 0).await, ["1", "2", "3"]);
}

/// A new source is new until its first change: partitions that came before that take part.
#[tokio::test]
async fn a_source_begins_with_all_partitions_of_its_first_change() {
    let broker = Broker::memory();
    broker.create_topic("changes").partitions(2).await.unwrap();
    drop(writer(&broker, 1).await.unwrap());
    broker.grow_topic("changes", 4).await.unwrap();
    assert_eq!(writer(&broker, 2).await.unwrap().partitions(), 4);
}
