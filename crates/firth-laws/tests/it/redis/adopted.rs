//! Streams of other programs: what a topic takes from them, and what it leaves alone.

use firth_engine::facet::{Adopt, StartPosition};
use firth_engine::{Engine, RecordId};
use firth_laws::world::{partition, read_all};
use firth_testkit::{Flavor, RedisServer, on_both};

on_both!(q02_only_entries_that_the_topic_has_are_removed);

async fn q02_only_entries_that_the_topic_has_are_removed(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let add = async |id: &str| {
        server.order(&["XADD", "orders", id, "n", id]).await;
    };
    let ids = async || {
        let all = server.command(&["XRANGE", "orders", "-", "+"]).await;
        all.items().iter().map(|entry| entry.items()[0].text().to_owned()).collect::<Vec<_>>()
    };
    for id in ["1-1", "1-2", "1-3"] {
        add(id).await;
    }
    let after = engine.stream_mark("orders", StartPosition::End).await.unwrap();
    assert_eq!(after, RecordId::new(1, 3));
    let adopt = Adopt { stream: "orders".to_owned(), after, removing: true, ..Adopt::default() };
    assert!(engine.adopt(&at, Some(adopt), 1).await.unwrap());
    for id in ["2-1", "2-2"] {
        add(id).await;
    }
    engine.promote_due(&at, 100).await.unwrap();
    assert_eq!(read_all(&engine, &at).await.len(), 2);
    assert_eq!(ids().await, ["1-1", "1-2", "1-3"], "the topic never had these");
    // As if a process had died between taking entries in and removing them.
    for id in ["3-1", "3-2"] {
        add(id).await;
    }
    let found = server.command(&["KEYS", "*:p"]).await;
    server.order(&["HSET", &found.items()[0].text(), "ai", "3-2"]).await;
    engine.promote_due(&at, 100).await.unwrap();
    assert_eq!(ids().await, ["1-1", "1-2", "1-3"], "what was left over is removed");
    engine.close().await.unwrap();
}
