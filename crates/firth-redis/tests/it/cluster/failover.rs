//! Masters that go: callers lose at most what was under way to them, and go on with their
//! successors.

use super::load::{CallKind, CallLoad};
use super::{SOON, config, connect, keys};
use firth_redis::config::Liveness;
use firth_redis::{CallError, Client, Config, cmd, slot};
use firth_testkit::{ClusterBuilder, Flavor, RedisCluster, on_both, wait};
use std::time::Duration;
use tokio::time::Instant;

on_both!(
    a_killed_master_costs_only_what_was_under_way,
    a_frozen_master_costs_only_what_was_under_way,
    planned_changes_cost_nothing,
);

/// How soon after its cluster has healed a client must be well again.
const HEALED: Duration = Duration::from_secs(2);

fn quick(flavor: Flavor) -> ClusterBuilder {
    RedisCluster::builder().flavor(flavor).node_timeout(800)
}

/// A configuration that is patient with the cluster, however slow it is.
fn patient(cluster: &RedisCluster) -> Config {
    let mut config = config(cluster);
    config.cluster.max_redirects = 100;
    config.liveness = None;
    config
}

/// The same, which also finds a silent master out before the cluster replaces it.
fn watchful(cluster: &RedisCluster) -> Config {
    let mut config = patient(cluster);
    config.liveness =
        Some(Liveness { ping_after: Duration::from_millis(200), dead_after: Duration::from_millis(600) });
    config
}

/// Tags whose slots are spread over all masters.
fn tags() -> Vec<String> {
    keys("tag", 6)
}

async fn all_slots_answer_within(client: &Client, limit: Duration) {
    let started = Instant::now();
    for tag in tags() {
        let left = limit.saturating_sub(started.elapsed());
        client
            .call::<Option<String>>(cmd("GET").key(&tag))
            .timeout(left)
            .await
            .expect("the cluster has healed");
    }
}

async fn a_killed_master_costs_only_what_was_under_way(flavor: Flavor) {
    let cluster = quick(flavor).start().await;
    let client = connect(watchful(&cluster)).await;
    let load = CallLoad::start(
        &client,
        &tags(),
        &[CallKind::Call, CallKind::Pipeline, CallKind::Transaction, CallKind::Script],
    );
    load.proceeds().await;
    let victim = cluster.master_of_key("tag:0").await;
    cluster.kill(victim).await;
    let heir = cluster.wait_promoted(victim).await;
    all_slots_answer_within(&client, HEALED).await;
    load.proceeds().await;
    let heir = cluster.node(heir).addr().port();
    wait::until(SOON, "the heir is known", async || {
        let nodes = client.nodes();
        let owner = nodes.iter().find(|n| n.slots.iter().any(|range| range.contains(&slot(b"tag:0"))));
        owner.map(|node| node.address.port) == Some(heir)
    })
    .await;
    let mut session = client.session_for("tag:0").await.expect("a session with the heir");
    session.call::<()>(cmd("INCR").key("{tag:0}session")).await.unwrap();
    session.close().await;
    let gone = cluster.node(victim).addr().port();
    assert!(client.nodes().iter().all(|node| node.address.port != gone), "the dead are not listed");
    cluster.restart(victim).await;
    cluster.settle().await;
    load.proceeds().await;
    let books = load.stop().await;
    books.assert_only_lost_under_way();
    books.check_after_loss(&client).await;
    assert!(books.acknowledged() > 0);
    client.close().await;
}

async fn a_frozen_master_costs_only_what_was_under_way(flavor: Flavor) {
    let cluster = quick(flavor).start().await;
    let client = connect(watchful(&cluster)).await;
    let load = CallLoad::start(&client, &tags(), &[CallKind::Call, CallKind::Pipeline]);
    load.proceeds().await;
    let victim = cluster.master_of_key("tag:0").await;
    cluster.freeze(victim);
    cluster.wait_promoted(victim).await;
    all_slots_answer_within(&client, HEALED).await;
    load.proceeds().await;
    cluster.thaw(victim);
    cluster.settle().await;
    load.proceeds().await;
    let books = load.stop().await;
    books.assert_only_lost_under_way();
    books.check_after_loss(&client).await;
    client.close().await;
}

async fn planned_changes_cost_nothing(flavor: Flavor) {
    // Nodes are silent here only for lack of CPU time. Neither the client nor the cluster may take
    // that for a failure.
    let cluster = RedisCluster::builder().flavor(flavor).node_timeout(4000).start().await;
    let client = connect(patient(&cluster)).await;
    let load = CallLoad::start(&client, &tags(), &CallKind::ALL);
    load.proceeds().await;
    let popped = tokio::spawn({
        let client = client.clone();
        async move { client.call::<(String, String)>(cmd("BLPOP").key("{tag:0}jobs").arg(0)).await }
    });

    // A replica takes over, and its master goes on as a replica.
    let old = cluster.master_of_key("tag:0").await;
    let heir = cluster.replicas_of(old).await[0];
    cluster.failover(heir).await;
    load.proceeds().await;
    client.call::<()>(cmd("RPUSH").key("{tag:0}jobs").arg("work")).await.unwrap();
    let popped =
        tokio::time::timeout(SOON, popped).await.expect("a blocked command follows its key").unwrap();
    assert_eq!(popped.unwrap().1, "work");

    // A node joins, takes a slot over, gives it back, and leaves.
    let moving = slot(b"tag:0");
    let home = heir;
    let guest = cluster.add_node().await;
    cluster.migrate_slots(moving..=moving, home, guest).await;
    load.proceeds().await;
    let port = cluster.node(guest).addr().port();
    let lists_guest = || client.nodes().iter().any(|node| node.address.port == port);
    wait::until(SOON, "the guest is known", async || lists_guest()).await;
    cluster.migrate_slots(moving..=moving, guest, home).await;
    cluster.remove_node(guest).await;
    wait::until(SOON, "the guest is forgotten", async || !lists_guest()).await;
    load.proceeds().await;

    let books = load.stop().await;
    books.assert_spotless();
    books.check(&client).await;
    client.close().await;
}

#[tokio::test]
async fn requests_that_wait_for_a_dead_master_end_at_their_deadline_and_say_that_nothing_ran() {
    let cluster = RedisCluster::builder().masters(3).replicas_per_master(0).start().await;
    let mut config = config(&cluster);
    config.timeouts.request = Some(Duration::from_millis(600));
    let client = connect(config).await;
    client.call::<()>(cmd("SET").key("tag:0").arg(1)).await.unwrap();
    cluster.kill(cluster.master_of_key("tag:0").await).await;
    wait::until(SOON, "the loss shows", async || client.call::<()>(cmd("GET").key("tag:0")).await.is_err())
        .await;
    let started = Instant::now();
    let error = client.call::<()>(cmd("SET").key("tag:0").arg(2)).await.unwrap_err();
    assert!(!error.may_have_run() && error.is_retryable(), "{error:?}");
    assert!(!matches!(error, CallError::Closed { .. }), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    client.close().await;
}
