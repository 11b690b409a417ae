//! Laws of the log.

use crate::world::{
    Owner, append, eventually, fails, fresh, group, number, numbered, numbers, partition, producer, read_all,
    soon, unmade_partition,
};
use bytes::Bytes;
use firth_engine::facet::{Append, ProducerSeq, ReadLimit, StartPosition, Trim, TrimTo};
use firth_engine::limits::{MAX_BATCH, MAX_KEY};
use firth_engine::{Commit, Content, Durability, Engine, ErrorKind, Headers, HintKey, Partition, RecordId};
use std::time::Duration;
use tokio::time::Instant;

/// A log that went back reuses numbers: a reader at a record that it lost is told (law 1).
pub async fn k04_a_position_of_a_record_that_the_log_does_not_have_is_refused(engine: Engine) {
    let at = partition(&engine).await;
    let ids = append(&engine, &at, 0, 10).await;
    let read = async |after| engine.read(&at, after, ReadLimit::records(5)).await;
    let third = ids[2];
    let last = ids[9];
    for lost in [last.plus(1), RecordId::new(last.ms + 1, 4), RecordId::new(third.ms - 1, 3)] {
        fails(read(lost).await, ErrorKind::WentBack);
    }
    // Points in time, ends, and the place before a record name no record.
    for (after, count) in [
        (RecordId::before_ms(last.ms + 1000), 0),
        (RecordId::MAX, 0),
        (last, 0),
        (RecordId::new(last.ms, 9), 1),
        (RecordId::new(third.ms, 0), 5),
    ] {
        assert_eq!(read(after).await.unwrap().len(), count, "{after}");
    }
    let name = group("g");
    let mut owner = Owner::new(&engine, &at, &name).await;
    let beyond = |seen| Commit { seen, ..Commit::up_to(third) };
    for lost in [last.plus(1), RecordId::new(third.ms - 1, 3), RecordId::new(last.ms + 1, 4)] {
        fails(owner.send(beyond(lost)).await, ErrorKind::WentBack);
    }
    owner.send(beyond(ids[4])).await.unwrap();
    engine.trim(&at, Trim { to: TrimTo::Id(third), lossy: true }).await.unwrap();
    owner.send(Commit { seen: ids[1], ..Commit::up_to(ids[4]) }).await.unwrap();
    owner = Owner::with(&engine, &at, &name, owner.hold.clone()).await;
    assert_eq!(owner.drain().await, (5..10).collect::<Vec<_>>());
}

/// Key, payload, headers and time come back as they were sent, attempt 1, in order (law 1).
pub async fn an_acknowledged_record_is_read_back_whole(engine: Engine) {
    let at = partition(&engine).await;
    let headers =
        Headers::from_pairs([("trace", &b"abc"[..]), ("empty", b""), ("trace", b"\xff\x00")]).unwrap();
    let contents = vec![
        Content { headers, timestamp: 1_700_000_000_123, ..Content::new("one").with_key("k") },
        Content::new(Bytes::new()),
        Content::new(vec![0xff; 70_000]).with_key(Bytes::new()),
    ];
    let appended = engine.append(&at, Append::new(contents.clone())).await.unwrap();
    assert!(!appended.duplicate);
    let records = engine.read(&at, RecordId::ZERO, ReadLimit::records(10)).await.unwrap();
    assert_eq!(
        records.iter().map(|record| record.id).collect::<Vec<_>>(),
        appended.ids().collect::<Vec<_>>()
    );
    assert!(records.iter().all(|record| (record.attempt, record.crashes) == (1, 0)));
    assert!(records.into_iter().map(|record| record.content).eq(contents));
}

/// `seq` counts 1, 2, 3 …; `ms` never goes back; bounds tell both ends.
pub async fn ids_grow_without_holes(engine: Engine) {
    let at = partition(&engine).await;
    let empty = engine.bounds(&at).await.unwrap();
    assert_eq!((empty.trimmed, empty.last, empty.len()), (RecordId::ZERO, RecordId::ZERO, 0));
    let mut ids = Vec::new();
    for (from, to) in [(0, 1), (1, 4), (4, 5), (5, 105)] {
        ids.extend(append(&engine, &at, from, to).await);
    }
    assert_eq!(ids.iter().map(|id| id.seq).collect::<Vec<_>>(), (1..=105).collect::<Vec<_>>());
    assert!(ids.is_sorted() && ids[0].ms > 0);
    assert_eq!(read_all(&engine, &at).await.iter().map(|record| record.id).collect::<Vec<_>>(), ids);
    let bounds = engine.bounds(&at).await.unwrap();
    assert_eq!((bounds.last, bounds.len()), (ids[104], 105));
    let middle = engine.read(&at, ids[50], ReadLimit::records(2)).await.unwrap();
    assert_eq!(numbers(&middle), [51, 52]);
}

/// Batches of racing producers do not mix, and nothing is lost.
pub async fn concurrent_appends_keep_their_batches_together(engine: Engine) {
    let at = partition(&engine).await;
    let tasks: Vec<_> = (0..16u64)
        .map(|task| {
            let engine = engine.clone();
            let at = at.clone();
            tokio::spawn(async move { append(&engine, &at, task * 100, task * 100 + 7).await })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().len(), 7);
    }
    let seen = numbers(&read_all(&engine, &at).await);
    assert_eq!(seen.len(), 16 * 7);
    for batch in seen.chunks(7) {
        assert!(batch.windows(2).all(|pair| pair[1] == pair[0] + 1), "a batch was torn apart: {batch:?}");
    }
}

/// One bad record spoils the whole batch, and nothing of it appears (law 10).
pub async fn a_batch_is_appended_whole_or_not_at_all(engine: Engine) {
    let at = partition(&engine).await;
    let bad = Content::new("x").with_key(vec![b'k'; MAX_KEY + 1]);
    fails(engine.append(&at, Append::new([numbered(0), bad, numbered(1)])).await, ErrorKind::Invalid);
    fails(engine.append(&at, Append::new([])).await, ErrorKind::Invalid);
    fails(engine.append(&at, Append::new(vec![numbered(0); MAX_BATCH + 1])).await, ErrorKind::Invalid);
    assert_eq!(engine.bounds(&at).await.unwrap().last, RecordId::ZERO);
    let appended =
        engine.append(&at, Append::new((0..MAX_BATCH as u64).map(numbered).collect::<Vec<_>>())).await;
    assert_eq!(appended.unwrap().count, MAX_BATCH as u64);
    assert_eq!(numbers(&read_all(&engine, &at).await), (0..MAX_BATCH as u64).collect::<Vec<_>>());
}

/// Only `create_partition` makes a partition.
pub async fn appending_to_a_missing_partition_is_refused(engine: Engine) {
    let at = unmade_partition();
    fails(engine.append(&at, Append::new([numbered(0)])).await, ErrorKind::NotFound);
    fails(engine.read(&at, RecordId::ZERO, ReadLimit::records(1)).await, ErrorKind::NotFound);
    fails(engine.bounds(&at).await, ErrorKind::NotFound);
    fails(engine.delayed(&at, RecordId::ZERO, ReadLimit::records(1)).await, ErrorKind::NotFound);
    fails(engine.promote_due(&at, 1).await, ErrorKind::NotFound);
    assert!(engine.create_partition(&at).await.unwrap());
    assert!(!engine.create_partition(&at).await.unwrap(), "it is there already");
    append(&engine, &at, 0, 1).await;
}

/// A late producer cannot bring a deleted topic back; made again, it remembers nothing.
pub async fn a_deleted_partition_comes_back_empty(engine: Engine) {
    let at = partition(&engine).await;
    append(&engine, &at, 0, 3).await;
    let seq = |first| Some(ProducerSeq { name: producer(), first, keep: Duration::ZERO });
    let delayed = Append { after: Duration::from_secs(3600), producer: seq(0), ..Append::new([numbered(9)]) };
    engine.append(&at, delayed).await.unwrap();
    let group = crate::world::group("g");
    let mut owner = crate::world::Owner::new(&engine, &at, &group).await;
    let taken = owner.take(2).await;
    owner.settle(&taken[0], crate::world::dead("no"));
    owner.judge(&taken[1], crate::world::retry(Duration::ZERO)).await;
    assert!(engine.delete_partition(&at).await.unwrap());
    assert!(!engine.delete_partition(&at).await.unwrap());
    fails(engine.append(&at, Append::new([numbered(4)])).await, ErrorKind::NotFound);
    assert!(owner.send(firth_engine::Commit::default()).await.is_err(), "the owner is out of work");
    assert!(engine.create_partition(&at).await.unwrap());
    let bounds = engine.bounds(&at).await.unwrap();
    assert_eq!((bounds.last, bounds.delayed), (RecordId::ZERO, 0));
    assert!(engine.groups(&at).await.unwrap().is_empty());
    assert!(engine.create_group(&at, &group, StartPosition::Start, None).await.unwrap());
    let status = crate::world::status(&engine, &at, &group).await;
    assert_eq!((status.lag(), status.dead), (0, 0));
    assert_eq!(append(&engine, &at, 7, 8).await[0].seq, 1);
    assert_eq!(numbers(&read_all(&engine, &at).await), [7]);
}

/// A process that slept while a partition was deleted and made anew neither deletes the new one nor
/// makes it again; remains of the old partition do not count as the new one.
pub async fn a_partition_is_changed_only_by_who_knows_of_its_life(engine: Engine) {
    let at = crate::world::unmade_partition();
    assert!(!engine.delete_partition_as(&at, 9).await.unwrap(), "it is not there");
    assert!(engine.create_partition_as(&at, 5).await.unwrap());
    append(&engine, &at, 0, 2).await;
    for rank in [0, 4, 5] {
        assert!(!engine.create_partition_as(&at, rank).await.unwrap(), "{rank}");
        assert!(!engine.delete_partition_as(&at, rank).await.unwrap(), "{rank}");
    }
    assert_eq!(numbers(&read_all(&engine, &at).await), [0, 1]);
    assert!(engine.delete_partition_as(&at, 6).await.unwrap());
    fails(engine.bounds(&at).await, ErrorKind::NotFound);
    assert!(engine.create_partition_as(&at, 7).await.unwrap());
    append(&engine, &at, 2, 4).await;
    assert!(!engine.delete_partition_as(&at, 6).await.unwrap(), "who deleted the former one comes late");
    assert_eq!(numbers(&read_all(&engine, &at).await), [2, 3]);
    assert!(engine.create_group(&at, &crate::world::group("g"), StartPosition::Start, None).await.unwrap());
    assert!(engine.create_partition_as(&at, 8).await.unwrap(), "the next life");
    assert!(read_all(&engine, &at).await.is_empty());
    assert!(engine.groups(&at).await.unwrap().is_empty());
    assert_eq!(append(&engine, &at, 4, 5).await[0].seq, 1);
    assert!(!engine.create_partition(&at).await.unwrap(), "it is there");
    assert!(engine.delete_partition(&at).await.unwrap(), "whatever its rank");
}

fn batch(from: u64, to: u64, name: &firth_engine::ProducerName, first: u64) -> Append {
    let producer = Some(ProducerSeq { name: name.clone(), first, keep: Duration::ZERO });
    Append { producer, ..Append::new((from..to).map(numbered).collect::<Vec<_>>()) }
}

/// A batch sent again gets the same ids and changes nothing (law 10).
pub async fn a_repeated_batch_is_appended_once(engine: Engine) {
    let at = partition(&engine).await;
    let name = producer();
    let first = engine.append(&at, batch(0, 3, &name, 0)).await.unwrap();
    let second = engine.append(&at, batch(3, 5, &name, 3)).await.unwrap();
    for _ in 0..3 {
        let again = engine.append(&at, batch(0, 3, &name, 0)).await.unwrap();
        assert!(again.duplicate);
        assert_eq!((again.first, again.count), (first.first, 3));
        let again = engine.append(&at, batch(3, 5, &name, 3)).await.unwrap();
        assert_eq!((again.first, again.duplicate), (second.first, true));
    }
    for n in 5..40 {
        assert!(!engine.append(&at, batch(n, n + 1, &name, n)).await.unwrap().duplicate);
    }
    let ancient = engine.append(&at, batch(0, 3, &name, 0)).await.unwrap();
    assert!(ancient.duplicate, "forgotten ids do not make it new");
    // Another producer, and none at all, are not concerned.
    assert!(!engine.append(&at, batch(40, 41, &producer(), 0)).await.unwrap().duplicate);
    append(&engine, &at, 41, 42).await;
    assert_eq!(numbers(&read_all(&engine, &at).await), (0..42).collect::<Vec<_>>());
}

/// Ten racing copies of one batch append it once.
pub async fn racing_repetitions_append_once(engine: Engine) {
    let at = partition(&engine).await;
    let name = producer();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let engine = engine.clone();
            let at = at.clone();
            let batch = batch(0, 5, &name, 0);
            tokio::spawn(async move { engine.append(&at, batch).await.unwrap() })
        })
        .collect();
    let mut firsts = Vec::new();
    let mut fresh_ones = 0;
    for task in tasks {
        let appended = task.await.unwrap();
        fresh_ones += u32::from(!appended.duplicate);
        firsts.push(appended.first.unwrap());
    }
    firsts.dedup();
    assert_eq!((firsts.len(), fresh_ones), (1, 1));
    assert_eq!(numbers(&read_all(&engine, &at).await), (0..5).collect::<Vec<_>>());
}

/// A missing batch is noticed, not jumped over.
pub async fn a_gap_in_a_producers_sequence_is_refused(engine: Engine) {
    let at = partition(&engine).await;
    let name = producer();
    engine.append(&at, batch(0, 3, &name, 100)).await.unwrap();
    fails(engine.append(&at, batch(4, 5, &name, 104)).await, ErrorKind::Invalid);
    fails(engine.append(&at, batch(1, 4, &name, 101)).await, ErrorKind::Invalid);
    fails(engine.append(&at, batch(0, 2, &name, 100)).await, ErrorKind::Invalid);
    engine.append(&at, batch(3, 4, &name, 103)).await.unwrap();
    assert_eq!(numbers(&read_all(&engine, &at).await), [0, 1, 2, 3]);
}

async fn delay(engine: &Engine, at: &Partition, n: u64, after: Duration) {
    let appended = engine.append(at, Append { after, ..Append::new([numbered(n)]) }).await.unwrap();
    assert_eq!((appended.first, appended.count), (None, 1));
}

/// Delayed means: not in the log, not a moment early; then there, once.
pub async fn a_delayed_message_is_invisible_until_its_time(engine: Engine) {
    let at = partition(&engine).await;
    let start = Instant::now();
    let wait = Duration::from_millis(60);
    delay(&engine, &at, 1, wait).await;
    delay(&engine, &at, 2, Duration::from_secs(3600)).await;
    let bounds = engine.bounds(&at).await.unwrap();
    assert_eq!((bounds.len(), bounds.delayed), (0, 2));
    assert!(bounds.next_ripe.unwrap() <= wait + Duration::from_millis(1));
    eventually("the message becomes due", || async {
        let before = start.elapsed();
        let promoted = engine.promote_due(&at, 10).await.unwrap();
        assert!(promoted.moved == 0 || start.elapsed() >= wait, "{before:?} is early");
        if promoted.moved > 0 {
            assert_eq!(promoted.moved, 1);
            assert!(promoted.next.unwrap() > Duration::from_secs(3000));
        }
        promoted.moved > 0
    })
    .await;
    assert_eq!(engine.promote_due(&at, 10).await.unwrap().moved, 0);
    assert_eq!(numbers(&read_all(&engine, &at).await), [1]);
    assert_eq!(engine.bounds(&at).await.unwrap().delayed, 1);
}

/// Ripe messages are ordered by their times, also in small steps; equal times keep the order of
/// sending.
pub async fn ripe_messages_enter_in_the_order_of_their_times(engine: Engine) {
    for _ in 0..20 {
        let at = partition(&engine).await;
        let start = Instant::now();
        for (n, ms) in [(5, 500), (1, 100), (4, 400), (2, 200), (3, 300)] {
            delay(&engine, &at, n, Duration::from_millis(ms)).await;
        }
        let twins = Append { after: Duration::from_millis(600), ..Append::new([numbered(6), numbered(7)]) };
        engine.append(&at, twins).await.unwrap();
        // Times count from each send: only if all were sent within one step of the delays do they
        // have this order.
        if start.elapsed() < Duration::from_millis(100) {
            return promote_due_in_order(&engine, &at).await;
        }
    }
    panic!("the machine is too busy to send six messages within 100 ms");
}

async fn promote_due_in_order(engine: &Engine, at: &Partition) {
    append(engine, at, 0, 1).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut moved = 0;
    while moved < 7 {
        let step = engine.promote_due(at, 2).await.unwrap().moved;
        assert!((1..=2).contains(&step), "{moved} of 7 moved, then {step}");
        moved += step;
    }
    assert_eq!(engine.promote_due(at, 2).await.unwrap().moved, 0);
    assert_eq!(numbers(&read_all(engine, at).await), (0..8).collect::<Vec<_>>());
}

/// Racing ripeners never double a message.
pub async fn racing_promoters_move_each_message_once(engine: Engine) {
    let at = partition(&engine).await;
    for n in 0..20 {
        delay(&engine, &at, n, Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let engine = engine.clone();
            let at = at.clone();
            tokio::spawn(async move { engine.promote_due(&at, 7).await.unwrap().moved })
        })
        .collect();
    let mut moved = 0;
    for task in tasks {
        moved += task.await.unwrap();
    }
    assert_eq!(moved, 20);
    assert_eq!(numbers(&read_all(&engine, &at).await), (0..20).collect::<Vec<_>>());
}

/// At most this many records and bytes, but always one.
pub async fn a_read_respects_both_limits(engine: Engine) {
    let at = partition(&engine).await;
    engine.append(&at, Append::new(vec![Content::new(vec![b'x'; 1000]); 20])).await.unwrap();
    let read = |records, bytes| {
        let engine = engine.clone();
        let at = at.clone();
        async move { engine.read(&at, RecordId::ZERO, ReadLimit { records, bytes }).await.unwrap().len() }
    };
    assert_eq!(read(5, 1 << 20).await, 5);
    assert_eq!(read(100, 1 << 20).await, 20);
    assert_eq!(read(100, 1).await, 1);
    let some = read(100, 5500).await;
    assert!((4..=5).contains(&some), "{some}");
}

/// A hint fires for an append that happens after it was made, also before a reader waits.
pub async fn a_waiting_reader_is_woken(engine: Engine) {
    let at = partition(&engine).await;
    let mut hint = engine.hint(HintKey::Log(at.clone()));
    append(&engine, &at, 0, 1).await;
    soon("an append before the wait is not missed", hint.wait()).await;
    for n in 1..20 {
        let waiting = tokio::spawn(async move {
            hint.wait().await;
            hint
        });
        append(&engine, &at, n, n + 1).await;
        hint = soon("a waiting reader is woken", waiting).await.unwrap();
        let records = engine.read(&at, RecordId::ZERO, ReadLimit::records(100)).await.unwrap();
        assert_eq!(number(records.last().unwrap()), n, "who is woken sees the record");
    }
}

/// Partitions of a topic, and topics, are apart.
pub async fn partitions_do_not_share_anything(engine: Engine) {
    let topic = firth_engine::TopicName::new(fresh("topic")).unwrap();
    let parts: Vec<_> = [0, 1, 256].map(|index| Partition::new(topic.clone(), index)).into();
    for at in &parts {
        engine.create_partition(at).await.unwrap();
    }
    append(&engine, &parts[1], 0, 5).await;
    assert!(read_all(&engine, &parts[0]).await.is_empty());
    assert!(engine.delete_partition(&parts[0]).await.unwrap());
    assert_eq!(read_all(&engine, &parts[1]).await.len(), 5);
    assert_eq!(append(&engine, &parts[2], 0, 1).await[0].seq, 1);
}

/// A batch can ask for another acknowledgement than the engine's own; what the engine cannot give
/// is refused, and nothing is appended.
pub async fn an_append_says_what_its_acknowledgement_means(engine: Engine) {
    let at = partition(&engine).await;
    let mut count = 0;
    for durability in [Durability::Fast, Durability::Synced, Durability::Replicated(9)] {
        let offered = engine.can_promise(durability).await;
        let batch = Append { durability: Some(durability), ..Append::new([numbered(count)]) };
        match offered {
            Ok(()) => {
                engine.append(&at, batch).await.unwrap();
                count += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.context().contains(&durability.to_string()), "{error}");
            }
        }
        assert_eq!(numbers(&read_all(&engine, &at).await), (0..count).collect::<Vec<_>>());
    }
    assert!(count > 0, "every engine can be fast");
}
