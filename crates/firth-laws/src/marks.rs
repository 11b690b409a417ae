//! Laws of source marks (engine law 11): a mark moves in the same step as its records, under the
//! newest epoch only.

use crate::world::{Owner, unmade_partition};
use crate::world::{append, fails, fresh, group, number, numbered, numbers, partition, producer, read_all};
use bytes::Bytes;
use firth_engine::facet::{Append, NewMark, ProducerSeq, SourceMark, Trim, TrimTo};
use firth_engine::limits::{MAX_MARK, MAX_SOURCES};
use firth_engine::{Engine, Epoch, ErrorKind, Partition, ProducerName, RecordId, SourceName};
use std::time::Duration;

/// A batch of the crash laws: numbered by a producer, or with the mark of a source. `first` is the
/// number of its first record.
pub fn once(batch: Append, first: u64, is_marked: bool) -> Append {
    if is_marked {
        let upto = crash_mark(first + batch.records.len() as u64);
        let mark = Some(NewMark { source: crash_source(), epoch: Epoch(1), upto });
        return Append { mark, ..batch };
    }
    let name = ProducerName::new("p").unwrap();
    Append { producer: Some(ProducerSeq { name, first, keep: Duration::ZERO }), ..batch }
}

/// The source of the crash laws.
pub fn crash_source() -> SourceName {
    SourceName::new("crash").unwrap()
}

/// Its mark once the log holds this many records.
pub fn crash_mark(records: u64) -> Bytes {
    Bytes::copy_from_slice(&records.to_be_bytes())
}

/// A fresh source.
fn source() -> SourceName {
    SourceName::new(fresh("source")).unwrap()
}

/// The records `from..to` with the mark `upto` under `epoch`.
fn marked(source: &SourceName, epoch: u64, upto: &[u8], from: u64, to: u64) -> Append {
    let upto = Bytes::copy_from_slice(upto);
    let mark = Some(NewMark { source: source.clone(), epoch: Epoch(epoch), upto });
    Append { mark, ..Append::new((from..to).map(numbered).collect::<Vec<_>>()) }
}

fn kept(epoch: u64, upto: &[u8]) -> Option<SourceMark> {
    Some(SourceMark { epoch: Epoch(epoch), upto: Bytes::copy_from_slice(upto) })
}

async fn log(engine: &Engine, at: &Partition) -> Vec<u64> {
    numbers(&read_all(engine, at).await)
}

/// Records and mark are stored together; an append without records moves the mark alone.
pub async fn a_mark_moves_with_its_records(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), None);
    let first = engine.append(&at, marked(&shop, 7, b"\x00a", 0, 3)).await.unwrap();
    assert_eq!((first.first.map(|id| id.seq), first.count, first.duplicate), (Some(1), 3, false));
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(7, b"\x00a"));
    append(&engine, &at, 3, 5).await;
    let moved = engine.append(&at, marked(&shop, 7, b"\x00b", 0, 0)).await.unwrap();
    assert_eq!((moved.first, moved.count, moved.duplicate), (None, 0, false));
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(7, b"\x00b"));
    let next = engine.append(&at, marked(&shop, 7, b"\x00c", 5, 6)).await.unwrap();
    assert_eq!(next.first.map(|id| id.seq), Some(6));
    append(&engine, &at, 6, 7).await;
    assert_eq!(log(&engine, &at).await, (0..7).collect::<Vec<_>>());
    let ids: Vec<_> = read_all(&engine, &at).await.iter().map(|record| record.id).collect();
    assert!(ids.is_sorted() && ids.iter().all(|id| id.ms > 0));
}

/// What the mark covers is not appended again, also with other records. Marks are compared byte by
/// byte, also those that look like text in some language.
pub async fn what_a_mark_covers_is_appended_once(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    let rising: [&[u8]; 10] =
        [b"\0", b"\0\0", b"0", b"B", b"Ba", b"a", b"a\0", b"\x7f", b"\x80", b"\xff\xff"];
    for (n, upto) in (0..).zip(rising) {
        assert!(!engine.append(&at, marked(&shop, 1, upto, n, n + 1)).await.unwrap().duplicate, "{upto:?}");
        for covered in &rising[..=n as usize] {
            let again = engine.append(&at, marked(&shop, 1, covered, 90, 99)).await.unwrap();
            assert_eq!(
                (again.first, again.count, again.duplicate),
                (None, 9, true),
                "{covered:?} at {upto:?}"
            );
            assert!(engine.append(&at, marked(&shop, 1, covered, 0, 0)).await.unwrap().duplicate);
        }
        assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(1, upto));
    }
    assert_eq!(log(&engine, &at).await, (0..10).collect::<Vec<_>>());
}

/// A reader with an old epoch changes nothing, neither by records nor by a mark alone.
pub async fn an_old_epoch_of_a_source_changes_nothing(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    engine.append(&at, marked(&shop, 5, b"b", 0, 1)).await.unwrap();
    engine.append(&at, marked(&shop, u64::MAX - 1, b"c", 1, 2)).await.unwrap();
    for (epoch, upto) in [(5, b"d"), (0, b"d"), (u64::MAX - 2, b"d"), (5, b"a"), (1 << 53, b"d")] {
        fails(engine.append(&at, marked(&shop, epoch, upto, 9, 10)).await, ErrorKind::Fenced);
        fails(engine.append(&at, marked(&shop, epoch, upto, 0, 0)).await, ErrorKind::Fenced);
    }
    fails(engine.append(&at, marked(&shop, 5, b"", 0, 0)).await, ErrorKind::Fenced);
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(u64::MAX - 1, b"c"));
    assert_eq!(log(&engine, &at).await, [0, 1]);
}

/// A new reader notes its epoch first, with an empty mark or with one that the log covers. From
/// then on the old one is fenced, and the mark stands where it stood.
pub async fn a_new_epoch_fences_without_moving_the_mark(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    engine.append(&at, marked(&shop, 3, b"", 0, 0)).await.unwrap();
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(3, b""));
    engine.append(&at, marked(&shop, 3, b"m", 0, 1)).await.unwrap();
    for (epoch, upto) in [(4, &b""[..]), (5, b"a"), (6, b"m")] {
        assert!(engine.append(&at, marked(&shop, epoch, upto, 0, 0)).await.unwrap().duplicate);
        assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(epoch, b"m"));
        fails(engine.append(&at, marked(&shop, epoch - 1, b"z", 1, 2)).await, ErrorKind::Fenced);
    }
    engine.append(&at, marked(&shop, 6, b"n", 1, 2)).await.unwrap();
    assert_eq!(log(&engine, &at).await, [0, 1]);
}

/// Ten copies of a batch at once append it once.
pub async fn racing_copies_of_a_marked_batch_append_once(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let engine = engine.clone();
            let at = at.clone();
            let batch = marked(&shop, 1, b"x", 0, 5);
            tokio::spawn(async move { engine.append(&at, batch).await.unwrap() })
        })
        .collect();
    let mut fresh_ones = 0;
    for task in tasks {
        fresh_ones += u32::from(!task.await.unwrap().duplicate);
    }
    assert_eq!(fresh_ones, 1);
    assert_eq!(log(&engine, &at).await, (0..5).collect::<Vec<_>>());
}

/// Readers of two epochs race, each repeats its batch; what is in the log are whole batches in
/// order, and the mark names the last of them.
pub async fn a_race_of_epochs_leaves_whole_batches(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    let tasks: Vec<_> = (1..=6_u64)
        .map(|epoch| {
            let engine = engine.clone();
            let at = at.clone();
            let shop = shop.clone();
            tokio::spawn(async move {
                for n in 0..8_u64 {
                    let batch = marked(&shop, epoch, &[u8::try_from(n).unwrap()], n * 3, n * 3 + 3);
                    match engine.append(&at, batch).await {
                        Ok(_) => {}
                        Err(error) => return assert_eq!(error.kind(), ErrorKind::Fenced),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(log(&engine, &at).await, (0..24).collect::<Vec<_>>());
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(6, &[7]));
}

/// Two sources in one partition know nothing of each other, nor does one source in two partitions.
pub async fn marks_of_two_sources_share_nothing(engine: Engine) {
    let at = partition(&engine).await;
    let other = partition(&engine).await;
    let shop = source();
    let bank = source();
    engine.append(&at, marked(&shop, 9, b"x", 0, 1)).await.unwrap();
    engine.append(&at, marked(&bank, 2, b"a", 1, 2)).await.unwrap();
    assert!(engine.append(&at, marked(&bank, 2, b"a", 1, 2)).await.unwrap().duplicate);
    engine.append(&other, marked(&shop, 4, b"b", 0, 1)).await.unwrap();
    fails(engine.append(&at, marked(&shop, 8, b"y", 2, 3)).await, ErrorKind::Fenced);
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(9, b"x"));
    assert_eq!(engine.mark(&at, &bank).await.unwrap(), kept(2, b"a"));
    assert_eq!(engine.mark(&other, &shop).await.unwrap(), kept(4, b"b"));
    assert_eq!(engine.mark(&other, &bank).await.unwrap(), None);
    assert_eq!(log(&engine, &at).await, [0, 1]);
}

/// Retention, lossy trims and groups leave marks alone, also where no record is left.
pub async fn marks_survive_trims(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    engine.append(&at, marked(&shop, 1, b"k", 0, 5)).await.unwrap();
    let mut owner = Owner::new(&engine, &at, &group("g")).await;
    assert_eq!(owner.drain().await.len(), 5);
    for to in [TrimTo::Keep(3), TrimTo::OlderThan(Duration::ZERO), TrimTo::KeepBytes(0), TrimTo::Keep(0)] {
        engine.trim(&at, Trim { to, lossy: true }).await.unwrap();
        assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(1, b"k"), "{to:?}");
    }
    assert!(engine.bounds(&at).await.unwrap().is_empty());
    assert!(engine.append(&at, marked(&shop, 1, b"k", 0, 5)).await.unwrap().duplicate);
    let next = engine.append(&at, marked(&shop, 2, b"l", 5, 6)).await.unwrap();
    assert_eq!(next.first.map(|id| id.seq), Some(6));
}

/// A mark goes with its partition: one that is made again, or under a higher rank, has none. A
/// missing partition has no marks to ask for.
pub async fn marks_go_with_their_partition(engine: Engine) {
    let at = unmade_partition();
    let shop = source();
    fails(engine.mark(&at, &shop).await, ErrorKind::NotFound);
    fails(engine.append(&at, marked(&shop, 1, b"a", 0, 0)).await, ErrorKind::NotFound);
    fails(engine.append(&at, marked(&shop, 1, b"a", 0, 1)).await, ErrorKind::NotFound);
    fails(engine.forget_source(&at, &shop).await, ErrorKind::NotFound);
    for rank in [1, 2, 3] {
        assert!(engine.create_partition_as(&at, rank).await.unwrap());
        assert_eq!(engine.mark(&at, &shop).await.unwrap(), None, "rank {rank}");
        engine.append(&at, marked(&shop, 10 - rank, b"a", 0, 1)).await.unwrap();
        if rank == 2 {
            assert!(engine.delete_partition(&at).await.unwrap());
        }
    }
    assert_eq!(log(&engine, &at).await, [0]);
}

/// A forgotten source makes room for another, and begins anew.
pub async fn a_forgotten_source_begins_anew(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    assert!(!engine.forget_source(&at, &shop).await.unwrap());
    engine.append(&at, marked(&shop, 5, b"m", 0, 1)).await.unwrap();
    assert!(engine.forget_source(&at, &shop).await.unwrap());
    assert!(!engine.forget_source(&at, &shop).await.unwrap());
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), None);
    assert!(!engine.append(&at, marked(&shop, 1, b"a", 1, 2)).await.unwrap().duplicate);
    assert_eq!(engine.mark(&at, &shop).await.unwrap(), kept(1, b"a"));
    assert_eq!(log(&engine, &at).await, [0, 1]);
}

/// Beyond the limits nothing changes, and the error names field and limit.
pub async fn marks_have_limits(engine: Engine) {
    let at = partition(&engine).await;
    let sources: Vec<_> = (0..MAX_SOURCES).map(|_| source()).collect();
    for source in &sources {
        engine.append(&at, marked(source, 1, b"a", 0, 0)).await.unwrap();
    }
    let one_more = source();
    for batch in [marked(&one_more, 1, b"a", 0, 0), marked(&one_more, 1, b"a", 0, 1)] {
        let error = engine.append(&at, batch).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.field(), error.limit()),
            (ErrorKind::Invalid, Some("source"), Some(MAX_SOURCES))
        );
    }
    assert_eq!(engine.mark(&at, &one_more).await.unwrap(), None);
    // Those that are there go on, and one that goes makes room.
    engine.append(&at, marked(&sources[7], 1, b"b", 0, 1)).await.unwrap();
    assert!(engine.forget_source(&at, &sources[0]).await.unwrap());
    engine.append(&at, marked(&one_more, 1, &[255; MAX_MARK], 1, 2)).await.unwrap();
    fails(engine.append(&at, marked(&source(), 1, b"a", 0, 0)).await, ErrorKind::Invalid);
    for wrong in [marked(&one_more, 1, &[255; MAX_MARK + 1], 2, 3), marked(&one_more, 1, b"", 2, 3)] {
        let error = engine.append(&at, wrong).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("upto")));
    }
    let delayed = Append { after: Duration::from_secs(1), ..marked(&sources[7], 1, b"c", 2, 3) };
    let seq = ProducerSeq { name: producer(), first: 0, keep: Duration::ZERO };
    let numbered = Append { producer: Some(seq), ..marked(&sources[7], 1, b"c", 2, 3) };
    for wrong in [delayed, numbered] {
        fails(engine.append(&at, wrong).await, ErrorKind::Invalid);
    }
    assert_eq!(engine.mark(&at, &sources[7]).await.unwrap(), kept(1, b"b"));
    assert_eq!(log(&engine, &at).await, [0, 1]);
}

/// Marked batches among plain ones of other writers: everything is there once, each writer's
/// records in its order.
pub async fn marked_and_plain_appends_go_side_by_side(engine: Engine) {
    let at = partition(&engine).await;
    let shop = source();
    let plain = {
        let engine = engine.clone();
        let at = at.clone();
        tokio::spawn(async move {
            for n in 0..60 {
                append(&engine, &at, 1000 + n, 1001 + n).await;
            }
        })
    };
    for n in 0..60_u64 {
        let batch = marked(&shop, 1, &n.to_be_bytes(), n, n + 1);
        assert!(!engine.append(&at, batch.clone()).await.unwrap().duplicate);
        assert!(engine.append(&at, batch).await.unwrap().duplicate);
    }
    plain.await.unwrap();
    let all = read_all(&engine, &at).await;
    let (own, others): (Vec<_>, Vec<_>) = all.iter().map(number).partition(|n| *n < 1000);
    assert_eq!(own, (0..60).collect::<Vec<_>>());
    assert_eq!(others, (1000..1060).collect::<Vec<_>>());
    assert!(all.iter().zip(1..).all(|(record, seq)| record.id.seq == seq && record.id > RecordId::ZERO));
}
