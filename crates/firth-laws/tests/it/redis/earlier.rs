//! What an earlier build left behind: due records that lie one by one, and no count of them.

use firth_engine::facet::Replay;
use firth_engine::{Engine, RecordId, Verdict};
use firth_laws::world::{self, Owner, append, dead, group, numbers, partition, retry, status};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::time::Duration;

on_both!(
    due_records_of_an_earlier_build_are_counted_and_delivered,
    failures_without_a_history_are_read_and_go_on_with_one
);

/// An earlier build stored the last reason alone: of what waits, and of dead letters.
async fn failures_without_a_history_are_read_and_go_on_with_one(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    let ids = append(&engine, &at, 0, 2).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let taken = owner.take(2).await;
    owner.settle(&taken[0], retry(Duration::ZERO));
    owner.judge(&taken[1], dead("new")).await;
    let key = async |kind: &str| server.command(&["KEYS", &format!("*:{kind}:g")]).await.items()[0].text();
    let entries = key("e").await;
    let stored = server.command(&["HGETALL", &entries]).await;
    assert_eq!(stored.items().len(), 2);
    server.order(&["HSET", &entries, &stored.items()[0].text(), "2:0:slow: as\u{1f}ever"]).await;
    let bodies = key("b").await;
    let stored = server.command(&["HGETALL", &bodies]).await;
    let content = world::numbered(1).packed();
    let body = [b"1700000000000 3 0 4 done".as_slice(), &content].concat();
    server.order(&[b"HSET".as_slice(), bodies.as_bytes(), stored.items()[0].text().as_bytes(), &body]).await;

    let pending = engine.pending(&at, &name, RecordId::ZERO, 9).await.unwrap();
    assert_eq!(pending[0].reason, "slow: as\u{1f}ever");
    let letter = engine.dead(&at, &name, ids[0], 1).await.unwrap().remove(0);
    assert_eq!((letter.reason.as_str(), letter.attempts, letter.history.len()), ("done", 3, 0));
    assert_eq!(engine.replay(&at, &name, &ids[1..], Replay::Group).await.unwrap(), 1);
    let mut due = owner.due(9).await;
    due.sort_by_key(|record| record.id);
    owner.settle(&due[0], dead("broken"));
    owner.judge(&due[1], dead("again")).await;
    let letters = engine.dead(&at, &name, RecordId::ZERO, 9).await.unwrap();
    let told = |nth: usize| -> Vec<_> {
        letters[nth].history.iter().map(|past| (past.reason.as_str(), past.age.is_some())).collect()
    };
    assert_eq!(told(0)[0], ("broken", true));
    assert_eq!(told(1), [("again", true), ("done", false)]);
    engine.close().await.unwrap();
}

async fn due_records_of_an_earlier_build_are_counted_and_delivered(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 4).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for (reason, record) in ["a", "b", "c", "d"].iter().zip(owner.take(4).await) {
        owner
            .settle(&record, Verdict::Retry { after: Duration::ZERO, reason: (*reason).into(), keep: false });
    }
    owner.commit().await;
    let keys = server.command(&["KEYS", "*:g:g"]).await;
    assert_eq!(keys.items().len(), 1, "one group on one partition");
    server.command(&["HDEL", &keys.items()[0].text(), "n"]).await;
    assert_eq!(status(&engine, &at, &name).await.due, 4);
    let hand = owner.due(3).await;
    assert_eq!(numbers(&hand), [0, 1, 2]);
    owner.settle(&hand[0], Verdict::Ack);
    // These two fail alike, and lie together from here on.
    for record in &hand[1..] {
        let reason = "no".to_owned();
        owner.settle(record, Verdict::Retry { after: Duration::ZERO, reason: reason.into(), keep: false });
    }
    owner.commit().await;
    assert_eq!(status(&engine, &at, &name).await.due, 3);
    let mut seen = numbers(&owner.due(9).await);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
    engine.close().await.unwrap();
}
