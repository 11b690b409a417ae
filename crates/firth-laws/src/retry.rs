//! Laws of retries (laws 2, 4, 9).

use crate::world::{
    Owner, append, dead, eventually, group, number, numbers, partition, read_all, retry, retry_kept, status,
};
use firth_engine::facet::{Reset, StartPosition, TakeDue};
use firth_engine::{Engine, RecordId, Verdict};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// A retried record is the same record with one more attempt; the log does not grow.
pub async fn a_retry_keeps_its_id_and_counts_attempts(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 3).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(3).await;
    owner.settle(&taken[0], Verdict::Ack);
    owner.settle(&taken[2], Verdict::Ack);
    owner.judge(&taken[1], retry(Duration::ZERO)).await;
    assert_eq!(
        status(&engine, &at, &name).await.frontier,
        ids[2],
        "a due record does not hold the frontier back"
    );
    for attempt in 2..6 {
        let due = owner.due(9).await;
        assert_eq!(due.len(), 1);
        assert_eq!((due[0].id, due[0].attempt, due[0].crashes), (ids[1], attempt, 0));
        assert_eq!(due[0].content, taken[1].content);
        let verdict = if attempt % 2 == 0 { retry(Duration::ZERO) } else { retry_kept(Duration::ZERO) };
        owner.judge(&due[0], verdict).await;
    }
    let due = owner.due(9).await;
    owner.judge(&due[0], Verdict::Ack).await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
    assert!(owner.due(9).await.is_empty());
    assert_eq!(read_all(&engine, &at).await.len(), 3);
}

/// Not due before its time; then due.
pub async fn a_retry_is_never_early(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 2).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(2).await;
    let start = Instant::now();
    let wait = Duration::from_millis(80);
    owner.settle(&taken[0], retry(wait));
    owner.judge(&taken[1], retry(Duration::from_secs(3600))).await;
    let next = status(&engine, &at, &name).await.next_due.unwrap();
    assert!(next <= wait + Duration::from_millis(1), "{next:?}");
    let seen = eventually_due(&mut owner).await;
    assert!(start.elapsed() >= wait, "early by {:?}", wait.saturating_sub(start.elapsed()));
    assert_eq!(seen, [0]);
    assert!(status(&engine, &at, &name).await.next_due.unwrap() > Duration::from_secs(3000));
}

async fn eventually_due(owner: &mut Owner) -> Vec<u64> {
    let deadline = Instant::now() + crate::world::PATIENCE;
    loop {
        let due = owner.due(9).await;
        if !due.is_empty() {
            return numbers(&due);
        }
        assert!(Instant::now() < deadline, "never due");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The order of due times counts, not that of ids; and the limit is kept.
pub async fn due_records_come_in_the_order_of_their_times(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 6).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(6).await {
        // One commit, so that the delays have one starting point.
        let after = Duration::from_millis(60 - 10 * number(&record));
        owner.settle(&record, retry(after));
    }
    owner.commit().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let first = numbers(&owner.due(4).await);
    let rest = numbers(&owner.due(4).await);
    assert_eq!((first, rest), (vec![5, 4, 3, 2], vec![1, 0]));
}

/// What the owner remembers is not read again: everything else about the record is as ever.
pub async fn content_that_the_owner_knows_is_left_out(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 4).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(4).await;
    taken.iter().for_each(|record| owner.settle(record, retry(Duration::ZERO)));
    owner.commit().await;
    let stranger = RecordId::new(ids[3].ms, ids[3].seq + 1);
    let due = engine
        .due(&at, &name, &owner.hold, TakeDue { max: 9, known: &[ids[0], ids[2], stranger] })
        .await
        .unwrap();
    let seen: Vec<_> = due.records.iter().map(|record| (record.id, record.attempt)).collect();
    assert_eq!(seen, [(ids[0], 2), (ids[1], 2), (ids[2], 2), (ids[3], 2)]);
    let content = |at: usize| due.records[at].content.as_ref();
    assert_eq!((content(0), content(2)), (None, None));
    assert_eq!((content(1), content(3)), (Some(&taken[1].content), Some(&taken[3].content)));
    for (record, known) in due.records.into_iter().zip(&taken) {
        let record = record.with(|| Some(known.content.clone())).unwrap();
        assert!(owner.window.offer_due(&record));
        owner.settle(&record, Verdict::Ack);
    }
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// Law 9: one group's trouble is its own.
pub async fn a_retry_is_invisible_to_other_groups(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let other = group("other");
    append(&engine, &at, 0, 4).await;
    let mut calm = Owner::new(&engine, &at, &other).await;
    assert_eq!(calm.drain().await.len(), 4);
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(4).await {
        let verdict = if number(&record) < 2 { retry(Duration::ZERO) } else { dead("bad") };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    assert!(calm.due(9).await.is_empty());
    assert!(calm.next().await.is_none());
    let calm_status = status(&engine, &at, &other).await;
    assert_eq!((calm_status.lag(), calm_status.dead, calm_status.next_due), (0, 0, None));
    assert!(engine.dead(&at, &other, RecordId::ZERO, 9).await.unwrap().is_empty());
    assert!(engine.pending(&at, &other, RecordId::ZERO, 9).await.unwrap().is_empty());
    let own = status(&engine, &at, &name).await;
    assert_eq!((own.due, own.dead), (2, 2));
}

/// Taken means in flight: a second call gets others, or nothing.
pub async fn a_taken_record_is_not_handed_out_twice(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 4).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(4).await {
        owner.settle(&record, retry(Duration::ZERO));
    }
    owner.commit().await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(numbers(&owner.due(1).await));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
    assert!(owner.due(9).await.is_empty());
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.due, now.next_due), (4, None), "in flight, not gone");
}

/// A crash with due records in hand loses none, and is counted apart from failures.
pub async fn what_a_vanished_owner_had_taken_is_due_again(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 3).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(3).await {
        owner.settle(&record, retry(Duration::ZERO));
    }
    owner.commit().await;
    assert_eq!(owner.due(2).await.len(), 2);
    let mut owner = Owner::after_crash(&engine, &at, &name).await;
    assert_eq!((owner.progress.due, owner.progress.next_due), (3, Some(Duration::ZERO)));
    let mut due = owner.due(9).await;
    due.sort_by_key(number);
    assert!(due.iter().all(|record| record.attempt == 2), "a crash is no failed attempt");
    assert_eq!(due.iter().map(|record| record.crashes).collect::<Vec<_>>(), [1, 1, 0]);
    let mut owner = Owner::with(&engine, &at, &name, owner.hold).await;
    let due = owner.due(9).await;
    assert_eq!(due.iter().map(|record| record.crashes).sum::<u32>(), 2, "opening again is no crash");
    due.iter().for_each(|record| owner.settle(record, Verdict::Ack));
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.lag(), 0);
}

/// The view for people: who waits, for what attempt, since which failure.
pub async fn pending_records_are_listed_with_their_reasons(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 5).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(5).await {
        let after = if number(&record) == 4 { Duration::ZERO } else { Duration::from_secs(3600) };
        let keep = number(&record) % 2 == 1;
        owner.settle(
            &record,
            Verdict::Retry { after, reason: format!("why {}", number(&record)).into(), keep },
        );
    }
    owner.commit().await;
    assert_eq!(owner.due(9).await.len(), 1);
    let all = engine.pending(&at, &name, RecordId::ZERO, 10).await.unwrap();
    assert_eq!(all.iter().map(|pending| pending.id).collect::<Vec<_>>(), ids);
    for (n, pending) in all.iter().enumerate() {
        assert_eq!((pending.attempt, pending.kept), (2, n % 2 == 1));
        assert_eq!(pending.reason, format!("why {n}"));
        assert_eq!(pending.due_in.is_none(), n == 4, "taken records have no due time");
        assert_eq!(pending.idle.is_some(), n == 4, "and only they are with an owner");
        assert!(pending.idle.is_none_or(|idle| idle <= pending.age), "for less time than they exist");
    }
    let page = engine.pending(&at, &name, ids[1], 2).await.unwrap();
    assert_eq!(page.iter().map(|pending| pending.id).collect::<Vec<_>>(), ids[2..4]);
}

/// Law 2, by counting: after a random life with crashes, every record is in one place, and in the
/// end all are done.
pub async fn a_record_is_in_exactly_one_place(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 60).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut done = BTreeSet::new();
    let mut owner = Owner::new(&engine, &at, &name).await;
    for round in 0..30 {
        let mut hand = owner.due(4).await;
        for _ in 0..3 {
            hand.extend(owner.next().await);
        }
        for record in &hand {
            let verdict = match random.u8(..10) {
                0 => continue,
                1..4 => retry(Duration::ZERO),
                4 => dead("random"),
                _ => Verdict::Ack,
            };
            if verdict == Verdict::Ack {
                assert!(done.insert(number(record)), "done twice");
            }
            owner.settle(record, verdict);
        }
        owner.commit().await;
        let now = status(&engine, &at, &name).await;
        assert_eq!(now.waiting + now.due + now.dead + done.len() as u64, 60, "round {round}: {now:?}");
        if round % 4 == 3 {
            owner = Owner::after_crash(&engine, &at, &name).await;
        }
    }
    let letters = engine.dead(&at, &name, RecordId::ZERO, 100).await.unwrap();
    let corpses: BTreeSet<u64> = letters.iter().map(|letter| letter.id.seq - 1).collect();
    assert!(corpses.is_disjoint(&done));
    finish(&engine, owner, &mut done).await;
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.lag(), now.dead as usize, done.len()), (0, corpses.len(), 60 - corpses.len()));
}

async fn finish(engine: &Engine, owner: Owner, done: &mut BTreeSet<u64>) {
    let at = owner.at.clone();
    let name = owner.group.clone();
    let mut owner = Owner::after_crash(engine, &at, &name).await;
    done.extend(owner.drain().await);
    eventually("nothing is due any more", || {
        let engine = engine.clone();
        let at = at.clone();
        let name = name.clone();
        async move { status(&engine, &at, &name).await.next_due.is_none_or(|next| next.is_zero()) }
    })
    .await;
    for record in owner.due(100).await {
        done.insert(number(&record));
        owner.settle(&record, Verdict::Ack);
    }
    owner.commit().await;
}

/// A reset drops due records that come again by the log, also those whose content is kept aside;
/// of the others, those that the former owner had taken are due at once.
pub async fn t05_a_reset_drops_kept_records_and_frees_taken_ones(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let reset = |to| Reset { to, drop_due: false };
    append(&engine, &at, 0, 3).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let records = owner.take(3).await;
    owner.settle(&records[0], retry(Duration::ZERO));
    owner.settle(&records[1], retry_kept(Duration::ZERO));
    owner.settle(&records[2], Verdict::Ack);
    owner.commit().await;
    assert_eq!(owner.due(10).await.len(), 2);
    assert_eq!(status(&engine, &at, &name).await.next_due, None);
    engine.reset(&at, &name, reset(StartPosition::End), None).await.unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.due, now.next_due), (2, Some(Duration::ZERO)));
    engine.reset(&at, &name, reset(StartPosition::After(records[0].id)), None).await.unwrap();
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.due, now.waiting), (1, 2), "the kept one comes by the log");
}
