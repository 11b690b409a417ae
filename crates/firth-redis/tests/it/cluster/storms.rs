//! A client in trouble is no trouble for the cluster: it asks for the topology when that may have
//! changed, and less and less often while the answer stays the same.

use super::{config, connect, errors, keys, runs, sum};
use firth_redis::{CallError, cmd, pipe};
use firth_testkit::RedisCluster;
use std::time::Duration;
use tokio::time::Instant;

fn bare() -> firth_testkit::ClusterBuilder {
    RedisCluster::builder().replicas_per_master(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_the_topology_is_not_asked_for_in_a_storm() {
    let cluster = bare().start().await;
    let mut config = config(&cluster);
    config.cluster.poll = Duration::from_secs(600);
    config.timeouts.request = Some(Duration::from_millis(300));
    let client = connect(config).await;
    let looks = async || sum(&cluster, async |node| runs(node, "cluster|slots").await).await;
    let before = looks().await;
    for _ in 0..300 {
        let none: Option<String> = client.call(cmd("GET").arg("foo")).await.unwrap();
        assert!(none.is_none());
    }
    let moved = sum(&cluster, async |node| errors(node, "MOVED").await).await;
    assert!(moved > 50, "a key that is not marked goes anywhere: {moved}");
    assert_eq!(looks().await, before, "the redirections told nothing new");

    // A cluster that cannot serve is asked again and again, but not in a storm.
    cluster.kill(cluster.master_of_key("foo").await).await;
    let before = looks().await;
    let begun = Instant::now();
    let mut refused = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        for key in keys("down", 10) {
            refused += usize::from(client.call::<Option<String>>(cmd("GET").key(key)).await.is_err());
        }
    }
    let asked = looks().await - before;
    // Each look may ask both nodes that are left. Without a backoff it would be eighty a second.
    let most = 20 + begun.elapsed().as_millis() as u64 / 100;
    assert!(refused > 0 && asked > 0 && asked <= most, "{asked} looks in {:?}", begun.elapsed());
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_wait_is_refused_behind_writes_of_several_slots() {
    let cluster = bare().start().await;
    let client = connect(config(&cluster)).await;
    let write = |key: &str| cmd("SET").key(key).arg(1);
    for wait in [cmd("WAIT").arg(0).arg(10), cmd("waitaof").arg(0).arg(0).arg(10)] {
        let apart = pipe().then(write("a")).then(write("b")).then(wait.clone());
        let error = client.pipeline::<Vec<String>>(apart).await.unwrap_err();
        assert!(matches!(&error, CallError::Invalid(why) if why.contains("WAIT")), "{error:?}");
        assert!(!error.may_have_run());
    }
    let none: Option<i64> = client.call(cmd("GET").key("a")).await.unwrap();
    assert_eq!(none, None, "nothing of it ran");
    // Behind writes of one slot it needs no further word.
    for n in 0..10 {
        let key = format!("{{w{n}}}k");
        let one = pipe().then(write(&key)).then(cmd("WAIT").arg(0).arg(10)).then(write(&key));
        let (_, replicas, _) = client.pipeline::<((), i64, ())>(one).await.unwrap();
        assert_eq!(replicas.unwrap(), 0);
    }
    client.close().await;
}
