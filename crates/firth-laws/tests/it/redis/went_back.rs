//! A server that lost its last moments: its logs end earlier, and give numbers again to other
//! records.

use super::{append_one, until_ok};
use firth_engine::facet::{ReadLimit, StartPosition};
use firth_engine::{Commit, Engine, ErrorKind, RecordId, Retry, Verdict, Window};
use firth_laws::world::{self, LONG, acquire, append, fails, group, numbers, partition};
use firth_testkit::{Flavor, Persist, RedisServer, SentinelSet, on_both};
use std::time::Duration;

on_both!(
    k04_an_owner_that_has_read_what_the_server_lost_settles_nothing_else,
    k04_a_failover_that_loses_records_is_told_to_readers
);

/// The log goes from 20 records back to 10, and then to 40 others.
async fn k04_an_owner_that_has_read_what_the_server_lost_settles_nothing_else(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).persist(Persist::Rdb).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    let kept = append(&engine, &at, 0, 10).await;
    let hold = acquire(&engine, &at, &name, LONG).await;
    let progress = engine.open(&at, &name, StartPosition::Start, &hold).await.unwrap();
    server.order(&["SAVE"]).await;
    let lost = append(&engine, &at, 10, 20).await;
    // The owner reads all, and settles the second half of it ahead of the frontier.
    let mut window = Window::new(&progress, 100);
    let records = world::read_all(&engine, &at).await;
    for record in &records {
        window.offer(record);
    }
    for record in &records[8..] {
        window.settle(record, Verdict::Ack).unwrap();
    }
    server.kill().await;
    server.restart().await;
    let read = async |after| engine.read(&at, after, ReadLimit::records(100)).await;
    until_ok("the engine reconnects", || read(RecordId::ZERO)).await;
    fails(read(lost[0]).await, ErrorKind::WentBack);
    for (from, to) in [(20, 30), (30, 50)] {
        append(&engine, &at, from, to).await;
        for gone in &lost {
            fails(read(*gone).await, ErrorKind::WentBack);
        }
    }
    let commit = window.take_commit().unwrap();
    assert!(commit.ahead.contains(11), "the numbers of other records by now");
    // With a verdict it takes another way.
    let retry = Retry { id: kept[0], after: Duration::ZERO, reason: "again".into(), kept: None };
    let judged = Commit { retries: vec![retry], frontier: kept[0], ..commit.clone() };
    fails(engine.commit(&at, &name, &hold, judged).await, ErrorKind::WentBack);
    fails(engine.commit(&at, &name, &hold, commit).await, ErrorKind::WentBack);
    // What was read before is good, and the group gets all that there is.
    assert_eq!(numbers(&read(kept[9]).await.unwrap()), (20..50).collect::<Vec<_>>());
    let mut owner = world::Owner::with(&engine, &at, &name, hold).await;
    assert_eq!(owner.drain().await, (0..10).chain(20..50).collect::<Vec<_>>());
    engine.close().await.unwrap();
}

async fn k04_a_failover_that_loses_records_is_told_to_readers(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 1, 1).await;
    let engine = Engine::at(&format!("{}?durability=fast", set.url())).await.unwrap();
    let at = partition(&engine).await;
    let kept = append(&engine, &at, 0, 5).await;
    let master = set.master().await;
    let replica = &set.data_nodes()[1];
    let has_all = async || {
        let offset = |info: &std::collections::HashMap<String, String>, name: &str| info.get(name).cloned();
        offset(&master.info("replication").await, "master_repl_offset")
            == offset(&replica.info("replication").await, "slave_repl_offset")
    };
    world::eventually("the replica has all", has_all).await;
    // From here on the replica hears nothing.
    replica.freeze();
    master.order(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    let lost = append(&engine, &at, 5, 10).await;
    master.kill().await;
    replica.thaw();
    set.wait_new_master(master).await;
    until_ok("appends go on", || append_one(&engine, &at, 10)).await;
    for gone in &lost {
        fails(engine.read(&at, *gone, ReadLimit::records(5)).await, ErrorKind::WentBack);
    }
    let rest = until_ok("reads go on", || engine.read(&at, kept[4], ReadLimit::records(5))).await;
    assert!(!rest.is_empty() && numbers(&rest).iter().all(|number| *number == 10));
    tokio::time::timeout(Duration::from_secs(5), engine.close()).await.unwrap().unwrap();
}
