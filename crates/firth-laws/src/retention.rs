//! Laws of retention (law 6).

use crate::world::{
    Gap, Owner, append, group, number, numbers, partition, read_all, retry, retry_kept, status,
};
use firth_engine::facet::{Append, StartPosition, TakeDue, Trim, TrimTo};
use firth_engine::{Content, Engine, RecordId, Verdict, Window};
use std::time::Duration;

fn trim(to: TrimTo) -> Trim {
    Trim { to, lossy: false }
}

/// The slowest group decides, also if it never had an owner, and records settled ahead stay too.
pub async fn nothing_unsettled_is_trimmed(engine: Engine) {
    let at = partition(&engine).await;
    let fast = group("fast");
    let slow = group("slow");
    let ids = append(&engine, &at, 0, 20).await;
    engine.create_group(&at, &slow, StartPosition::Start, None).await.unwrap();
    let mut owner = Owner::new(&engine, &at, &fast).await;
    owner.drain().await;
    let held = engine.trim(&at, trim(TrimTo::Keep(0))).await.unwrap();
    assert_eq!((held.removed, held.held_back), (0, true));
    let mut owner = Owner::new(&engine, &at, &slow).await;
    for record in owner.take(12).await {
        if number(&record) != 7 {
            owner.settle(&record, Verdict::Ack);
        }
    }
    owner.commit().await;
    let trimmed = engine.trim(&at, trim(TrimTo::Keep(5))).await.unwrap();
    assert_eq!((trimmed.removed, trimmed.trimmed, trimmed.held_back), (7, ids[6], true));
    assert_eq!(numbers(&read_all(&engine, &at).await), (7..20).collect::<Vec<_>>());
    let mut next = Owner::after_crash(&engine, &at, &slow).await;
    assert_eq!(next.drain().await, [vec![7], (12..20).collect()].concat());
    let rest = engine.trim(&at, trim(TrimTo::Id(RecordId::MAX))).await.unwrap();
    assert_eq!((rest.removed, rest.held_back), (13, false));
    let bounds = engine.bounds(&at).await.unwrap();
    assert_eq!((bounds.trimmed, bounds.last, bounds.len()), (ids[19], ids[19], 0));
    assert_eq!(append(&engine, &at, 20, 21).await[0].seq, 21, "numbers go on");
}

/// A record that waits for a retry by reference is still needed.
pub async fn a_due_record_holds_retention_back(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(10).await {
        let verdict = if number(&record) == 4 { retry(Duration::ZERO) } else { Verdict::Ack };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    let held = engine.trim(&at, trim(TrimTo::Keep(0))).await.unwrap();
    assert_eq!((held.removed, held.held_back), (4, true));
    let due = owner.due(9).await;
    assert_eq!(numbers(&due), [4]);
    assert_eq!(engine.trim(&at, trim(TrimTo::Keep(0))).await.unwrap().removed, 0, "taken is not settled");
    owner.judge(&due[0], Verdict::Ack).await;
    assert_eq!(engine.trim(&at, trim(TrimTo::Keep(0))).await.unwrap().removed, 6);
}

/// Law 4: with its content kept aside a record can wait for long while the log moves on.
pub async fn a_kept_record_does_not_hold_retention_back(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(10).await {
        let verdict = if number(&record) == 4 { retry_kept(Duration::ZERO) } else { Verdict::Ack };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    assert_eq!(engine.trim(&at, trim(TrimTo::Keep(0))).await.unwrap().removed, 10);
    let due = owner.due(9).await;
    assert_eq!((numbers(&due), due[0].attempt), (vec![4], 2));
    // Kept once, kept for good.
    owner.judge(&due[0], retry(Duration::ZERO)).await;
    let due = owner.due(9).await;
    assert_eq!((numbers(&due), due[0].attempt), (vec![4], 3));
}

/// Who asks for loss gets it, and the owner can tell how much.
pub async fn a_lossy_trim_is_seen_as_a_gap(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(3).await {
        let verdict = if number(&record) == 1 { retry(Duration::ZERO) } else { Verdict::Ack };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    let lossy = Trim { to: TrimTo::Keep(4), lossy: true };
    assert_eq!(engine.trim(&at, lossy).await.unwrap().removed, 6);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.frontier), (4, ids[2]));
    let progress = engine.open(&at, &name, StartPosition::Start, &owner.hold).await.unwrap();
    let mut window = Window::new(&progress, 100);
    let rest =
        engine.read(&at, window.position(), firth_engine::facet::ReadLimit::records(10)).await.unwrap();
    rest.iter().for_each(|record| {
        window.offer(record);
        window.settle(record, Verdict::Ack).unwrap();
    });
    assert_eq!((numbers(&rest), window.lost()), (vec![6, 7, 8, 9], 3));
    owner.send(window.take_commit().unwrap()).await.unwrap();
    let due = engine.due(&at, &name, &owner.hold, TakeDue { max: 9, known: &ids }).await.unwrap();
    assert_eq!((due.records.len(), due.lost), (0, 1), "its content is gone, and that is said");
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// By count, by age, by id; without any group nothing holds back.
pub async fn trimming_by_count_age_and_id(engine: Engine) {
    let at = partition(&engine).await;
    let ids = append(&engine, &at, 0, 10).await;
    assert_eq!(engine.trim(&at, trim(TrimTo::Id(ids[1]))).await.unwrap().removed, 2);
    assert_eq!(engine.trim(&at, trim(TrimTo::Id(ids[0]))).await.unwrap().removed, 0);
    assert_eq!(engine.trim(&at, trim(TrimTo::Keep(100))).await.unwrap().removed, 0);
    assert_eq!(engine.trim(&at, trim(TrimTo::Keep(7))).await.unwrap().removed, 1);
    assert_eq!(
        engine.trim(&at, trim(TrimTo::OlderThan(Duration::from_secs(3600)))).await.unwrap().removed,
        0
    );
    let gap = Gap::pass().await;
    append(&engine, &at, 10, 12).await;
    assert_eq!(engine.trim(&at, trim(TrimTo::OlderThan(gap.age()))).await.unwrap().removed, 7);
    assert_eq!(numbers(&read_all(&engine, &at).await), [10, 11]);
    let after_trimmed = engine.read(&at, ids[0], firth_engine::facet::ReadLimit::records(9)).await.unwrap();
    assert_eq!(numbers(&after_trimmed), [10, 11], "reading below the mark starts at the first kept record");
}

/// Content number `n`, of a size of its own.
fn sized(n: usize) -> Content {
    Content::new(vec![b'x'; 40 + 37 * (n % 7)])
}

/// How many of the newest of the first `count` records fit `bytes`.
fn fitting(count: usize, bytes: u64) -> usize {
    let mut left = bytes;
    let fit = (0..count).rev().take_while(|n| {
        let size = sized(*n).packed().len() as u64;
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    });
    fit.count()
}

/// By size: the newest records that fit stay, no more and no less, however they came and
/// beside other trims.
pub async fn trimming_by_size(engine: Engine) {
    let at = partition(&engine).await;
    let mut count = 0;
    for batch in [150, 1, 70, 9] {
        let contents: Vec<_> = (count..count + batch).map(sized).collect();
        engine.append(&at, Append::new(contents)).await.unwrap();
        count += batch;
        let keep = 3000 + batch as u64 * 50;
        engine.trim(&at, trim(TrimTo::KeepBytes(keep))).await.unwrap();
        assert_eq!(
            read_all(&engine, &at).await.len(),
            fitting(count, keep),
            "{keep} bytes after {batch} more"
        );
        let nothing = engine.trim(&at, trim(TrimTo::KeepBytes(keep))).await.unwrap();
        assert_eq!((nothing.removed, nothing.held_back), (0, false));
    }
    engine.trim(&at, trim(TrimTo::Keep(12))).await.unwrap();
    let all: u64 = (count - 12..count).map(|n| sized(n).packed().len() as u64).sum();
    assert_eq!(engine.trim(&at, trim(TrimTo::KeepBytes(all))).await.unwrap().removed, 0, "all of them fit");
    assert_eq!(engine.trim(&at, trim(TrimTo::KeepBytes(all - 1))).await.unwrap().removed, 1);
    assert_eq!(engine.trim(&at, trim(TrimTo::KeepBytes(0))).await.unwrap().removed, 11);
    assert_eq!(read_all(&engine, &at).await, []);
    assert_eq!(append(&engine, &at, 0, 1).await[0].seq, count as u64 + 1, "numbers go on");
}

/// By size, too, nothing unsettled goes, unless the call says so.
pub async fn trimming_by_size_waits_for_the_slowest_group(engine: Engine) {
    let at = partition(&engine).await;
    let fast = group("fast");
    let slow = group("slow");
    append(&engine, &at, 0, 30).await;
    engine.create_group(&at, &slow, StartPosition::Start, None).await.unwrap();
    Owner::new(&engine, &at, &fast).await.drain().await;
    let held = engine.trim(&at, trim(TrimTo::KeepBytes(0))).await.unwrap();
    assert_eq!((held.removed, held.held_back), (0, true));
    let mut owner = Owner::new(&engine, &at, &slow).await;
    for record in owner.take(12).await {
        let verdict = if number(&record) == 7 { retry(Duration::ZERO) } else { Verdict::Ack };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    let held = engine.trim(&at, trim(TrimTo::KeepBytes(1))).await.unwrap();
    assert_eq!((held.removed, held.held_back), (7, true), "a due record holds it back");
    assert_eq!(numbers(&read_all(&engine, &at).await), (7..30).collect::<Vec<_>>());
    let enough = engine.trim(&at, trim(TrimTo::KeepBytes(1 << 20))).await.unwrap();
    assert_eq!((enough.removed, enough.held_back), (0, false), "what fits is not held back");
    let lossy = Trim { to: TrimTo::KeepBytes(0), lossy: true };
    assert_eq!(engine.trim(&at, lossy).await.unwrap().removed, 23);
}
