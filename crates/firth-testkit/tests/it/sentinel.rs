//! Sentinels find, watch and replace a master.

use firth_testkit::{Flavor, SentinelSet, on_both, wait};
use std::time::Duration;

on_both!(
    sentinels_replace_a_killed_master,
    a_failover_on_request_makes_a_replica_master,
    sentinels_work_behind_passwords,
    a_sentinel_that_was_starved_soon_trusts_what_it_sees_again,
);

async fn sentinels_replace_a_killed_master(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 1, 3).await;
    assert_eq!(set.sentinel_addrs().len(), 3);
    let old = set.kill_master().await;
    let new = set.wait_new_master(old).await;
    assert_ne!(old.port(), new.port());
    assert_eq!(new.command(&["SET", "k", "v"]).await.text(), "OK");
}

async fn a_failover_on_request_makes_a_replica_master(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 2, 1).await;
    let old = set.master().await;
    let new = set.failover().await;
    assert_ne!(old.port(), new.port());
    assert_eq!(new.info("replication").await["role"], "master");
}

async fn sentinels_work_behind_passwords(flavor: Flavor) {
    let set = SentinelSet::start_with_password(flavor, 1, 1, "s3cret").await;
    let old = set.kill_master().await;
    set.wait_new_master(old).await;
}

async fn a_sentinel_that_was_starved_soon_trusts_what_it_sees_again(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 1, 1).await;
    let sentinel = &set.sentinels()[0];
    sentinel.freeze();
    // What a sentinel takes for a jump of its clock.
    tokio::time::sleep(Duration::from_secs(3)).await;
    sentinel.thaw();
    wait::until(wait::PATIENCE, "it notices", async || sentinel.log().contains("+tilt")).await;
    wait::until(Duration::from_secs(20), "it trusts again", async || sentinel.log().contains("-tilt")).await;
    let old = set.kill_master().await;
    set.wait_new_master(old).await;
}
