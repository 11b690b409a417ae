//! What an acknowledgement means: fast, replicated, synced, and the default that the server's
//! set-up chooses.

use super::{append_one, block_on, refused, until_ok};
use firth_engine::facet::{Acquire, Append, ProducerSeq};
use firth_engine::{Content, Durability, Engine, ErrorKind, RedisOptions};
use firth_laws::world::{self, holder, partition, pool_lease};
use firth_testkit::{Flavor, Persist, RedisCluster, RedisServer, SentinelSet, on_both};
use std::time::Duration;

on_both!(
    concurrent_steps_share_a_wait,
    replicas_make_replicated_the_default,
    replicated_stays_the_default_while_the_replica_is_away,
    a_silent_replica_leaves_the_outcome_unknown,
    one_append_can_wait_for_replicas_that_the_engine_does_not_wait_for,
    a_lease_counts_only_when_it_is_replicated,
    k03_synced_is_kept_over_a_crash_where_the_server_syncs_before_it_answers,
    k03_synced_is_refused_where_the_server_answers_before_it_syncs,
    k03_a_server_that_no_longer_syncs_is_found_out_by_the_next_step,
    k03_a_server_that_hides_its_settings_cannot_promise_synced
);

async fn with_replica(flavor: Flavor) -> (RedisServer, RedisServer) {
    let master = RedisServer::start(flavor).await;
    let replica = RedisServer::builder().flavor(flavor).replica_of(&master).start().await;
    firth_testkit::wait::until(world::PATIENCE, "the replica is connected", async || {
        master.info("replication").await.get("slave0").is_some_and(|line| line.contains("state=online"))
    })
    .await;
    (master, replica)
}

/// How often the server was asked to wait.
async fn waits(server: &RedisServer, command: &str) -> u64 {
    let stats = server.info("commandstats").await;
    let line = stats.get(&format!("cmdstat_{command}")).cloned().unwrap_or_default();
    let calls = line.split(',').find_map(|part| part.strip_prefix("calls="));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

async fn replicas_make_replicated_the_default(flavor: Flavor) {
    let (master, replica) = with_replica(flavor).await;
    let engine = Engine::at(&master.url()).await.unwrap();
    let at = partition(&engine).await;
    append_one(&engine, &at, 1).await.unwrap();
    assert!(waits(&master, "wait").await >= 2);
    assert!(replica.command(&["DBSIZE"]).await.int() >= 2, "what was acknowledged is there");
    engine.close().await.unwrap();
    let alone = RedisServer::start(flavor).await;
    let engine = Engine::at(&alone.url()).await.unwrap();
    partition(&engine).await;
    assert_eq!(waits(&alone, "wait").await, 0);
    engine.close().await.unwrap();
}

/// A process that starts right after a failover finds a master that has no replica yet. If it
/// promised less than the others, what it acknowledges would be lost with the next failover.
async fn replicated_stays_the_default_while_the_replica_is_away(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 1, 1).await;
    let open = async || {
        let mut options = RedisOptions::default();
        options.wait = Duration::from_millis(200);
        Engine::redis(&set.url(), options).await.unwrap()
    };
    let before = open().await;
    let at = world::unmade_partition();
    until_ok("the replica confirms", || before.create_partition(&at)).await;
    set.data_nodes()[1].kill().await;
    let engine = open().await;
    let error = refused(append_one(&engine, &at, 1)).await;
    assert!(error.may_have_happened() && error.to_string().contains("0 of 1 replicas"), "{error}");
    engine.close().await.unwrap();
    before.close().await.unwrap();
}

async fn impatient(server: &RedisServer) -> Engine {
    let mut options = RedisOptions::default();
    options.durability = Some(Durability::Replicated(1));
    options.wait = Duration::from_millis(200);
    Engine::redis(&server.url(), options).await.unwrap()
}

async fn a_silent_replica_leaves_the_outcome_unknown(flavor: Flavor) {
    let (master, replica) = with_replica(flavor).await;
    let engine = impatient(&master).await;
    let at = world::unmade_partition();
    until_ok("the replica confirms", || engine.create_partition(&at)).await;
    let batch = || Append {
        producer: Some(ProducerSeq {
            name: firth_engine::ProducerName::new("p").unwrap(),
            first: 0,
            keep: Duration::ZERO,
        }),
        ..Append::new([Content::new("1")])
    };
    replica.freeze();
    let error = refused(engine.append(&at, batch())).await;
    assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Unavailable, true), "{error:?}");
    // The repetition is a duplicate on the master, and still no acknowledgement while the replica
    // lacks it.
    let error = refused(engine.append(&at, batch())).await;
    assert!(error.may_have_happened(), "{error:?}");
    replica.thaw();
    let again = until_ok("the replica catches up", || engine.append(&at, batch())).await;
    assert!(again.duplicate);
    assert_eq!(world::read_all(&engine, &at).await.len(), 1);
    // A refusal needs no replica.
    replica.freeze();
    let gap =
        ProducerSeq { name: firth_engine::ProducerName::new("p").unwrap(), first: 7, keep: Duration::ZERO };
    let wrong = Append { producer: Some(gap), ..Append::new([Content::new("x")]) };
    world::fails(engine.append(&at, wrong).await, ErrorKind::Invalid);
    replica.thaw();
    engine.close().await.unwrap();
}

async fn one_append_can_wait_for_replicas_that_the_engine_does_not_wait_for(flavor: Flavor) {
    let (master, replica) = with_replica(flavor).await;
    let mut options = RedisOptions::default();
    (options.durability, options.wait) = (Some(Durability::Fast), Duration::from_millis(200));
    let engine = Engine::redis(&master.url(), options).await.unwrap();
    let at = partition(&engine).await;
    let batch = |durability| Append { durability: Some(durability), ..Append::new([Content::new("1")]) };
    engine.append(&at, batch(Durability::Fast)).await.unwrap();
    assert_eq!(waits(&master, "wait").await, 0);
    engine.can_promise(Durability::Replicated(1)).await.unwrap();
    until_ok("the replica confirms", || engine.append(&at, batch(Durability::Replicated(1)))).await;
    assert!(waits(&master, "wait").await >= 1);
    replica.freeze();
    let error = refused(engine.append(&at, batch(Durability::Replicated(1)))).await;
    assert!(error.may_have_happened(), "{error:?}");
    engine.append(&at, batch(Durability::Fast)).await.unwrap();
    replica.thaw();
    let error = refused(engine.can_promise(Durability::Replicated(2))).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.context().contains("1 are connected"), "{error}");
    engine.close().await.unwrap();
}

async fn a_lease_counts_only_when_it_is_replicated(flavor: Flavor) {
    let (master, replica) = with_replica(flavor).await;
    let engine = impatient(&master).await;
    let name = pool_lease();
    let request = || Acquire::new(name.clone(), holder(), Duration::from_millis(300));
    replica.freeze();
    let error = refused(engine.acquire(request())).await;
    assert!(error.may_have_happened(), "{error:?}");
    replica.thaw();
    world::eventually("the lost lease runs out and is free", || async {
        engine.acquire(request()).await.is_ok_and(|acquired| acquired.granted().is_some())
    })
    .await;
    engine.close().await.unwrap();
}

async fn open_synced(server: &RedisServer) -> firth_engine::Result<Engine> {
    Engine::at(&format!("{}?durability=synced", server.url().trim_end_matches('/'))).await
}

async fn k03_synced_is_kept_over_a_crash_where_the_server_syncs_before_it_answers(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    let engine = open_synced(&server).await.unwrap();
    engine.can_promise(Durability::Synced).await.unwrap();
    let at = partition(&engine).await;
    append_one(&engine, &at, 1).await.unwrap();
    server.kill().await;
    server.restart().await;
    let records = until_ok("the engine reconnects", || async {
        engine.read(&at, firth_engine::RecordId::ZERO, firth_engine::facet::ReadLimit::records(9)).await
    })
    .await;
    assert_eq!(records.len(), 1);
    engine.close().await.unwrap();
}

/// Under `everysec` WAITAOF confirms what no fsync has reached, on Valkey 9.1.2 at least.
async fn k03_synced_is_refused_where_the_server_answers_before_it_syncs(flavor: Flavor) {
    for (persist, line, hint) in [
        (Persist::None, "", "appendonly yes"),
        (Persist::Aof, "", "appendfsync always"),
        (Persist::AofAlways, "no-appendfsync-on-rewrite yes", "no-appendfsync-on-rewrite no"),
    ] {
        let builder = RedisServer::builder().flavor(flavor).persist(persist);
        let server = if line.is_empty() { builder } else { builder.config(line) }.start().await;
        let error = refused(open_synced(&server)).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.context().contains(hint), "{error}");
        // An append that wants more than its engine promises is refused before it is done.
        let engine = Engine::at(&server.url()).await.unwrap();
        let at = partition(&engine).await;
        let synced = Append { durability: Some(Durability::Synced), ..Append::new([Content::new("1")]) };
        let error = refused(engine.append(&at, synced)).await;
        assert!(error.context().contains(hint) && !error.may_have_happened(), "{error:?}");
        assert!(world::read_all(&engine, &at).await.is_empty());
        engine.close().await.unwrap();
    }
}

/// As after a failover to a server with other settings.
async fn k03_a_server_that_no_longer_syncs_is_found_out_by_the_next_step(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
    let engine = open_synced(&server).await.unwrap();
    let at = partition(&engine).await;
    server.order(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
    let error = refused(append_one(&engine, &at, 1)).await;
    assert!(error.may_have_happened() && error.context().contains("appendfsync always"), "{error:?}");
    let error = refused(engine.can_promise(Durability::Synced)).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    server.order(&["CONFIG", "SET", "appendfsync", "always"]).await;
    append_one(&engine, &at, 2).await.unwrap();
    engine.close().await.unwrap();
}

async fn k03_a_server_that_hides_its_settings_cannot_promise_synced(flavor: Flavor) {
    let rules = super::acl::rules(flavor);
    for (rules, is_good) in [(format!("{rules} +config|get"), true), (rules, false)] {
        let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways);
        let server = server.acl_user("firth", &rules).start().await;
        let opened = Engine::at(&format!("redis://firth:secret@{}?durability=synced", server.addr())).await;
        if is_good {
            let engine = opened.unwrap();
            append_one(&engine, &partition(&engine).await, 1).await.unwrap();
            engine.close().await.unwrap();
        } else {
            let error = opened.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.context().contains("+config|get"), "{error}");
        }
    }
}

#[test]
fn k03_every_master_of_a_cluster_must_sync_before_it_answers() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).persist(Persist::AofAlways);
        let cluster = cluster.start().await;
        let open = async || Engine::at(&format!("{}?durability=synced", cluster.url())).await;
        let engine = open().await.unwrap();
        append_one(&engine, &partition(&engine).await, 1).await.unwrap();
        engine.close().await.unwrap();
        for node in cluster.nodes() {
            node.server().order(&["CONFIG", "SET", "appendfsync", "everysec"]).await;
            let error = refused(open()).await;
            assert!(error.context().contains("appendfsync always"), "{error}");
            node.server().order(&["CONFIG", "SET", "appendfsync", "always"]).await;
        }
    });
}

/// The group commit of a server: one wait serves many steps, over a handful of connections, and a
/// step that is refused, or whose script is unknown, spoils nothing for the others.
async fn concurrent_steps_share_a_wait(flavor: Flavor) {
    let master = RedisServer::start(flavor).await;
    let _replica = RedisServer::builder().flavor(flavor).replica_of(&master).start().await;
    let url = format!("{}?durability=replicated", master.url().trim_end_matches('/'));
    let engine = Engine::at(&url).await.unwrap();
    let at = world::unmade_partition();
    until_ok("the replica is connected", || engine.create_partition(&at)).await;
    let before = waits(&master, "wait").await;
    let missing = world::unmade_partition();
    master.order(&["SCRIPT", "FLUSH"]).await;
    let steps: Vec<_> = (0..600)
        .map(|n| {
            let engine = engine.clone();
            let at = if n % 10 == 0 { missing.clone() } else { at.clone() };
            tokio::spawn(async move { append_one(&engine, &at, n).await })
        })
        .collect();
    let mut acknowledged = std::collections::BTreeSet::new();
    for (n, step) in (0..).zip(steps) {
        match step.await.unwrap() {
            Ok(()) => assert!(acknowledged.insert(n)),
            refused => world::fails(refused, ErrorKind::NotFound),
        }
    }
    assert_eq!(acknowledged, (0..600).filter(|n| n % 10 != 0).collect());
    let found = world::read_all(&engine, &at).await;
    assert_eq!(found.iter().map(world::number).collect::<std::collections::BTreeSet<_>>(), acknowledged);
    let waits = waits(&master, "wait").await - before;
    assert!(waits < 200, "{waits} waits for 600 steps");
    let clients = master.command(&["CLIENT", "LIST"]).await.text().lines().count();
    assert!(clients < 20, "{clients} connections");
    engine.close().await.unwrap();
}
