//! `redis+sentinel://`: the master is found, followed through failovers, and its absence is
//! explained.

use crate::support::*;
use firth_redis::{CallError, Client, ConnectError, ConnectionState, cmd};
use firth_testkit::ports::Port;
use firth_testkit::{Flavor, RedisServer, SentinelSet, on_both, wait};

on_both!(
    the_master_is_found_and_followed_through_failovers,
    a_dead_sentinel_and_an_unknown_master_are_told_apart,
    sentinels_and_servers_may_have_passwords_of_their_own,
);

/// Writes until a write succeeds, as a careful user does; never repeats one that may have run.
async fn write(client: &Client, key: &str) {
    wait::until(LONG, "a write succeeds", async || {
        client.call::<()>(cmd("SET").key(key).arg(1)).await.is_ok()
    })
    .await;
}

async fn is_at(client: &Client, server: &RedisServer) -> bool {
    let port: Result<(String, u16), _> = client.call(cmd("CONFIG").arg("GET").arg("port")).await;
    port.is_ok_and(|(_, port)| port == server.port())
}

async fn the_master_is_found_and_followed_through_failovers(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 1, 3).await;
    let client = connect(watchful(set.url())).await;
    write(&client, "first").await;
    assert_eq!(set.master().await.command(&["GET", "first"]).await.int(), 1);
    assert_eq!(client.server().unwrap().role, "master");
    client.call::<()>(cmd("SET").key("bulk").arg("x".repeat(150 << 10))).await.unwrap();

    let new = set.failover().await;
    // the replaced master would go on taking writes for about ten seconds
    wait::until(ms(4000), "the client is at the new master", async || is_at(&client, new).await).await;
    write(&client, "second").await;
    assert_eq!(new.command(&["GET", "second"]).await.int(), 1, "after a failover on request");
    client.call::<()>(cmd("SET").key("bulk").arg("x".repeat(200 << 10))).await.unwrap();
    assert_eq!(new.command(&["STRLEN", "bulk"]).await.int(), 200 << 10, "every lane has followed");
    set.settle().await;

    let old = set.kill_master().await;
    let error = wait::until_some(LONG, async || client.call::<()>(cmd("PING")).await.err()).await.unwrap();
    assert!(
        matches!(error, CallError::Lost { .. } | CallError::Down { .. } | CallError::Timeout { .. }),
        "{error:?}"
    );
    let new = set.wait_new_master(old).await;
    write(&client, "third").await;
    assert_eq!(new.command(&["GET", "third"]).await.int(), 1, "after the death of the master");
    assert_eq!(client.state(), ConnectionState::Open);
    client.close().await;
    wait::until(LONG, "no task is left", async || tasks() == 0).await;
}

async fn a_dead_sentinel_and_an_unknown_master_are_told_apart(flavor: Flavor) {
    let set = SentinelSet::start(flavor, 0, 1).await;
    let dead = Port::reserve();
    let alive = set.sentinel_addrs()[0];
    let name = set.master_name();
    for _ in 0..4 {
        // the order is drawn by lot: the dead one is first often enough
        let client = connect(format!("redis+sentinel://{},{alive}/{name}", dead.addr())).await;
        echo(&client, "found").await.unwrap();
        client.close().await;
    }
    let error = Client::connect(format!("redis+sentinel://{alive}/nobody")).await.unwrap_err();
    let ConnectError::NoMaster { name, problem } = &error else { panic!("{error:?}") };
    assert!(name == "nobody" && problem.contains("does not know"), "{error}");
    let error = Client::connect(format!("redis+sentinel://{}/any", dead.addr())).await.unwrap_err();
    let ConnectError::NoMaster { problem, .. } = &error else { panic!("{error:?}") };
    assert!(problem.contains(&dead.addr().to_string()) && problem.contains("refused"), "{error}");
    wait::until(LONG, "no task is left", async || tasks() == 0).await;
}

async fn sentinels_and_servers_may_have_passwords_of_their_own(flavor: Flavor) {
    let set = SentinelSet::start_with_password(flavor, 0, 1, "s3cret").await;
    let hosts = set.sentinel_addrs()[0];
    let name = set.master_name();
    let url = format!("redis+sentinel://:s3cret@{hosts}/{name}/2?sentinel_password=s3cret&name=me");
    let client = connect(url).await;
    let info: String = client.call(cmd("CLIENT").arg("INFO")).await.unwrap();
    assert!(info.contains("db=2") && info.contains("name=me"), "{info}");
    let error = Client::connect(format!("redis+sentinel://:s3cret@{hosts}/{name}")).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::NoMaster { problem, .. } if problem.contains("NOAUTH")),
        "{error}"
    );
    let error = Client::connect(format!("redis+sentinel://{hosts}/{name}?sentinel_password=s3cret"))
        .await
        .unwrap_err();
    assert!(matches!(&error, ConnectError::Refused { error, .. } if &*error.code == "NOAUTH"), "{error}");
}
