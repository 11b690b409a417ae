//! Laws of records that fail together: an engine may keep them together, but each has its own fate
//! (laws 2, 4, 5).

use crate::world::{Owner, append, dead, group, number, numbers, partition, retry, status};
use firth_engine::facet::{Pending, Reset, StartPosition, TakeDue, Trim, TrimTo};
use firth_engine::{Engine, GroupName, Partition, Record, RecordId, Verdict};
use std::collections::BTreeMap;
use std::time::Duration;

/// An owner that has failed `count` records in one commit.
async fn failed(engine: &Engine, at: &Partition, name: &GroupName, count: usize) -> (Owner, Vec<RecordId>) {
    let ids = append(engine, at, 0, count as u64).await;
    let mut owner = Owner::new(engine, at, name).await;
    for record in owner.take(count).await {
        owner.settle(&record, retry(Duration::ZERO));
    }
    owner.commit().await;
    (owner, ids)
}

async fn pending(engine: &Engine, at: &Partition, name: &GroupName) -> Vec<Pending> {
    engine.pending(at, name, RecordId::ZERO, 1000).await.unwrap()
}

async fn attempts(engine: &Engine, at: &Partition, name: &GroupName) -> BTreeMap<u64, u32> {
    let all = pending(engine, at, name).await;
    assert!(all.is_sorted_by_key(|due| due.id), "pages come in the order of ids");
    assert_eq!(status(engine, at, name).await.due, all.len() as u64, "what is counted is what is listed");
    all.into_iter().map(|due| (due.id.seq, due.attempt)).collect()
}

/// An engine may take whole what lies together and so fewer than asked for, but never none, and it
/// says that something is left.
pub async fn who_takes_a_part_is_told_of_the_rest(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let (mut owner, _) = failed(&engine, &at, &name, 3).await;
    append(&engine, &at, 3, 7).await;
    for record in owner.take(4).await {
        owner.settle(&record, retry(Duration::ZERO));
    }
    owner.commit().await;
    let mut hand = Vec::new();
    for max in [2, 4, 1, 5, 5, 5] {
        let due = engine.due(&at, &name, &owner.hold, TakeDue::up_to(max)).await.unwrap();
        assert!(due.records.len() <= max && (hand.len() == 7 || !due.records.is_empty()));
        hand.extend(due.records.iter().map(|record| record.id.seq));
        assert_eq!(due.next, (hand.len() < 7).then_some(Duration::ZERO));
    }
    assert_eq!(hand, [1, 2, 3, 4, 5, 6, 7]);
}

/// Taken in parts, settled in any order, some again and some for good: nothing of one record's fate
/// rubs off on another.
pub async fn what_failed_together_is_judged_one_by_one(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let (mut owner, ids) = failed(&engine, &at, &name, 40).await;
    let mut model: BTreeMap<u64, u32> = ids.iter().map(|id| (id.seq, 2)).collect();
    assert_eq!(attempts(&engine, &at, &name).await, model);
    let mut hand = owner.due(7).await;
    assert_eq!(numbers(&hand), [0, 1, 2, 3, 4, 5, 6]);
    hand.extend(owner.due(20).await);
    hand.extend(owner.due(100).await);
    assert_eq!(numbers(&hand), (0..40).collect::<Vec<_>>());
    // From the end, from the middle, every third, then the rest; each in a commit of its own.
    let picks: [fn(u64) -> bool; 4] = [|n| n >= 35, |n| (10..15).contains(&n), |n| n % 3 == 0, |_| true];
    for pick in picks {
        let (now, later): (Vec<Record>, Vec<Record>) =
            hand.into_iter().partition(|record| pick(number(record)));
        for record in &now {
            match number(record) % 4 {
                0 => {
                    owner.settle(record, retry(Duration::from_secs(3600)));
                    model.insert(record.id.seq, 3);
                }
                1 => {
                    owner.settle(record, dead("no use"));
                    model.remove(&record.id.seq);
                }
                _ => {
                    owner.settle(record, Verdict::Ack);
                    model.remove(&record.id.seq);
                }
            }
        }
        owner.commit().await;
        assert_eq!(attempts(&engine, &at, &name).await, model);
        hand = later;
    }
    let left = status(&engine, &at, &name).await;
    assert_eq!((left.due, left.dead, left.waiting), (10, 10, 0));
    assert!(owner.due(100).await.is_empty(), "the rest waits for an hour");
}

/// A page that ends among records that failed together goes on behind the last one that it showed.
pub async fn pages_of_pending_records_miss_none(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 30).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(30).await {
        // Two sorts, interlaced.
        let after = Duration::from_secs(3600 + number(&record) % 2);
        owner.settle(&record, retry(after));
    }
    owner.commit().await;
    let mut seen = Vec::new();
    let mut after = RecordId::ZERO;
    loop {
        let page = engine.pending(&at, &name, after, 4).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 4);
        after = last.id;
        seen.extend(page.into_iter().map(|due| due.id));
    }
    assert_eq!(seen, ids);
}

/// What a vanished owner had not taken was not in its hands.
pub async fn only_what_was_taken_counts_a_crash(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let (mut owner, _) = failed(&engine, &at, &name, 10).await;
    assert_eq!(owner.due(4).await.len(), 4);
    let mut next = Owner::after_crash(&engine, &at, &name).await;
    let crashes: Vec<_> = next.due(100).await.iter().map(|record| (number(record), record.crashes)).collect();
    let mut sorted = crashes;
    sorted.sort_unstable();
    let expected: Vec<_> = (0..10).map(|n| (n, u32::from(n < 4))).collect();
    assert_eq!(sorted, expected);
}

/// Retention waits for the first record that is still due, and moves on when that one is settled.
pub async fn retention_waits_for_the_first_that_is_due(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let (mut owner, ids) = failed(&engine, &at, &name, 10).await;
    let hand = owner.due(100).await;
    let trim = Trim { to: TrimTo::Keep(0), lossy: false };
    assert_eq!(engine.trim(&at, trim).await.unwrap().removed, 0);
    for record in &hand[..3] {
        owner.settle(record, Verdict::Ack);
    }
    owner.settle(&hand[5], Verdict::Ack);
    owner.commit().await;
    assert_eq!(engine.trim(&at, trim).await.unwrap().removed, 3);
    let left: Vec<_> = pending(&engine, &at, &name).await.iter().map(|due| due.id).collect();
    assert_eq!(left, [ids[3], ids[4], ids[6], ids[7], ids[8], ids[9]]);
}

/// A lossy trim takes some of those that failed together; the others come.
pub async fn a_lossy_trim_takes_only_its_own(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let (mut owner, ids) = failed(&engine, &at, &name, 10).await;
    engine.trim(&at, Trim { to: TrimTo::Keep(6), lossy: true }).await.unwrap();
    // Even for an owner that still knows everything.
    let due = engine.due(&at, &name, &owner.hold, TakeDue { max: 100, known: &ids }).await.unwrap();
    assert_eq!((due.lost, due.records.len()), (4, 6));
    assert_eq!(due.records[0].id, ids[4]);
    assert_eq!(status(&engine, &at, &name).await.due, 6);
    for (record, id) in due.records.into_iter().zip(&ids[4..]) {
        let record = record.with(|| Some(firth_engine::Content::new("known"))).unwrap();
        assert_eq!(record.id, *id);
        assert!(owner.window.offer_due(&record));
        owner.settle(&record, Verdict::Ack);
    }
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// A group that is moved to a place among them keeps those before it due, and gets the others from
/// the log.
pub async fn a_reset_among_them_delivers_each_once(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let (mut owner, ids) = failed(&engine, &at, &name, 10).await;
    assert_eq!(owner.due(3).await.len(), 3);
    engine
        .reset(&at, &name, Reset { to: StartPosition::After(ids[5]), drop_due: false }, None)
        .await
        .unwrap();
    let after = status(&engine, &at, &name).await;
    assert_eq!((after.due, after.waiting), (6, 4));
    let mut owner = Owner::new(&engine, &at, &name).await;
    let mut seen = numbers(&owner.due(100).await);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    assert_eq!(numbers(&owner.take(4).await), [6, 7, 8, 9]);
}

/// Reasons are texts of their own: with any content, the record comes back whole.
pub async fn a_reason_may_hold_anything(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let texts = ["", ":", "2:0/3 1-1 1-2:x", " 5-17", "line\nbreak: 7-7"];
    let ids = append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for (at, record) in owner.take(10).await.iter().enumerate() {
        let reason = texts[at / 2].to_owned();
        owner.settle(record, Verdict::Retry { after: Duration::ZERO, reason: reason.into(), keep: false });
    }
    owner.commit().await;
    let listed: Vec<_> =
        pending(&engine, &at, &name).await.into_iter().map(|due| (due.id, due.reason)).collect();
    let expected: Vec<_> = ids.iter().enumerate().map(|(at, id)| (*id, texts[at / 2].to_owned())).collect();
    assert_eq!(listed, expected);
    let hand = owner.due(100).await;
    assert_eq!(hand.len(), 10);
    hand.iter().for_each(|record| owner.settle(record, Verdict::Ack));
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}
