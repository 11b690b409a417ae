//! Servers that restart, fill up, turn into replicas or forget scripts: clear errors, nothing
//! acknowledged is lost, and recovery without opening the engine anew.

use super::{append_one, refused, until_ok};
use firth_engine::facet::{Append, ReadLimit, StartPosition, Trim, TrimTo};
use firth_engine::{Content, Engine, ErrorKind, RecordId, Verdict};
use firth_laws::world::{self, LONG, Owner, group, partition, read_all, retry, status};
use firth_testkit::{Flavor, Persist, RedisServer, on_both};
use std::time::Duration;

on_both!(
    a_restart_with_an_append_only_file_loses_nothing,
    full_memory_stops_appends_and_nothing_else,
    a_read_only_replica_is_refused_at_the_start_and_survived_later,
    forgotten_scripts_are_loaded_again,
    another_programs_key_is_reported_not_overwritten,
    two_prefixes_are_two_worlds
);

async fn a_restart_with_an_append_only_file_loses_nothing(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    world::append(&engine, &at, 0, 50).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    for record in owner.take(20).await {
        let verdict = if world::number(&record) == 7 { retry(Duration::ZERO) } else { Verdict::Ack };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    server.kill().await;
    let error = refused(append_one(&engine, &at, 99)).await;
    assert!(error.is_retryable(), "{error:?}");
    server.restart().await;
    let progress =
        until_ok("the engine reconnects", || engine.open(&at, &name, StartPosition::Start, &owner.hold))
            .await;
    assert_eq!((progress.frontier.seq, progress.due, progress.last.seq), (20, 1, 50));
    let mut owner = Owner::with(&engine, &at, &name, owner.hold).await;
    assert_eq!(world::numbers(&owner.due(9).await), [7]);
    assert_eq!(owner.drain().await, (20..50).collect::<Vec<_>>());
    world::append(&engine, &at, 50, 51).await;
    engine.close().await.unwrap();
}

async fn full_memory_stops_appends_and_nothing_else(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).config("maxmemory-policy noeviction").start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    world::append(&engine, &at, 0, 100).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    server.order(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = refused(append_one(&engine, &at, 100)).await;
    assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Unavailable, false), "{error:?}");
    assert!(error.context().contains("maxmemory"), "{error}");
    // Reading, retrying, giving up, committing, renewing, taking over, trimming and looking go on.
    for record in owner.take(60).await {
        let verdict = match world::number(&record) {
            5 => retry(Duration::ZERO),
            6 => world::dead("no"),
            _ => Verdict::Ack,
        };
        owner.settle(&record, verdict);
    }
    owner.commit().await;
    assert_eq!(owner.due(9).await.len(), 1);
    assert_eq!(engine.renew(&[owner.hold.clone()], LONG).await.unwrap(), [true]);
    let mut owner = Owner::after_crash(&engine, &at, &name).await;
    assert_eq!(owner.due(9).await.len(), 1);
    let trim = engine.trim(&at, Trim { to: TrimTo::Keep(0), lossy: false }).await.unwrap();
    assert_eq!((trim.removed, trim.held_back), (5, true));
    assert_eq!(status(&engine, &at, &name).await.dead, 1);
    assert_eq!(read_all(&engine, &at).await.len(), 95);
    server.order(&["CONFIG", "SET", "maxmemory", "0"]).await;
    append_one(&engine, &at, 100).await.unwrap();
    assert_eq!(engine.bounds(&at).await.unwrap().last.seq, 101, "the refused append left no hole");
    engine.close().await.unwrap();
}

async fn a_read_only_replica_is_refused_at_the_start_and_survived_later(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let other = RedisServer::start(flavor).await;
    let engine = Engine::at(&format!("{}?durability=fast", other.url().trim_end_matches('/'))).await.unwrap();
    let at = partition(&engine).await;
    append_one(&engine, &at, 1).await.unwrap();
    let port = master.port().to_string();
    other.order(&["REPLICAOF", "127.0.0.1", &port]).await;
    let error = refused(append_one(&engine, &at, 2)).await;
    assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Unavailable, false), "{error:?}");
    assert!(error.context().contains("replica"), "{error}");
    let error = refused(Engine::at(&other.url())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    other.order(&["REPLICAOF", "NO", "ONE"]).await;
    until_ok("the promoted server serves", || engine.create_partition(&at)).await;
    until_ok("appends go on", || append_one(&engine, &at, 2)).await;
    engine.close().await.unwrap();
}

async fn forgotten_scripts_are_loaded_again(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    for durability in ["fast", "synced"] {
        let url = format!("{}?durability={durability}", server.url().trim_end_matches('/'));
        let engine = Engine::at(&url).await.unwrap();
        let at = partition(&engine).await;
        let name = group("g");
        let mut owner = Owner::new(&engine, &at, &name).await;
        for n in 0..5 {
            server.order(&["SCRIPT", "FLUSH"]).await;
            world::append(&engine, &at, n, n + 1).await;
            server.order(&["SCRIPT", "FLUSH"]).await;
            assert_eq!(engine.renew(&[owner.hold.clone()], LONG).await.unwrap(), [true]);
            server.order(&["SCRIPT", "FLUSH"]).await;
            assert_eq!(owner.drain().await, [n]);
        }
        assert_eq!(status(&engine, &at, &name).await.lag(), 0);
        engine.close().await.unwrap();
    }
}

async fn another_programs_key_is_reported_not_overwritten(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    append_one(&engine, &at, 1).await.unwrap();
    let stream = server.command(&["KEYS", "firth:{*:s"]).await.items()[0].text();
    server.order(&["XADD", &stream, "*", "field", "not ours"]).await;
    let error = refused(engine.read(&at, RecordId::ZERO, ReadLimit::records(9))).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let meta = stream.replace("}:s", "}:p");
    server.order(&["SET", &meta, "something else"]).await;
    let error = refused(append_one(&engine, &at, 2)).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(server.command(&["GET", &meta]).await.text(), "something else");
    engine.close().await.unwrap();
}

async fn two_prefixes_are_two_worlds(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let open = |tenant: &str| {
        let url = format!("{}?prefix={tenant}", server.url().trim_end_matches('/'));
        async move { Engine::at(&url).await.unwrap() }
    };
    let ours = open("tenant:a").await;
    let theirs = open("tenant:b").await;
    let at = partition(&ours).await;
    ours.append(&at, Append::new([Content::new("x")])).await.unwrap();
    world::fails(theirs.read(&at, RecordId::ZERO, ReadLimit::records(1)).await, ErrorKind::NotFound);
    assert!(theirs.create_partition(&at).await.unwrap());
    let keys = server.command(&["KEYS", "*"]).await;
    assert!(keys.items().iter().all(|key| key.text().starts_with("tenant:")), "{keys:?}");
    for engine in [ours, theirs] {
        engine.close().await.unwrap();
        world::fails(engine.bounds(&at).await, ErrorKind::Closed);
    }
}

#[test]
fn the_engine_works_over_tls() {
    super::block_on(async {
        let certs = firth_testkit::Certs::new();
        let server = RedisServer::builder().tls(&certs).start().await;
        let url = server.url();
        assert!(url.starts_with("rediss://"), "{url}");
        let error = refused(Engine::at(&url)).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "an unknown authority is not trusted");
        let url = format!("{url}?prefix=secure&tls_ca={}", certs.ca_path().display());
        let engine = Engine::at(&url).await.unwrap();
        let at = partition(&engine).await;
        append_one(&engine, &at, 1).await.unwrap();
        engine.close().await.unwrap();
    });
}
