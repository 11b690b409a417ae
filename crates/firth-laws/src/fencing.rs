//! Laws of fencing: only the newest hold changes anything (law 3).

use crate::world::{
    LONG, Owner, SHORT, acquire, append, dead, eventually, fails, group, holder, partition, retry, status,
    take_over,
};
use firth_engine::facet::{Acquire, Reset, StartPosition, TakeDue};
use firth_engine::{
    Ahead, Commit, Dead, Engine, ErrorKind, LeaseName, Record, RecordId, Retry, Token, Verdict,
};
use std::time::Duration;

/// A paused owner that wakes up finds that nothing of what it does has an effect.
pub async fn a_zombie_changes_nothing(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 10).await;
    let mut zombie = Owner::with(&engine, &at, &name, acquire(&engine, &at, &name, SHORT).await).await;
    let taken = zombie.take(4).await;
    // It freezes; its lease runs out; a second owner comes.
    let request = || Acquire::new(LeaseName::group(&at, &name), holder(), LONG);
    let mut newest = None;
    eventually("the lease runs out", || async {
        engine.acquire(request()).await.unwrap().granted().is_some()
    })
    .await;
    newest.replace(take_over(&engine, &at, &name).await);
    let mut owner = Owner::with(&engine, &at, &name, newest.unwrap()).await;
    let first = owner.take(1).await;
    owner.judge(&first[0], retry(Duration::ZERO)).await;
    let before = status(&engine, &at, &name).await;
    // It thaws.
    let stale = &zombie.hold;
    let corpse = Dead { record: taken[1].clone(), reason: "zombie".into() };
    fails(zombie.send(Commit::up_to(ids[3])).await, ErrorKind::Fenced);
    fails(
        zombie.send(Commit { frontier: ids[1], dead: vec![corpse], ..Commit::default() }).await,
        ErrorKind::Fenced,
    );
    fails(engine.open(&at, &name, StartPosition::Start, stale).await, ErrorKind::Fenced);
    fails(engine.due(&at, &name, stale, TakeDue::up_to(9)).await, ErrorKind::Fenced);
    assert_eq!(engine.renew(std::slice::from_ref(stale), LONG).await.unwrap(), [false]);
    assert!(!engine.release(stale).await.unwrap());
    let mut after = status(&engine, &at, &name).await;
    assert_eq!(
        after.owner.as_ref().map(|lease| (&lease.holder, lease.epoch)),
        before.owner.as_ref().map(|lease| (&lease.holder, lease.epoch))
    );
    (after.owner, after.oldest, after.next_due) = (before.owner.clone(), before.oldest, before.next_due);
    assert_eq!(after, before);
    assert_eq!(owner.due(9).await.len(), 1, "the owner works on");
    assert_eq!(owner.drain().await, (1..10).collect::<Vec<_>>());
}

/// A stale owner's verdicts are refused: on records of the log, on records that it had taken from
/// due, and on records ahead of the frontier.
pub async fn t01_no_verdict_of_a_zombie_counts(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 6).await;
    let mut zombie = Owner::new(&engine, &at, &name).await;
    let taken = zombie.take(2).await;
    zombie.judge(&taken[0], retry(Duration::ZERO)).await;
    let due = zombie.due(1).await;
    // It freezes. Its successor has the same records in hand, so only the fence tells the two
    // apart.
    let mut owner = Owner::after_crash(&engine, &at, &name).await;
    let again = owner.due(9).await;
    assert_eq!(again.iter().map(|record| record.id).collect::<Vec<_>>(), [ids[0]]);
    let before = status(&engine, &at, &name).await;
    let frontier = before.frontier;
    let again_after = |id| Retry { id, after: Duration::ZERO, reason: "zombie".into(), kept: None };
    let corpse = |record: &Record| Dead { record: record.clone(), reason: "zombie".into() };
    let mut ahead = Ahead::new();
    ahead.insert(ids[3].seq);
    let stale = [
        Commit { frontier, done: vec![ids[0]], ..Commit::default() },
        Commit { frontier, retries: vec![again_after(ids[0])], ..Commit::default() },
        Commit { frontier, dead: vec![corpse(&due[0])], ..Commit::default() },
        Commit { frontier: ids[1], retries: vec![again_after(ids[1])], ..Commit::default() },
        Commit { frontier: ids[1], dead: vec![corpse(&taken[1])], ..Commit::default() },
        Commit { frontier, ahead: ahead.clone(), ..Commit::default() },
        Commit { frontier, ahead, retries: vec![again_after(ids[3])], ..Commit::default() },
    ];
    for commit in stale {
        fails(zombie.send(commit).await, ErrorKind::Fenced);
        let mut after = status(&engine, &at, &name).await;
        (after.owner, after.oldest, after.next_due) = (before.owner.clone(), before.oldest, before.next_due);
        assert_eq!(after, before);
    }
    owner.judge(&again[0], Verdict::Ack).await;
    assert_eq!(owner.drain().await, [1, 2, 3, 4, 5]);
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// Two sides of a network partition may hand out one epoch: the token tells them apart.
pub async fn an_equal_epoch_with_another_token_is_fenced(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 2).await;
    let owner = Owner::new(&engine, &at, &name).await;
    let mut forged = owner.hold.clone();
    forged.token = Token(forged.token.0.wrapping_add(1));
    fails(engine.commit(&at, &name, &forged, Commit::up_to(ids[0])).await, ErrorKind::Fenced);
    fails(engine.open(&at, &name, StartPosition::Start, &forged).await, ErrorKind::Fenced);
    fails(engine.due(&at, &name, &forged, TakeDue::up_to(1)).await, ErrorKind::Fenced);
    assert_eq!(engine.renew(&[forged.clone()], LONG).await.unwrap(), [false]);
    assert!(!engine.release(&forged).await.unwrap());
    assert_eq!(status(&engine, &at, &name).await.frontier, RecordId::ZERO);
    owner.send(Commit::up_to(ids[0])).await.unwrap();
}

/// Safety rests on the epoch, not on time: late work of the only owner is not thrown away.
pub async fn an_expired_lease_that_nobody_took_still_counts(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 3).await;
    let mut owner = Owner::with(&engine, &at, &name, acquire(&engine, &at, &name, SHORT).await).await;
    let taken = owner.take(3).await;
    eventually("the lease runs out", || async {
        status(&engine, &at, &name).await.owner.unwrap().remaining.is_zero()
    })
    .await;
    taken.iter().for_each(|record| owner.settle(record, Verdict::Ack));
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
    assert_eq!(engine.renew(&[owner.hold.clone()], LONG).await.unwrap(), [true]);
}

/// The hold of one group, or one partition, opens no other door.
pub async fn a_hold_is_good_for_its_own_lease_only(engine: Engine) {
    let at = partition(&engine).await;
    let elsewhere = partition(&engine).await;
    let name = group("g");
    let other = group("other");
    append(&engine, &at, 0, 1).await;
    let hold = acquire(&engine, &at, &name, LONG).await;
    engine.create_group(&at, &other, StartPosition::Start, None).await.unwrap();
    engine.create_group(&elsewhere, &name, StartPosition::Start, None).await.unwrap();
    fails(engine.open(&at, &other, StartPosition::Start, &hold).await, ErrorKind::Invalid);
    fails(engine.commit(&elsewhere, &name, &hold, Commit::default()).await, ErrorKind::Invalid);
    fails(engine.due(&at, &other, &hold, TakeDue::up_to(1)).await, ErrorKind::Invalid);
    let mut forged = hold.clone();
    forged.lease = LeaseName::group(&at, &other);
    fails(engine.commit(&at, &other, &forged, Commit::default()).await, ErrorKind::Fenced);
}

/// A successor hears how far the owner before it said that it would go, and only that owner can say
/// it.
pub async fn u06_a_successor_hears_how_far_an_owner_would_go(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert_eq!(owner.progress.reach, Some(0), "no record was started yet");
    owner.send(Commit { reach: 3, ..owner.window.unchanged() }).await.unwrap();
    let first = owner.take(1).await;
    owner.judge(&first[0], Verdict::Ack).await;
    let mut heir = Owner::after_crash(&engine, &at, &name).await;
    assert_eq!(
        (heir.progress.reach, heir.progress.crashes),
        (Some(3), 1),
        "a commit without a word keeps it"
    );
    fails(owner.send(Commit { reach: 9, ..owner.window.unchanged() }).await, ErrorKind::Fenced);
    let second = heir.take(1).await;
    heir.settle(&second[0], dead("no"));
    let commit = heir.window.take_commit().unwrap();
    heir.send(Commit { reach: 7, ..commit }).await.unwrap();
    let again = engine.open(&at, &name, StartPosition::Start, &heir.hold).await.unwrap();
    assert_eq!((again.reach, again.frontier.seq), (Some(7), 2));
}

/// After a reset no owner has started anything: if the next one vanishes at once, its successor
/// isolates none of the records that come again.
pub async fn u06_a_reset_forgets_how_far_an_owner_would_go(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 9).await;
    for (to, frontier) in [(StartPosition::After(ids[2]), 3), (StartPosition::Start, 0)] {
        let mut owner = Owner::new(&engine, &at, &name).await;
        owner.send(Commit { reach: 9, ..owner.window.unchanged() }).await.unwrap();
        owner.drain().await;
        engine.reset(&at, &name, Reset { to, drop_due: false }, None).await.unwrap();
        let first = Owner::new(&engine, &at, &name).await;
        assert_eq!((first.progress.frontier.seq, first.progress.reach), (frontier, Some(frontier)));
        let heir = Owner::after_crash(&engine, &at, &name).await;
        assert_eq!((heir.progress.reach, heir.progress.crashes), (Some(frontier), 1));
        heir.leave().await;
    }
}

/// Owners that die over the same record are counted, so that an owner can isolate it; progress
/// starts the count anew.
pub async fn a_vanished_owner_is_counted(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert_eq!(owner.progress.crashes, 0);
    for expected in 1..=3 {
        owner = Owner::after_crash(&engine, &at, &name).await;
        assert_eq!(owner.progress.crashes, expected);
        assert_eq!(status(&engine, &at, &name).await.crashes, expected);
    }
    let again = engine.open(&at, &name, StartPosition::Start, &owner.hold).await.unwrap();
    assert_eq!(again.crashes, 3, "opening again is no crash");
    let mut owner = Owner::with(&engine, &at, &name, owner.hold).await;
    let first = owner.take(1).await;
    owner.judge(&first[0], dead("it kills")).await;
    assert_eq!(status(&engine, &at, &name).await.crashes, 0);
    let mut owner = Owner::after_crash(&engine, &at, &name).await;
    assert_eq!(owner.progress.crashes, 1, "another record, another count");
    owner.drain().await;
    let idle = Owner::after_crash(&engine, &at, &name).await;
    assert_eq!(idle.progress.crashes, 0, "who died with nothing to do blames nobody");
}

/// Releasing, and being revoked, is no crash.
pub async fn an_owner_that_leaves_properly_is_not_counted(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(1).await;
    owner.judge(&taken[0], retry(Duration::ZERO)).await;
    assert_eq!(owner.due(1).await.len(), 1);
    owner.leave().await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert_eq!(owner.progress.crashes, 0);
    let due = owner.due(1).await;
    assert_eq!((due[0].attempt, due[0].crashes), (2, 0));
}

/// Being revoked is no crash either, and hides no crash that came before.
pub async fn an_owner_that_is_revoked_is_not_counted(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(1).await;
    owner.judge(&taken[0], retry(Duration::ZERO)).await;
    assert_eq!(owner.due(1).await.len(), 1);
    assert!(engine.revoke(&LeaseName::group(&at, &name)).await.unwrap());
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert_eq!(owner.progress.crashes, 0);
    let due = owner.due(1).await;
    assert_eq!((due[0].attempt, due[0].crashes), (2, 0));
    // The next holder never opens: revoking it says nothing about the owner that vanished.
    take_over(&engine, &at, &name).await;
    assert!(engine.revoke(&LeaseName::group(&at, &name)).await.unwrap());
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert_eq!((owner.progress.crashes, owner.due(1).await[0].crashes), (1, 1));
}
