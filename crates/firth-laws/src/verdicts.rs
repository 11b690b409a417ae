//! Laws of commits with verdicts, which take another way than those that only move the frontier:
//! each refusal, and each count (laws 2, 3, 4 and 6).

use crate::world::{
    LONG, Owner, acquire, append, dead, fails, group, numbers, partition, retry, retry_kept, status,
    take_over,
};
use firth_engine::facet::{Replay, Reset, StartPosition, TakeDue, Trim, TrimTo};
use firth_engine::{Ahead, Commit, Dead, Engine, ErrorKind, GroupName, Partition, RecordId, Retry, Verdict};
use std::collections::BTreeMap;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn again(id: RecordId) -> Retry {
    Retry { id, after: Duration::ZERO, reason: "again".into(), kept: None }
}

/// Due records: number and attempt.
async fn attempts(engine: &Engine, at: &Partition, name: &GroupName) -> BTreeMap<u64, u32> {
    let all = engine.pending(at, name, RecordId::ZERO, 1000).await.unwrap();
    assert_eq!(status(engine, at, name).await.due, all.len() as u64, "what is counted is what is listed");
    all.into_iter().map(|due| (due.id.seq, due.attempt)).collect()
}

/// As without verdicts: progress only grows and stays within the log.
pub async fn t01_progress_with_a_verdict_never_goes_back(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let first = owner.take(1).await.remove(0);
    owner.judge(&first, retry(Duration::ZERO)).await;
    assert_eq!(owner.due(1).await.len(), 1);
    let ahead = |seqs: &[u64]| seqs.iter().copied().collect::<Ahead>();
    let moved = Commit { frontier: ids[3], ahead: ahead(&[6, 7, 9]), ..Commit::default() };
    owner.send(moved).await.unwrap();
    let done = |frontier, seqs: &[u64]| Commit {
        frontier,
        ahead: ahead(seqs),
        done: vec![ids[0]],
        ..Commit::default()
    };
    fails(owner.send(done(ids[2], &[6, 7, 9])).await, ErrorKind::Invalid);
    fails(owner.send(done(ids[3], &[6, 9])).await, ErrorKind::Invalid);
    fails(owner.send(done(ids[4], &[7, 9])).await, ErrorKind::Invalid);
    fails(owner.send(done(RecordId::new(ids[9].ms, 11), &[])).await, ErrorKind::Invalid);
    fails(owner.send(done(ids[3], &[6, 7, 9, 11])).await, ErrorKind::Invalid);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.frontier, now.ahead, now.due), (ids[3], 3, 1));
    owner.send(done(ids[9], &[])).await.unwrap();
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// A record that was settled ahead, or that the commit does not pass, is not open.
pub async fn t01_a_verdict_ahead_of_the_frontier_needs_an_open_record(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 6).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let records = owner.take(6).await;
    let ahead = |seqs: &[u64]| seqs.iter().copied().collect::<Ahead>();
    owner.send(Commit { ahead: ahead(&[3]), ..Commit::default() }).await.unwrap();
    let corpse = |at: usize| Dead { record: records[at].clone(), reason: "no".into() };
    let all = || Commit::up_to(ids[5]);
    fails(owner.send(Commit { retries: vec![again(ids[2])], ..all() }).await, ErrorKind::Invalid);
    let around = vec![again(ids[1]), again(ids[2]), again(ids[3])];
    fails(owner.send(Commit { retries: around, ..all() }).await, ErrorKind::Invalid);
    fails(owner.send(Commit { dead: vec![corpse(2)], ..all() }).await, ErrorKind::Invalid);
    let two = || Commit { ahead: ahead(&[3]), ..Commit::up_to(ids[1]) };
    fails(owner.send(Commit { dead: vec![corpse(4)], ..two() }).await, ErrorKind::Invalid);
    fails(owner.send(Commit { retries: vec![again(ids[4])], ..two() }).await, ErrorKind::Invalid);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.due, now.dead), (5, 0, 0));
    // With what the commit passes it is right, before the frontier and ahead of it.
    let both = Commit { retries: vec![again(ids[4])], ahead: ahead(&[3, 5]), ..Commit::up_to(ids[0]) };
    owner.send(Commit { dead: vec![corpse(0)], ..both }).await.unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.due, now.dead), (3, 1, 1));
}

/// Ids are compared whole: 20 begins as 2 does.
pub async fn a_verdict_is_of_the_record_with_exactly_its_id(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 25).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(25).await {
        let verdict =
            |reason: &str| Verdict::Retry { after: Duration::ZERO, reason: reason.into(), keep: false };
        match record.id.seq {
            1 | 2 => owner.settle(&record, verdict("low")),
            20 => owner.settle(&record, verdict("high")),
            _ => owner.settle(&record, Verdict::Ack),
        }
    }
    owner.commit().await;
    let due = owner.due(9).await;
    assert_eq!(due.iter().map(|record| record.id.seq).collect::<Vec<_>>(), [1, 2, 20]);
    owner.settle(&due[0], Verdict::Ack);
    owner.settle(&due[2], Verdict::Ack);
    owner.commit().await;
    assert_eq!(attempts(&engine, &at, &name).await, [(2, 2)].into());
    owner.judge(&due[1], Verdict::Ack).await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// An owner that remembers record 12 does not know record 1.
pub async fn content_of_a_record_is_left_out_only_if_exactly_its_id_is_known(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 12).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(12).await {
        let reason = record.id.seq.to_string().into();
        owner.settle(&record, Verdict::Retry { after: Duration::ZERO, reason, keep: false });
    }
    owner.commit().await;
    let due =
        engine.due(&at, &name, &owner.hold, TakeDue { max: 99, known: &[ids[9], ids[11]] }).await.unwrap();
    let mut unknown: Vec<_> =
        due.records.iter().filter(|record| record.content.is_some()).map(|record| record.id.seq).collect();
    unknown.sort_unstable();
    assert_eq!(unknown, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]);
}

/// Records with different pasts may fail together: each counts its own attempts.
pub async fn attempts_are_counted_apart_also_if_records_fail_in_one_commit(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 4).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let records = owner.take(4).await;
    // Seconds are in the middle: a first, a second, a third and a first attempt.
    owner.settle(&records[1], retry(Duration::ZERO));
    owner.settle(&records[2], retry(Duration::ZERO));
    owner.commit().await;
    let due = owner.due(9).await;
    owner.judge(&due[1], retry(Duration::ZERO)).await;
    let third = owner.due(9).await.remove(0);
    for record in [&records[0], &due[0], &third, &records[3]] {
        owner.settle(record, retry(HOUR));
    }
    owner.commit().await;
    assert_eq!(attempts(&engine, &at, &name).await, [(1, 2), (2, 3), (3, 4), (4, 2)].into());
}

/// What is trimmed away under an owner that has read it is no loss of the server.
pub async fn k04_an_owner_may_commit_after_a_trim_of_what_it_read(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let records = owner.take(5).await;
    let trim = Trim { to: TrimTo::Keep(2), lossy: true };
    assert_eq!(engine.trim(&at, trim).await.unwrap().removed, 8);
    owner.settle(&records[0], Verdict::Ack);
    owner.commit().await;
    owner.settle(&records[1], dead("no"));
    owner.commit().await;
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.dead), (2, 1));
}

/// After a reset a letter's record may wait again, or be due: the letter does not bring a second
/// one.
pub async fn a_letter_whose_record_comes_anyway_brings_no_second_one(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 6).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(6).await {
        owner.settle(&record, dead("given up"));
    }
    owner.commit().await;
    let reset = Reset { to: StartPosition::Start, drop_due: false };
    engine.reset(&at, &name, reset, None).await.unwrap();
    let mut owner = Owner::new(&engine, &at, &name).await;
    let verdicts = [retry(HOUR), retry(HOUR), retry_kept(HOUR), Verdict::Ack];
    for (record, verdict) in owner.take(4).await.iter().zip(verdicts) {
        owner.settle(record, verdict);
    }
    owner.commit().await;
    assert_eq!(engine.replay(&at, &name, &ids, Replay::Group).await.unwrap(), 6);
    assert_eq!(attempts(&engine, &at, &name).await, [(1, 2), (2, 2), (3, 2), (4, 1)].into());
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.dead), (2, 0));
    assert_eq!(numbers(&owner.take(2).await), [4, 5]);
}

/// A holder that gives its lease back before it opened says nothing of the owner before it.
pub async fn an_owner_that_leaves_before_it_opens_hides_no_crash(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 5).await;
    Owner::new(&engine, &at, &name).await;
    let hold = take_over(&engine, &at, &name).await;
    assert!(engine.release(&hold).await.unwrap());
    let hold = acquire(&engine, &at, &name, LONG).await;
    assert!(engine.release(&hold).await.unwrap());
    assert_eq!(Owner::new(&engine, &at, &name).await.progress.crashes, 1);
}
