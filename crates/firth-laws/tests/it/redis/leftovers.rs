//! What stays on the server when something is gone.

use firth_engine::facet::{Acquire, StartPosition};
use firth_engine::{Engine, ErrorKind, LeaseName, MemberName, PoolName, Verdict};
use firth_laws::world::{
    self, LONG, Owner, SHORT, acquire, append, eventually, fails, group, holder, partition, retry, retry_kept,
};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::time::Duration;

on_both!(
    q14_groups_that_come_and_go_leave_nothing_and_epochs_still_grow,
    q14_a_late_consumer_leaves_no_key_of_a_deleted_partition,
    q14_leases_without_a_group_leave_no_key,
    q14_pools_without_members_leave_no_key,
    t05_retries_that_are_settled_leave_no_key,
);

async fn q14_groups_that_come_and_go_leave_nothing_and_epochs_still_grow(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    append(&engine, &at, 0, 3).await;
    let keys = async || server.command(&["DBSIZE"]).await.int();
    let before = keys().await;
    let mut epochs = Vec::new();
    for name in ["a", "b", "a", "c", "a"] {
        let name = group(name);
        let hold = acquire(&engine, &at, &name, LONG).await;
        engine.open(&at, &name, StartPosition::Start, &hold).await.unwrap();
        assert!(engine.delete_group(&at, &name, None).await.unwrap());
        fails(engine.open(&at, &name, StartPosition::Start, &hold).await, ErrorKind::Fenced);
        assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [false]);
        epochs.push(hold.epoch);
    }
    assert!(epochs.is_sorted_by(|one, two| one < two), "{epochs:?}");
    // One for the changes of hands of all leases.
    assert_eq!(keys().await, before + 1);
    assert_eq!(world::read_all(&engine, &at).await.len(), 3);
    engine.close().await.unwrap();
}

async fn q14_a_late_consumer_leaves_no_key_of_a_deleted_partition(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let keys = async || server.command(&["DBSIZE"]).await.int();
    let before = keys().await;
    let at = partition(&engine).await;
    assert!(engine.delete_partition(&at).await.unwrap());
    let late = Acquire::new(LeaseName::group(&at, &group("g")), holder(), LONG);
    fails(engine.acquire(late).await, ErrorKind::NotFound);
    assert_eq!(keys().await, before);
    engine.close().await.unwrap();
}

/// A member that finds its group deleted, and one that vanishes before it opens.
async fn q14_leases_without_a_group_leave_no_key(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let keys = async || server.command(&["DBSIZE"]).await.int();
    let before = keys().await;
    for name in ["a", "b", "a"].map(group) {
        let late = acquire(&engine, &at, &name, LONG).await;
        fails(engine.open(&at, &name, StartPosition::Existing, &late).await, ErrorKind::NotFound);
        assert!(engine.release(&late).await.unwrap());
        let revoked = acquire(&engine, &at, &name, LONG).await;
        assert!(revoked.epoch > late.epoch && engine.revoke(&revoked.lease).await.unwrap());
        let vanished = acquire(&engine, &at, &name, SHORT).await;
        assert!(vanished.epoch > revoked.epoch);
        eventually("it runs out", async || {
            !engine.delete_group(&at, &name, None).await.unwrap() && keys().await == before + 1
        })
        .await;
    }
    engine.close().await.unwrap();
}

async fn q14_pools_without_members_leave_no_key(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let pool = PoolName::new("members").unwrap();
    let mut epochs = Vec::new();
    for round in 0..4 {
        let names = ["a", "b"].map(|name| LeaseName::pool(&pool, &MemberName::new(name).unwrap()));
        for name in &names {
            let request = Acquire::new(name.clone(), holder(), LONG);
            epochs.push(engine.acquire(request).await.unwrap().granted().unwrap());
        }
        assert!(engine.release(&epochs[2 * round]).await.unwrap());
        assert!(engine.revoke(&names[1]).await.unwrap());
        let left = server.command(&["KEYS", "*"]).await;
        let [gone] = left.items() else { panic!("{left:?}") };
        assert!(gone.text().starts_with("firth:pools:{"), "all vanished pools of a slot share it");
        // A clock that went back must not bring an epoch back.
        let future = epochs[2 * round + 1].epoch.0 + 3_600_000_000;
        server.order(&["HSET", &gone.text(), "e", &future.to_string()]).await;
    }
    let epochs: Vec<_> = epochs.iter().map(|hold| hold.epoch).collect();
    assert!(epochs.is_sorted_by(|one, two| one < two), "{epochs:?}");
    engine.close().await.unwrap();
}

async fn t05_retries_that_are_settled_leave_no_key(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    let name = group("g");
    append(&engine, &at, 0, 2).await;
    let mut owner = Owner::new(&engine, &at, &name).await;
    let keys = async || server.command(&["DBSIZE"]).await.int();
    let before = keys().await;
    let records = owner.take(2).await;
    owner.settle(&records[0], retry(Duration::ZERO));
    owner.settle(&records[1], retry_kept(Duration::ZERO));
    owner.commit().await;
    // Times, texts, index and kept contents.
    assert_eq!(keys().await, before + 4);
    for record in owner.due(10).await {
        owner.settle(&record, Verdict::Ack);
    }
    owner.commit().await;
    assert_eq!(keys().await, before);
    engine.close().await.unwrap();
}
