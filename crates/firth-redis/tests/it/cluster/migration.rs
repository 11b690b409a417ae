//! Slots that move under load: callers see nothing of it.

use super::load::{CallKind, CallLoad};
use super::{SOON, config, connect, errors, sum};
use firth_redis::{Client, cmd, slot};
use firth_testkit::{Flavor, RedisCluster, on_both, wait};

on_both!(a_slot_that_moves_key_by_key_is_followed_without_an_error);

async fn a_slot_that_moves_key_by_key_is_followed_without_an_error(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).replicas_per_master(0).start().await;
    let client = connect(config(&cluster)).await;
    let moving = slot(b"moving");
    fill(&client, 300).await;
    let load = CallLoad::start(&client, &["moving".to_owned(), "resting".to_owned()], &CallKind::ALL);
    load.proceeds().await;
    let popped = tokio::spawn({
        let client = client.clone();
        async move { client.call::<(String, String)>(cmd("BLPOP").key("{moving}jobs").arg(0)).await }
    });
    let home = cluster.master_of_slot(moving).await;
    let away = (home + 1) % 3;
    for (from, to) in [(home, away), (away, home)] {
        let migration = cluster.begin_migration(moving, from, to).await;
        while migration.move_keys(20).await > 0 {
            load.proceeds().await;
            multi_key_commands_wait_for_their_keys(&client).await;
        }
        migration.finish().await;
        load.proceeds().await;
    }
    client.call::<()>(cmd("RPUSH").key("{moving}jobs").arg("work")).await.unwrap();
    let popped =
        tokio::time::timeout(SOON, popped).await.expect("a blocked command follows its key").unwrap();
    assert_eq!(popped.unwrap().1, "work");

    let books = load.stop().await;
    books.assert_spotless();
    books.check(&client).await;
    for code in ["ASK", "MOVED", "TRYAGAIN"] {
        let seen = sum(&cluster, async |node| errors(node, code).await).await;
        assert!(seen > 0, "the law was put to the test: no {code}");
    }
    the_new_owner_is_known(&cluster, &client, moving).await;
    client.close().await;
}

/// Keys that make the move last.
async fn fill(client: &Client, count: usize) {
    let writes: firth_redis::Pipe =
        (0..count).map(|n| cmd("SET").key(format!("{{moving}}{n}")).arg(n)).collect();
    client.pipeline::<Vec<()>>(writes).await.unwrap();
}

async fn multi_key_commands_wait_for_their_keys(client: &Client) {
    let some = ["{moving}1", "{moving}100", "{moving}200", "{moving}299"];
    // Some of the keys are here, some there, until the move is over; so the call has a short limit.
    let read =
        client.call::<Vec<Option<i64>>>(cmd("MGET").keys(some)).timeout(std::time::Duration::from_millis(30));
    match read.await {
        Ok(values) => assert_eq!(values, [Some(1), Some(100), Some(200), Some(299)]),
        Err(error) => assert!(!error.may_have_run() || error.is_timeout(), "{error:?}"),
    }
}

async fn the_new_owner_is_known(cluster: &RedisCluster, client: &Client, slot: u16) {
    let owner = cluster.node(cluster.master_of_slot(slot).await).addr().port();
    wait::until(SOON, "the topology names the owner", async || {
        let nodes = client.nodes();
        let told = nodes.iter().find(|node| node.slots.iter().any(|range| range.contains(&slot)));
        told.map(|node| node.address.port) == Some(owner)
    })
    .await;
    let before = sum(cluster, async |node| errors(node, "MOVED").await).await;
    client.call::<()>(cmd("GET").key("{moving}1")).await.unwrap();
    assert_eq!(sum(cluster, async |node| errors(node, "MOVED").await).await, before, "no detour");
}

#[test]
fn slots_that_move_at_once_are_followed_without_an_error() {
    firth_testkit::__run(async {
        let cluster = RedisCluster::builder().flavor(Flavor::Valkey).replicas_per_master(0).start().await;
        let client = connect(config(&cluster)).await;
        let moving = slot(b"moving");
        fill(&client, 300).await;
        let load = CallLoad::start(&client, &["moving".to_owned(), "resting".to_owned()], &CallKind::ALL);
        load.proceeds().await;
        let home = cluster.master_of_slot(moving).await;
        let away = (home + 1) % 3;
        for (from, to) in [(home, away), (away, home)] {
            cluster.migrate_atomic(moving..=moving, from, to).await;
            load.proceeds().await;
        }
        let books = load.stop().await;
        books.assert_spotless();
        books.check(&client).await;
        the_new_owner_is_known(&cluster, &client, moving).await;
        client.close().await;
    });
}
