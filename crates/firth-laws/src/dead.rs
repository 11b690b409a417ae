//! Laws of dead letters (laws 5 and 9).

use crate::world::{
    Gap, Owner, append, dead, fails, group, numbered, numbers, partition, read_all, retry, status,
};
use firth_engine::facet::{Append, Edit, Replay};
use firth_engine::limits::{MAX_FAILURES, MAX_PAST_REASON};
use firth_engine::{Content, Engine, ErrorKind, GroupName, Headers, Partition, RecordId, Verdict};
use std::time::Duration;

/// Gives up records `0..count` of a fresh partition; answers their ids.
async fn bury(engine: &Engine, name: &GroupName, count: u64) -> (Partition, Vec<RecordId>, Owner) {
    let at = partition(engine).await;
    let ids = append(engine, &at, 0, count).await;
    let mut owner = Owner::new(engine, &at, name).await;
    for record in owner.take(count as usize).await {
        owner.settle(&record, dead("given up"));
    }
    owner.commit().await;
    (at, ids, owner)
}

async fn letters(engine: &Engine, at: &Partition, name: &GroupName) -> Vec<RecordId> {
    let found = engine.dead(at, name, RecordId::ZERO, 1000).await.unwrap();
    found.iter().map(|letter| letter.id).collect()
}

/// There is no moment at which a record is settled and its dead letter missing, or the other way
/// round.
pub async fn a_dead_letter_and_its_record_are_settled_together(engine: Engine) {
    let name = group("g");
    let (at, ids, mut owner) = bury(&engine, &name, 5).await;
    assert_eq!(letters(&engine, &at, &name).await, ids);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.frontier, now.lag(), now.dead), (ids[4], 0, 5));
    assert!(owner.next().await.is_none());
    let mut next = Owner::after_crash(&engine, &at, &name).await;
    assert!(next.next().await.is_none() && next.due(9).await.is_empty());
}

/// Topic, partition, group, key, headers, original id, attempts, reason, time.
pub async fn a_dead_letter_tells_its_whole_story(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let headers = Headers::from_pairs([("trace", "7")]).unwrap();
    let content = Content { headers, timestamp: 77, ..Content::new("payload").with_key("key") };
    let id = engine.append(&at, Append::new([content.clone()])).await.unwrap().first.unwrap();
    let mut owner = Owner::new(&engine, &at, &name).await;
    let record = owner.take(1).await.remove(0);
    owner.judge(&record, retry(Duration::ZERO)).await;
    let record = owner.due(1).await.remove(0);
    owner.judge(&record, retry(Duration::ZERO)).await;
    let record = owner.due(1).await.remove(0);
    owner.judge(&record, dead("the end")).await;
    let letter = engine.dead(&at, &name, RecordId::ZERO, 9).await.unwrap().remove(0);
    assert_eq!((&letter.at, &letter.group, letter.id), (&at, &name, id));
    assert_eq!((letter.attempts, letter.crashes, letter.reason.as_str()), (3, 0, "the end"));
    assert_eq!(letter.content, content);
    assert!(letter.age < Duration::from_secs(60));
}

/// The last attempts with reason, time and owner, over changes of the owner and a replay. Records
/// that fail together and apart have each their own.
pub async fn a_dead_letter_tells_its_last_attempts(engine: Engine) {
    let name = group("g");
    let at = partition(&engine).await;
    let ids = append(&engine, &at, 0, 3).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let holder = async || status(&engine, &at, &name).await.owner.unwrap().holder.unwrap();
    let mut owners = vec![holder().await];
    let why = |attempt: u32, seq: u64| format!("{attempt}{}\u{1f}", "ä".repeat(150 * seq as usize));
    let mut records = owner.take(3).await;
    for attempt in 1..=11 {
        let is_last = attempt == 11;
        for (nth, record) in records.iter().enumerate() {
            assert_eq!((record.id, record.attempt), (ids[nth], attempt));
            // The first two fail alike at first, then all three apart.
            let told = if attempt < 6 && nth < 2 { why(attempt, 0) } else { why(attempt, nth as u64) };
            let reason = told.clone().into();
            owner.settle(
                record,
                match is_last {
                    true => dead(&told),
                    false => Verdict::Retry { after: Duration::ZERO, reason, keep: nth == 1 && attempt == 4 },
                },
            );
        }
        owner.commit().await;
        if attempt == 5 {
            owner = Owner::after_crash(&engine, &at, &name).await;
            owners.push(holder().await);
        }
        records = owner.due(9).await;
        records.sort_by_key(|record| record.id);
    }
    let letters = engine.dead(&at, &name, RecordId::ZERO, 9).await.unwrap();
    for (nth, letter) in letters.iter().enumerate() {
        assert_eq!(letter.history.len(), MAX_FAILURES);
        assert_eq!(letter.reason, letter.history[0].reason);
        for (back, failure) in letter.history.iter().enumerate() {
            let attempt = 11 - back as u32;
            let told = if attempt < 6 && nth < 2 { why(attempt, 0) } else { why(attempt, nth as u64) };
            let told = told.replace('\u{1f}', " ");
            let cut = if back == 0 { told.len() } else { told.floor_char_boundary(MAX_PAST_REASON) };
            assert_eq!((failure.attempt, failure.reason.as_str()), (attempt, &told[..cut]));
            assert!(failure.age.is_some_and(|age| age < Duration::from_secs(60)));
            let by = &owners[usize::from(attempt > 5)];
            assert_eq!(failure.member.as_deref(), Some(by.as_str()));
        }
    }
    assert_eq!(engine.replay(&at, &name, &ids[..1], Replay::Group).await.unwrap(), 1);
    let again = owner.due(1).await.remove(0);
    owner.judge(&again, dead("again")).await;
    let letter = engine.dead(&at, &name, RecordId::ZERO, 1).await.unwrap().remove(0);
    let told: Vec<_> = letter.history.iter().map(|failure| failure.attempt).collect();
    assert_eq!(told, [1, 11, 10, 9, 8, 7, 6, 5]);
}

/// Law 9: a replay concerns only the group that failed.
pub async fn a_replay_to_the_group_is_invisible_to_others(engine: Engine) {
    let name = group("g");
    let other = group("other");
    let (at, ids, mut owner) = bury(&engine, &name, 3).await;
    let mut calm = Owner::new(&engine, &at, &other).await;
    assert_eq!(calm.drain().await.len(), 3);
    assert_eq!(engine.replay(&at, &name, &ids[..2], Replay::Group).await.unwrap(), 2);
    assert_eq!(letters(&engine, &at, &name).await, ids[2..]);
    let now = status(&engine, &at, &name).await;
    assert_eq!((now.due, now.dead, now.next_due), (2, 1, Some(Duration::ZERO)));
    assert_eq!(read_all(&engine, &at).await.len(), 3, "the log does not grow");
    let due = owner.due(9).await;
    assert_eq!(
        due.iter().map(|record| (record.id, record.attempt)).collect::<Vec<_>>(),
        [(ids[0], 1), (ids[1], 1)]
    );
    assert_eq!(numbers(&due), [0, 1]);
    owner.settle(&due[0], Verdict::Ack);
    owner.judge(&due[1], dead("again")).await;
    assert_eq!(letters(&engine, &at, &name).await, ids[1..]);
    assert!(calm.due(9).await.is_empty() && calm.next().await.is_none());
}

/// To everyone on request: a new record that says where it came from.
pub async fn a_replay_to_everyone_carries_its_origin(engine: Engine) {
    let name = group("g");
    let other = group("other");
    let (at, ids, mut owner) = bury(&engine, &name, 2).await;
    let mut calm = Owner::new(&engine, &at, &other).await;
    calm.drain().await;
    assert_eq!(engine.replay(&at, &name, &ids, Replay::Everyone).await.unwrap(), 2);
    assert!(letters(&engine, &at, &name).await.is_empty());
    let log = read_all(&engine, &at).await;
    assert_eq!(numbers(&log), [0, 1, 0, 1]);
    for (record, id) in log[2..].iter().zip(&ids) {
        let origin = record.content.origin.as_ref().expect("it says where it came from");
        assert_eq!((&origin.at, origin.id, &origin.group), (&at, *id, &name));
    }
    assert_eq!(calm.drain().await, [0, 1]);
    assert_eq!(owner.drain().await, [0, 1]);
}

/// A message keeps the position where it stood first, over any number of replays.
pub async fn a_record_that_is_replayed_again_keeps_its_first_origin(engine: Engine) {
    let name = group("g");
    let (at, ids, mut owner) = bury(&engine, &name, 1).await;
    let mut last = ids[0];
    for _ in 0..3 {
        assert_eq!(engine.replay(&at, &name, &[last], Replay::Everyone).await.unwrap(), 1);
        let copy = owner.next().await.expect("it comes again");
        let origin = copy.content.origin.as_ref().expect("it says where it came from");
        assert_eq!((&origin.at, origin.id, &origin.group), (&at, ids[0], &name));
        owner.judge(&copy, dead("again")).await;
        assert!(copy.id > last);
        last = copy.id;
    }
}

/// Replay and removal are one step: racing replays take each letter once.
pub async fn a_dead_letter_is_replayed_once(engine: Engine) {
    let name = group("g");
    let (at, ids, mut owner) = bury(&engine, &name, 6).await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let engine = engine.clone();
            let at = at.clone();
            let name = name.clone();
            let ids = ids.clone();
            let to = if n % 2 == 0 { Replay::Group } else { Replay::Everyone };
            tokio::spawn(async move { engine.replay(&at, &name, &ids, to).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for task in tasks {
        taken += task.await.unwrap();
    }
    assert_eq!(taken, 6);
    let missing = [RecordId::new(1, 999)];
    assert_eq!(engine.replay(&at, &name, &missing, Replay::Group).await.unwrap(), 0);
    let again = owner.due(100).await.len() + owner.drain().await.len();
    assert_eq!(again, 6);
    assert_eq!(status(&engine, &at, &name).await.dead, 0);
}

/// Deleting takes those named; expiring takes the old.
pub async fn dead_letters_are_deleted_and_expire(engine: Engine) {
    let name = group("g");
    let (at, ids, mut owner) = bury(&engine, &name, 4).await;
    assert_eq!(engine.delete_dead(&at, &name, &[ids[1], ids[1], RecordId::MAX]).await.unwrap(), 1);
    assert_eq!(letters(&engine, &at, &name).await, [ids[0], ids[2], ids[3]]);
    assert_eq!(engine.expire_dead(&at, &name, Duration::from_secs(3600)).await.unwrap(), 0);
    let gap = Gap::pass().await;
    engine.append(&at, Append::new([numbered(9)])).await.unwrap();
    let record = owner.take(1).await.remove(0);
    owner.judge(&record, dead("young")).await;
    assert_eq!(engine.expire_dead(&at, &name, gap.age()).await.unwrap(), 3);
    assert_eq!(letters(&engine, &at, &name).await, [record.id]);
    assert_eq!(status(&engine, &at, &name).await.dead, 1);
}

/// Pages follow each other without loss or overlap.
pub async fn dead_letters_are_paged(engine: Engine) {
    let name = group("g");
    let (at, ids, _owner) = bury(&engine, &name, 25).await;
    let mut seen = Vec::new();
    let mut after = RecordId::ZERO;
    loop {
        let page = engine.dead(&at, &name, after, 10).await.unwrap();
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        after = last.id;
        seen.extend(page.iter().map(|letter| letter.id));
    }
    assert_eq!(seen, ids);
}

/// A page of letters is bounded in bytes, and what follows comes with the next one; ids alone come
/// all.
pub async fn q03_a_page_of_dead_letters_is_bounded_in_bytes(engine: Engine) {
    let at = partition(&engine).await;
    let name = group("g");
    let large = Content::new(vec![7; 1024 * 1024]);
    for _ in 0..12 {
        engine.append(&at, Append::new([large.clone()])).await.unwrap();
    }
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(12).await {
        owner.judge(&record, dead("no")).await;
    }
    let first = engine.dead(&at, &name, RecordId::ZERO, 100).await.unwrap();
    assert!((1..=9).contains(&first.len()), "{} MiB at once", first.len());
    let mut seen = 0;
    let mut after = RecordId::ZERO;
    loop {
        let page = engine.dead(&at, &name, after, 100).await.unwrap();
        let Some(last) = page.last() else { break };
        (seen, after) = (seen + page.len(), last.id);
    }
    assert_eq!(seen, 12);
    let ids = engine.dead_ids(&at, &name, RecordId::ZERO, 100).await.unwrap();
    assert_eq!((ids.len(), ids.last().copied()), (12, Some(after)));
    assert_eq!(engine.dead_ids(&at, &name, ids[3], 5).await.unwrap(), ids[4..9]);
}

/// An edited replay is one step: the letter is gone, its successor is there once, for its group or
/// for everyone.
pub async fn an_edited_letter_comes_back_once_as_it_was_edited(engine: Engine) {
    let name = group("g");
    let other = group("other");
    let (at, ids, mut owner) = bury(&engine, &name, 3).await;
    let mut witness = Owner::new(&engine, &at, &other).await;
    witness.drain().await;
    let edited = |n| Content::new(format!("10{n}")).with_key("mended");
    assert!(
        engine
            .replay_edited(&at, &name, Edit { id: ids[0], content: edited(0) }, Replay::Group)
            .await
            .unwrap()
    );
    assert!(
        !engine
            .replay_edited(&at, &name, Edit { id: ids[0], content: edited(9) }, Replay::Group)
            .await
            .unwrap(),
        "it is gone"
    );
    assert!(
        !engine
            .replay_edited(&at, &name, Edit { id: RecordId::MAX, content: edited(9) }, Replay::Everyone)
            .await
            .unwrap()
    );
    let back = owner.due(9).await;
    assert_eq!((back.len(), back[0].id, back[0].attempt, &back[0].content), (1, ids[0], 1, &edited(0)));
    owner.judge(&back[0], Verdict::Ack).await;
    assert_eq!(witness.next().await, None, "the other group sees nothing of it");
    assert!(
        engine
            .replay_edited(&at, &name, Edit { id: ids[1], content: edited(1) }, Replay::Everyone)
            .await
            .unwrap()
    );
    let again = witness.next().await.expect("it is there for everyone");
    assert_eq!(
        (&again.content.payload[..], again.content.origin.map(|origin| origin.id)),
        (&b"101"[..], Some(ids[1]))
    );
    assert_eq!(letters(&engine, &at, &name).await, [ids[2]]);
    let too_big = Content::new(vec![0; firth_engine::limits::MAX_PAYLOAD + 1]);
    fails(
        engine.replay_edited(&at, &name, Edit { id: ids[2], content: too_big }, Replay::Group).await,
        ErrorKind::Invalid,
    );
    assert_eq!(letters(&engine, &at, &name).await, [ids[2]], "a refusal changes nothing");
}
