//! Laws of groups and their progress.

use crate::world::{
    Gap, LONG, Owner, acquire, append, dead, fails, group, number, numbers, partition, retry, status,
    take_over,
};
use firth_engine::facet::{Reset, StartPosition, Trim, TrimTo};
use firth_engine::{Ahead, Commit, Engine, ErrorKind, RecordId, Retry, Verdict};
use std::time::Duration;

/// Law 1: a group that existed, or starts at the start, gets every acknowledged record.
pub async fn every_group_gets_every_record(engine: Engine) {
    let at = partition(&engine).await;
    let early = group("early");
    let late = group("late");
    assert!(engine.create_group(&at, &early, StartPosition::End, None).await.unwrap());
    append(&engine, &at, 0, 250).await;
    assert!(
        !engine.create_group(&at, &early, StartPosition::End, None).await.unwrap(),
        "it is there already"
    );
    for name in [&early, &late] {
        let mut owner = Owner::new(&engine, &at, name).await;
        assert_eq!(owner.drain().await, (0..250).collect::<Vec<_>>());
        assert_eq!(status(&engine, &at, name).await.lag(), 0);
        owner.leave().await;
    }
    append(&engine, &at, 250, 260).await;
    let mut owner = Owner::new(&engine, &at, &early).await;
    assert_eq!(owner.drain().await, (250..260).collect::<Vec<_>>());
    assert_eq!(engine.groups(&at).await.unwrap(), [early, late]);
}

/// Start, end, after an id, by age; also when the log was trimmed or is empty.
pub async fn a_group_starts_where_it_is_told(engine: Engine) {
    let at = partition(&engine).await;
    let waiting = |name: &'static str, from| {
        let engine = engine.clone();
        let at = at.clone();
        let name = group(name);
        async move {
            assert!(engine.create_group(&at, &name, from, None).await.unwrap());
            status(&engine, &at, &name).await.waiting
        }
    };
    assert_eq!(waiting("empty-end", StartPosition::End).await, 0);
    assert_eq!(waiting("empty-age", StartPosition::Age(Duration::from_secs(9))).await, 0);
    let old = append(&engine, &at, 0, 10).await;
    let gap = Gap::pass().await;
    append(&engine, &at, 10, 14).await;
    assert_eq!(status(&engine, &at, &group("empty-end")).await.waiting, 14);
    assert_eq!(waiting("start", StartPosition::Start).await, 14);
    assert_eq!(waiting("end", StartPosition::End).await, 0);
    assert_eq!(waiting("id", StartPosition::After(old[3])).await, 10);
    assert_eq!(waiting("before-all", StartPosition::After(RecordId::ZERO)).await, 14);
    assert_eq!(waiting("after-all", StartPosition::After(RecordId::MAX)).await, 0);
    assert_eq!(waiting("time", StartPosition::After(RecordId::before_ms(old[9].ms + 100))).await, 4);
    assert_eq!(waiting("young", StartPosition::Age(gap.age())).await, 4);
    assert_eq!(waiting("any-age", StartPosition::Age(Duration::from_secs(3600))).await, 14);
    let lossy = Trim { to: TrimTo::Id(old[5]), lossy: true };
    engine.trim(&at, lossy).await.unwrap();
    assert_eq!(waiting("trimmed-start", StartPosition::Start).await, 8);
    assert_eq!(waiting("trimmed-id", StartPosition::After(old[1])).await, 8);
}

/// Law 7: the next owner goes on exactly where the frontier stands, in order.
pub async fn order_survives_a_takeover(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 100).await;
    let mut seen = Vec::new();
    let mut owner = Owner::new(&engine, &at, &name).await;
    for _ in 0..5 {
        for record in owner.take(20).await {
            seen.push(number(&record));
            owner.settle(&record, Verdict::Ack);
        }
        owner.commit().await;
        let lost = owner.next().await.map(|record| number(&record));
        assert_eq!(lost, Some(seen.len() as u64).filter(|n| *n < 100), "delivered but never settled");
        owner = Owner::after_crash(&engine, &at, &name).await;
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert!(owner.next().await.is_none());
}

/// Records settled out of order are remembered over a takeover, and only the open ones come again.
pub async fn what_is_settled_ahead_is_not_delivered_again(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(10).await;
    for record in taken.iter().filter(|record| ![0, 4, 7].contains(&number(record))) {
        owner.settle(record, Verdict::Ack);
    }
    owner.commit().await;
    let before = status(&engine, &at, &name).await;
    assert_eq!((before.frontier, before.ahead, before.waiting), (RecordId::ZERO, 7, 3));
    let mut next = Owner::after_crash(&engine, &at, &name).await;
    assert_eq!(next.drain().await, [0, 4, 7]);
    let after = status(&engine, &at, &name).await;
    assert_eq!((after.frontier, after.ahead, after.lag()), (taken[9].id, 0, 0));
}

/// The frontier and what is ahead of it only grow.
pub async fn progress_never_goes_back(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 10).await;
    let owner = Owner::new(&engine, &at, &name).await;
    let ahead = |seqs: &[u64]| seqs.iter().copied().collect::<Ahead>();
    let commit = |frontier, seqs: &[u64]| Commit { frontier, ahead: ahead(seqs), ..Commit::default() };
    owner.send(commit(ids[3], &[6, 7, 9])).await.unwrap();
    fails(owner.send(commit(ids[2], &[6, 7, 9])).await, ErrorKind::Invalid);
    fails(owner.send(commit(ids[3], &[6, 9])).await, ErrorKind::Invalid);
    fails(owner.send(commit(ids[4], &[7, 9])).await.map(drop), ErrorKind::Invalid);
    fails(owner.send(commit(RecordId::new(ids[9].ms, 11), &[])).await, ErrorKind::Invalid);
    fails(owner.send(commit(ids[3], &[6, 7, 9, 11])).await, ErrorKind::Invalid);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.frontier, now.ahead), (ids[3], 3));
    owner.send(commit(ids[6], &[9])).await.unwrap();
    owner.send(commit(ids[6], &[9])).await.unwrap();
    owner.send(commit(ids[9], &[])).await.unwrap();
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

fn retry_of(id: RecordId) -> Retry {
    Retry { id, after: Duration::ZERO, reason: "".into(), kept: None }
}

/// Law 2: what is done, or was never handed out, cannot be judged again.
pub async fn a_verdict_needs_an_open_record(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(2).await;
    owner.settle(&taken[0], Verdict::Ack);
    owner.judge(&taken[1], retry(Duration::ZERO)).await;
    let at_two = || Commit::up_to(ids[1]);
    // Settled before, not passed by the commit, due but not taken, never due.
    fails(owner.send(Commit { retries: vec![retry_of(ids[0])], ..at_two() }).await, ErrorKind::Invalid);
    fails(owner.send(Commit { retries: vec![retry_of(ids[3])], ..at_two() }).await, ErrorKind::Invalid);
    fails(owner.send(Commit { retries: vec![retry_of(ids[1])], ..at_two() }).await, ErrorKind::Invalid);
    fails(owner.send(Commit { done: vec![ids[1]], ..at_two() }).await, ErrorKind::Invalid);
    fails(owner.send(Commit { done: vec![ids[0]], ..at_two() }).await, ErrorKind::Invalid);
    let corpse = firth_engine::Dead { record: taken[0].clone(), reason: "x".into() };
    fails(owner.send(Commit { dead: vec![corpse], ..at_two() }).await, ErrorKind::Invalid);
    let due = owner.due(9).await;
    assert_eq!(numbers(&due), [1]);
    owner.judge(&due[0], Verdict::Ack).await;
    fails(owner.send(Commit { done: vec![ids[1]], ..at_two() }).await, ErrorKind::Invalid);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.due, now.dead), (3, 0, 0));
}

/// One wrong verdict, and nothing of the commit happens.
pub async fn a_refused_commit_changes_nothing(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(3).await;
    let corpse = firth_engine::Dead { record: taken[1].clone(), reason: "x".into() };
    let commit = Commit {
        frontier: ids[2],
        retries: vec![retry_of(ids[0]), retry_of(ids[4])],
        dead: vec![corpse],
        ..Commit::default()
    };
    let before = status(&engine, &at, &name).await;
    fails(owner.send(commit).await, ErrorKind::Invalid);
    let after = status(&engine, &at, &name).await;
    assert_eq!((after.frontier, after.waiting, after.due, after.dead), (before.frontier, 5, 0, 0));
    assert!(engine.dead(&at, &name, RecordId::ZERO, 9).await.unwrap().is_empty());
    assert!(owner.due(9).await.is_empty());
}

/// Waiting, due and dead are counted, not estimated.
pub async fn lag_is_exact(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    engine.create_group(&at, &name, StartPosition::Start, None).await.unwrap();
    append(&engine, &at, 0, 100).await;
    let fresh = status(&engine, &at, &name).await;
    assert_eq!((fresh.waiting, fresh.due, fresh.lag(), fresh.owner), (100, 0, 100, None));
    assert!(fresh.oldest.is_some());
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(50).await;
    for record in &taken {
        match number(record) {
            n if n % 10 == 0 => {}
            n if n % 10 == 1 => owner.settle(record, retry(Duration::from_secs(3600))),
            n if n % 10 == 2 => owner.settle(record, dead("bad")),
            _ => owner.settle(record, Verdict::Ack),
        }
    }
    owner.commit().await;
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.due, now.dead, now.lag()), (55, 5, 5, 60));
    assert!(now.next_due.unwrap() > Duration::from_secs(3000));
    assert_eq!(now.owner.unwrap().holder.as_ref(), Some(&owner.hold.holder));
    for record in taken.iter().filter(|record| number(record).is_multiple_of(10)) {
        owner.settle(record, Verdict::Ack);
    }
    owner.drain().await;
    let end = status(&engine, &at, &name).await;
    assert_eq!((end.waiting, end.lag(), end.oldest), (0, 5, None));
}

/// A reset is explicit, and the owner of the old position is out.
pub async fn a_reset_moves_the_group_and_fences_its_owner(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 10).await;
    for (to, expected) in [
        (StartPosition::Start, (0..10).collect::<Vec<u64>>()),
        (StartPosition::After(ids[6]), vec![7, 8, 9]),
        (StartPosition::End, vec![]),
        (StartPosition::Age(Duration::from_secs(3600)), (0..10).collect()),
    ] {
        let mut owner = Owner::with(&engine, &at, &name, acquire(&engine, &at, &name, LONG).await).await;
        owner.drain().await;
        let frontier = engine.reset(&at, &name, Reset { to, drop_due: false }, None).await.unwrap();
        assert_eq!(status(&engine, &at, &name).await.frontier, frontier);
        fails(owner.send(Commit::up_to(ids[9])).await, ErrorKind::Fenced);
        assert_eq!(engine.renew(&[owner.hold.clone()], LONG).await.unwrap(), [false]);
        let mut next = Owner::new(&engine, &at, &name).await;
        assert_eq!(next.progress.crashes, 0, "who was reset has not crashed");
        assert_eq!(next.drain().await, expected);
        next.leave().await;
    }
}

/// What waits for a retry is kept, or dropped, as asked; what comes anyway is not doubled.
pub async fn a_reset_keeps_or_drops_what_is_due(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 10).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(10).await {
        let verdict = if number(&record) % 4 == 1 { retry(Duration::ZERO) } else { Verdict::Ack };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.due, 3);
    let keep = Reset { to: StartPosition::After(ids[4]), drop_due: false };
    engine.reset(&at, &name, keep, None).await.unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.due), (5, 1), "1 stays due; 5 and 9 come anyway");
    let mut owner = Owner::new(&engine, &at, &name).await;
    assert_eq!(numbers(&owner.due(9).await), [1]);
    assert_eq!(numbers(&owner.take(5).await), [5, 6, 7, 8, 9]);
    engine.reset(&at, &name, Reset { to: StartPosition::End, drop_due: true }, None).await.unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.waiting, now.due, now.lag()), (0, 0, 0));
}

/// More due records than a server drops in one step, in batches of retries that lie among each
/// other, some with their content and some taken: behind the position they wait, before it they
/// stay due.
pub async fn q17_a_reset_into_many_due_records_leaves_each_in_one_place(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let mut ids = Vec::new();
    let mut owner = Owner::new(&engine, &at, &name).await;
    for from in [0, 1000, 2000] {
        ids.extend(append(&engine, &at, from, from + 1000).await);
        for record in owner.take(1000).await {
            let reason = (number(&record) % 900).to_string().into();
            let keep = number(&record) % 5 > 2;
            let retry = Verdict::Retry { after: Duration::ZERO, reason, keep };
            owner.settle(&record, if number(&record).is_multiple_of(5) { Verdict::Ack } else { retry });
        }
        owner.commit().await;
    }
    assert_eq!(owner.due(100).await.len(), 100);
    let back = Reset { to: StartPosition::After(ids[1234]), drop_due: false };
    engine.reset(&at, &name, back, None).await.unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.due, now.waiting, now.frontier), (988, 1765, ids[1234]));

    let mut next = Owner::new(&engine, &at, &name).await;
    let mut due = Vec::new();
    while let taken = next.due(500).await
        && !taken.is_empty()
    {
        due.extend(numbers(&taken));
        taken.iter().for_each(|record| next.settle(record, Verdict::Ack));
        next.commit().await;
    }
    due.sort_unstable();
    assert_eq!(due, (0..=1234).filter(|number| number % 5 != 0).collect::<Vec<_>>());
    let mut waiting = Vec::new();
    while let Some(record) = next.next().await {
        waiting.push(number(&record));
        next.settle(&record, Verdict::Ack);
        if waiting.len().is_multiple_of(500) {
            next.commit().await;
        }
    }
    next.commit().await;
    assert_eq!(waiting, (1235..3000).collect::<Vec<_>>());
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// Deleting a group ends its owner and frees its name.
pub async fn a_deleted_group_comes_back_empty(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let other = group("other");
    append(&engine, &at, 0, 5).await;
    engine.create_group(&at, &other, StartPosition::Start, None).await.unwrap();
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(4).await {
        let verdict = if number(&record).is_multiple_of(2) { dead("x") } else { retry(Duration::ZERO) };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    assert!(engine.delete_group(&at, &name, None).await.unwrap());
    assert!(!engine.delete_group(&at, &name, None).await.unwrap());
    assert!(owner.send(Commit::default()).await.is_err());
    assert_eq!(engine.groups(&at).await.unwrap(), std::slice::from_ref(&other));
    let mut again = Owner::new(&engine, &at, &name).await;
    assert!(again.hold.epoch > owner.hold.epoch);
    assert!(again.due(9).await.is_empty());
    assert!(engine.dead(&at, &name, RecordId::ZERO, 9).await.unwrap().is_empty());
    assert_eq!(again.drain().await, (0..5).collect::<Vec<_>>());
    assert_eq!(status(&engine, &at, &other).await.lag(), 5);
}

/// A former holder of a lease on the partition deletes no group by it, its own or another; the
/// newest holder does.
pub async fn a_zombie_deletes_no_group(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let served = group("g.served");
    let elsewhere = partition(&engine).await;
    append(&engine, &at, 0, 5).await;
    engine.create_group(&at, &served, StartPosition::Start, None).await.unwrap();
    let zombie = Owner::new(&engine, &at, &name).await;
    let owner = Owner::after_crash(&engine, &at, &name).await;
    for victim in [&served, &name] {
        fails(engine.delete_group(&at, victim, Some(&zombie.hold)).await, ErrorKind::Fenced);
    }
    assert_eq!(engine.groups(&at).await.unwrap(), [name.clone(), served.clone()]);
    fails(engine.delete_group(&elsewhere, &served, Some(&owner.hold)).await, ErrorKind::Invalid);
    assert!(engine.delete_group(&at, &served, Some(&owner.hold)).await.unwrap());
    assert!(!engine.delete_group(&at, &served, Some(&owner.hold)).await.unwrap());
    assert!(engine.release(&owner.hold).await.unwrap());
    fails(engine.delete_group(&at, &name, Some(&owner.hold)).await, ErrorKind::Fenced);
    let last = Owner::new(&engine, &at, &name).await;
    assert!(engine.delete_group(&at, &name, Some(&last.hold)).await.unwrap());
    assert!(engine.groups(&at).await.unwrap().is_empty());
}

/// A former holder of a lease on the partition makes and moves no group by it, its own or another;
/// the newest holder does.
pub async fn a_zombie_makes_and_moves_no_group(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let served = group("g.served");
    let elsewhere = partition(&engine).await;
    append(&engine, &at, 0, 5).await;
    let zombie = Owner::new(&engine, &at, &name).await;
    let owner = Owner::after_crash(&engine, &at, &name).await;
    let back = Reset { to: StartPosition::Start, drop_due: false };
    let end = StartPosition::End;
    fails(engine.create_group(&at, &served, end, Some(&zombie.hold)).await, ErrorKind::Fenced);
    assert_eq!(engine.groups(&at).await.unwrap(), std::slice::from_ref(&name));
    fails(engine.create_group(&elsewhere, &served, end, Some(&owner.hold)).await, ErrorKind::Invalid);
    assert!(engine.create_group(&at, &served, end, Some(&owner.hold)).await.unwrap());
    assert!(!engine.create_group(&at, &served, end, Some(&owner.hold)).await.unwrap());
    for victim in [&served, &name] {
        fails(engine.reset(&at, victim, back, Some(&zombie.hold)).await, ErrorKind::Fenced);
    }
    fails(engine.reset(&elsewhere, &served, back, Some(&owner.hold)).await, ErrorKind::Invalid);
    assert_eq!(status(&engine, &at, &served).await.lag(), 0);
    engine.reset(&at, &served, back, Some(&owner.hold)).await.unwrap();
    assert_eq!(status(&engine, &at, &served).await.lag(), 5);
    assert!(engine.release(&owner.hold).await.unwrap());
    let late = group("g.late");
    fails(engine.create_group(&at, &late, end, Some(&owner.hold)).await, ErrorKind::Fenced);
}

/// A start at an existing group opens a group that is there, and makes none.
pub async fn a_start_at_an_existing_group_makes_none(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 5).await;
    fails(engine.create_group(&at, &name, StartPosition::Existing, None).await, ErrorKind::NotFound);
    let hold = acquire(&engine, &at, &name, LONG).await;
    fails(engine.open(&at, &name, StartPosition::Existing, &hold).await, ErrorKind::NotFound);
    assert!(engine.groups(&at).await.unwrap().is_empty());
    assert!(engine.create_group(&at, &name, StartPosition::Start, Some(&hold)).await.unwrap());
    assert!(!engine.create_group(&at, &name, StartPosition::Existing, None).await.unwrap());
    assert_eq!(
        engine.open(&at, &name, StartPosition::Existing, &hold).await.unwrap().frontier,
        RecordId::ZERO
    );
    let no_place = Reset { to: StartPosition::Existing, drop_due: false };
    fails(engine.reset(&at, &name, no_place, None).await, ErrorKind::Invalid);
}

/// Looking at nothing is not found; opening makes the group.
pub async fn a_group_that_does_not_exist_is_not_found(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    fails(engine.status(&at, &name).await, ErrorKind::NotFound);
    fails(engine.dead(&at, &name, RecordId::ZERO, 1).await, ErrorKind::NotFound);
    let reset = Reset { to: StartPosition::Start, drop_due: false };
    fails(engine.reset(&at, &name, reset, None).await, ErrorKind::NotFound);
    let hold = acquire(&engine, &at, &name, LONG).await;
    fails(engine.commit(&at, &name, &hold, Commit::default()).await, ErrorKind::NotFound);
    engine.open(&at, &name, StartPosition::Start, &hold).await.unwrap();
    engine.status(&at, &name).await.unwrap();
    take_over(&engine, &at, &name).await;
}
