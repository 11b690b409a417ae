//! Figures: series end with what they tell of, and many partitions are asked at a time.

use crate::world::{PATIENCE, Server, firth, json, stdout};
use firth_testkit::wait::until;
use firth_testkit::{Flavor, Proxy, RedisServer};
use std::time::{Duration, Instant};

/// The lines of `/metrics` that tell of a topic or a group.
fn told(server: &Server) -> Vec<String> {
    let metrics = server.get("/metrics").expect(200).body;
    metrics.lines().filter(|line| line.contains("topic=\"")).map(str::to_owned).collect()
}

#[test]
fn q06_series_end_with_their_topic_and_their_group() {
    let server = Server::memory();
    for topic in ["gone", "kept"] {
        server.topic(topic, &["one", "two"]);
        for group in ["gone", "kept"] {
            server.fetch(topic, group, &json!({ "wait_ms": 5000 }));
        }
    }
    let lag = |topic: &str, group: &str| {
        let wanted = format!("firth_group_lag{{topic=\"{topic}\",group=\"{group}\"}}");
        told(&server).iter().any(|line| line.starts_with(&wanted))
    };
    assert!(lag("gone", "kept") && lag("kept", "gone") && lag("kept", "kept"), "{:#?}", told(&server));
    server.call("DELETE", "/v1/topics/gone", None).expect(204);
    server.call("DELETE", "/v1/topics/kept/groups/gone", None).expect(204);
    let left = told(&server);
    assert!(
        !left.iter().any(|line| line.contains("topic=\"gone\"") || line.contains("group=\"gone\"")),
        "{left:#?}"
    );
    assert!(
        lag("kept", "kept")
            && left.iter().any(|line| line.starts_with("firth_produced_total{topic=\"kept\""))
    );
}

/// Another server has deleted it: only a look at the engine tells.
#[tokio::test(flavor = "multi_thread")]
async fn q06_series_end_with_a_topic_that_another_server_deleted() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let start = || Server::start(firth().args(["serve", "--engine", &redis.url()]), None);
    let one = start();
    let other = start();
    one.topic("t", &["one"]);
    assert!(!told(&one).is_empty());
    other.call("DELETE", "/v1/topics/t", None).expect(204);
    until(PATIENCE, "its series are gone", async || told(&one).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q06_doctor_and_bench_leave_no_series_behind() {
    let server = Server::memory();
    let run = |args: &[&str]| stdout(&firth().args(args).args(["--server", &server.url()]).output().unwrap());
    run(&["doctor"]);
    run(&["bench", "--messages", "100"]);
    until(PATIENCE, "no series is left", async || told(&server).is_empty()).await;
}

/// A topic whose partitions were asked one by one could not be shown in this time.
#[tokio::test(flavor = "multi_thread")]
async fn q22_partitions_topics_and_groups_are_asked_many_at_a_time() {
    const PARTITIONS: u32 = 128;
    const DELAY: Duration = Duration::from_millis(50);
    let redis = RedisServer::start(Flavor::Redis).await;
    let proxy = Proxy::start(redis.addr()).await;
    let engine = format!("redis://{}", proxy.addr());
    let server = Server::start(firth().args(["serve", "--engine", &engine]), None);
    server.put("/v1/topics/wide", &json!({ "partitions": PARTITIONS })).expect(201);
    for group in ["a", "b"] {
        server.put(&format!("/v1/topics/wide/groups/{group}"), &json!({})).expect(201);
    }
    proxy.delay(DELAY);
    for path in ["/v1/topics", "/v1/topics/wide", "/v1/topics/wide/groups/a", "/v1/topics/wide/groups"] {
        let started = Instant::now();
        server.get(path).expect(200);
        let took = started.elapsed();
        assert!(took < DELAY * PARTITIONS / 2, "{path} took {took:?}");
    }
}
