//! What an earlier build left behind: due records that lie one by one, and no count of them.

use firth_engine::{Engine, Verdict};
use firth_laws::world::{Owner, append, group, numbers, partition, status};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::time::Duration;

on_both!(due_records_of_an_earlier_build_are_counted_and_delivered);

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
